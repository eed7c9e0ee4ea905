package org.apache.zookeeper.test;

import static org.junit.jupiter.api.Assertions.fail;

import evenfall.Replicas;
import java.io.File;
import java.io.IOException;
import java.net.ProtocolException;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.apache.zookeeper.TestableZooKeeper;
import org.apache.zookeeper.WatchedEvent;
import org.apache.zookeeper.Watcher;
import org.apache.zookeeper.Watcher.Event.KeeperState;
import org.apache.zookeeper.ZKTestCase;
import org.apache.zookeeper.ZooKeeper;
import org.apache.zookeeper.client.FourLetterWordMain;
import org.apache.zookeeper.client.ZKClientConfig;
import org.apache.zookeeper.server.ServerCnxnFactory;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The base of ZooKeeper's tests of clients, with the members of ZooKeeper's own class of this name.
 * Replicas of evenfall replace the server that a test starts and stops.
 */
public abstract class ClientBase extends ZKTestCase {
    protected static final Logger LOG = LoggerFactory.getLogger(ClientBase.class);
    public static int CONNECTION_TIMEOUT = 30000;

    protected String hostPort = Replicas.HOST + ":" + Replicas.port();
    protected int maxCnxns = 0;
    protected ServerCnxnFactory serverFactory = null;
    protected File tmpDir = null;
    protected boolean exceptionOnFailedConnect = false;
    private final List<ZooKeeper> clients = new ArrayList<>();
    private Replicas replicas;

    public static class CountdownWatcher implements Watcher {
        volatile CountDownLatch clientConnected;
        volatile boolean connected;
        volatile boolean syncConnected;

        public CountdownWatcher() {
            reset();
        }

        public synchronized void reset() {
            clientConnected = new CountDownLatch(1);
            connected = false;
            syncConnected = false;
        }

        @Override
        public synchronized void process(WatchedEvent event) {
            syncConnected = event.getState() == KeeperState.SyncConnected;
            connected = syncConnected || event.getState() == KeeperState.ConnectedReadOnly;
            notifyAll();
            if (connected) {
                clientConnected.countDown();
            }
        }

        public synchronized boolean isConnected() {
            return connected;
        }

        private void waitFor(boolean wanted, long timeout) throws InterruptedException, TimeoutException {
            long end = System.nanoTime() + timeout * 1_000_000;
            for (long left = timeout; connected != wanted && left > 0;) {
                wait(left);
                left = (end - System.nanoTime()) / 1_000_000;
            }
            if (connected != wanted) {
                throw new TimeoutException("the client is " + (wanted ? "not " : "") + "connected");
            }
        }

        public synchronized void waitForConnected(long timeout) throws InterruptedException, TimeoutException {
            waitFor(true, timeout);
        }

        public synchronized void waitForSyncConnected(long timeout) throws InterruptedException, TimeoutException {
            waitFor(true, timeout);
        }

        public synchronized void waitForDisconnected(long timeout) throws InterruptedException, TimeoutException {
            waitFor(false, timeout);
        }
    }

    protected TestableZooKeeper createClient() throws IOException, InterruptedException {
        return createClient(hostPort);
    }

    protected TestableZooKeeper createClient(String at) throws IOException, InterruptedException {
        return createClient(new CountdownWatcher(), at);
    }

    protected TestableZooKeeper createClient(CountdownWatcher watcher) throws IOException, InterruptedException {
        return createClient(watcher, hostPort);
    }

    protected TestableZooKeeper createClient(CountdownWatcher watcher, String at)
            throws IOException, InterruptedException {
        return createClient(watcher, at, CONNECTION_TIMEOUT);
    }

    protected TestableZooKeeper createClient(CountdownWatcher watcher, String at, int timeout)
            throws IOException, InterruptedException {
        watcher.reset();
        TestableZooKeeper zk = new TestableZooKeeper(at, timeout, watcher);
        if (!watcher.clientConnected.await(timeout, TimeUnit.MILLISECONDS)) {
            if (exceptionOnFailedConnect) {
                throw new ProtocolException("Unable to connect to server");
            }
            fail("Unable to connect to server");
        }
        synchronized (clients) {
            clients.add(zk);
        }
        return zk;
    }

    public static ZooKeeper createZKClient(String at) throws Exception {
        return createZKClient(at, CONNECTION_TIMEOUT);
    }

    public static ZooKeeper createZKClient(String at, int timeout) throws IOException {
        return createZKClient(at, timeout, CONNECTION_TIMEOUT);
    }

    public static ZooKeeper createZKClient(String at, int timeout, long patience) throws IOException {
        return createZKClient(at, timeout, patience, new ZKClientConfig());
    }

    public static ZooKeeper createZKClient(String at, int timeout, long patience, ZKClientConfig config)
            throws IOException {
        CountdownWatcher watcher = new CountdownWatcher();
        ZooKeeper zk = new ZooKeeper(at, timeout, watcher, config);
        try {
            watcher.waitForConnected(patience);
        } catch (InterruptedException | TimeoutException error) {
            fail("no connection to " + at);
        }
        return zk;
    }

    public static class HostPort {
        String host;
        int port;

        public HostPort(String host, int port) {
            this.host = host;
            this.port = port;
        }
    }

    public static List<HostPort> parseHostPortList(String list) {
        List<HostPort> all = new ArrayList<>();
        for (String one : list.split(",")) {
            int colon = one.lastIndexOf(':');
            all.add(new HostPort(one.substring(0, colon), Integer.parseInt(one.substring(colon + 1))));
        }
        return all;
    }

    public static boolean waitForServerUp(String at, long timeout) {
        return waitForServer(at, timeout, true);
    }

    public static boolean waitForServerDown(String at, long timeout) {
        return waitForServer(at, timeout, false);
    }

    private static boolean waitForServer(String at, long timeout, boolean wanted) {
        HostPort first = parseHostPortList(at).get(0);
        long end = System.nanoTime() + timeout * 1_000_000;
        do {
            boolean isUp;
            try {
                isUp = FourLetterWordMain.send4LetterWord(first.host, first.port, "stat")
                        .startsWith("Zookeeper version:");
            } catch (Exception error) {
                isUp = false;
            }
            if (isUp == wanted) {
                return true;
            }
            try {
                Thread.sleep(50);
            } catch (InterruptedException error) {
                return false;
            }
        } while (System.nanoTime() < end);
        return false;
    }

    public static File createEmptyTestDir() throws IOException {
        return createTmpDir();
    }

    public static File createTmpDir() throws IOException {
        return java.nio.file.Files.createTempDirectory("test").toFile();
    }

    public static boolean recursiveDelete(File directory) {
        return TestUtils.deleteFileRecursively(directory, true);
    }

    protected static String getHexSessionId(long id) {
        return "0x" + Long.toHexString(id);
    }

    protected void setUpAll() throws Exception {}

    public void setupCustomizedEnv() {}

    public void cleanUpCustomizedEnv() {}

    @BeforeEach
    public void setUp() throws Exception {
        setupCustomizedEnv();
        setUpAll();
        tmpDir = createTmpDir();
        startServer();
    }

    protected void setUpWithServerId(int id) throws Exception {
        setUp();
    }

    protected void startServer() throws Exception {
        String first = hostPort.split("[,/]")[0];
        int port = Integer.parseInt(first.substring(first.lastIndexOf(':') + 1));
        // The time of a tick is that of ZooKeeper's tests. The password of the super user is "test".
        if (replicas == null) {
            replicas = new Replicas(port, tmpDir, "tickTime=3000", "maxClientCnxns=" + maxCnxns,
                    "4lw.commands.whitelist=*",
                    "superDigest=super:D/InIHSb7yEEbrWz8b9l71RjZJU=");
        }
        replicas.start();
    }

    protected void stopServer() throws Exception {
        if (replicas != null) {
            replicas.stop();
        }
    }

    protected void tearDownAll() throws Exception {
        synchronized (clients) {
            for (ZooKeeper zk : clients) {
                zk.close();
            }
            clients.clear();
        }
    }

    @AfterEach
    public void tearDown() throws Exception {
        tearDownAll();
        stopServer();
        if (replicas != null) {
            replicas.close();
        }
        cleanUpCustomizedEnv();
    }
}
