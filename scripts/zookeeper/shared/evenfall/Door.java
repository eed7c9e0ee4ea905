package evenfall;

import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.util.HashSet;
import java.util.Set;
import java.util.concurrent.CountDownLatch;
import org.apache.zookeeper.KeeperException;
import org.apache.zookeeper.Watcher.Event.KeeperState;
import org.apache.zookeeper.ZooDefs;
import org.apache.zookeeper.ZooKeeper;

/**
 * A port that tests take for a server of their own. It leads to the replicas of the property
 * evenfall.replicas. A test that stops its server closes the port and all connections.
 */
public final class Door {
    private static final String REPLICAS = System.getProperty("evenfall.replicas");
    private static final int PATIENCE_MS = 60_000;
    private static int turn;

    private final int port;
    private final Set<Socket> sockets = new HashSet<>();
    private ServerSocket listener;

    public Door(int port) {
        this.port = port;
    }

    public synchronized void open() throws IOException {
        if (listener != null) {
            return;
        }
        ServerSocket socket = new ServerSocket();
        socket.setReuseAddress(true);
        socket.bind(new InetSocketAddress(InetAddress.getLoopbackAddress(), port));
        listener = socket;
        start(() -> accept(socket));
    }

    public synchronized void close() throws IOException {
        if (listener != null) {
            listener.close();
            listener = null;
        }
        for (Socket socket : sockets) {
            socket.close();
        }
        sockets.clear();
    }

    private void accept(ServerSocket from) {
        while (true) {
            try {
                Socket client = from.accept();
                Socket replica = connect();
                synchronized (this) {
                    if (listener != from) {
                        client.close();
                        replica.close();
                        return;
                    }
                    sockets.add(client);
                    sockets.add(replica);
                }
                start(() -> carry(client, replica));
                start(() -> carry(replica, client));
            } catch (IOException error) {
                if (from.isClosed()) {
                    return;
                }
            }
        }
    }

    private static synchronized Socket connect() throws IOException {
        String[] all = REPLICAS.split(",");
        String[] words = all[turn++ % all.length].split(":");
        Socket socket = new Socket(words[0], Integer.parseInt(words[1]));
        socket.setTcpNoDelay(true);
        return socket;
    }

    private void carry(Socket from, Socket to) {
        byte[] bytes = new byte[1 << 16];
        try {
            to.setTcpNoDelay(true);
            InputStream in = from.getInputStream();
            OutputStream out = to.getOutputStream();
            for (int count = in.read(bytes); count >= 0; count = in.read(bytes)) {
                out.write(bytes, 0, count);
            }
        } catch (IOException error) {
            // Either side has gone, so the other side goes, too.
        }
        synchronized (this) {
            sockets.remove(from);
            sockets.remove(to);
        }
        for (Socket socket : new Socket[] {from, to}) {
            try {
                socket.close();
            } catch (IOException error) {
                // It is closed already.
            }
        }
    }

    private static void start(Runnable what) {
        Thread thread = new Thread(what, "door");
        thread.setDaemon(true);
        thread.start();
    }

    /** Deletes all nodes: a test expects a server without any. */
    public static void wipe() throws Exception {
        CountDownLatch connected = new CountDownLatch(1);
        ZooKeeper zk = new ZooKeeper(REPLICAS, PATIENCE_MS, event -> {
            if (event.getState() == KeeperState.SyncConnected) {
                connected.countDown();
            }
        });
        connected.await();
        zk.addAuthInfo("digest", "super:test".getBytes());
        zk.setACL("/", ZooDefs.Ids.OPEN_ACL_UNSAFE, -1);
        zk.setData("/", new byte[0], -1);
        for (String name : zk.getChildren("/", false)) {
            delete(zk, "/" + name);
        }
        zk.close();
    }

    private static void delete(ZooKeeper zk, String path) throws Exception {
        while (true) {
            try {
                for (String name : zk.getChildren(path, false)) {
                    delete(zk, path + "/" + name);
                }
                zk.delete(path, -1);
                return;
            } catch (KeeperException.NoNodeException error) {
                return;
            } catch (KeeperException.NotEmptyException error) {
                // The client of an earlier test still makes nodes.
            }
        }
    }

    public static void main(String[] none) throws Exception {
        wipe();
    }
}
