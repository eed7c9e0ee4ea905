package org.apache.curator.test;

import evenfall.Replicas;
import java.io.Closeable;
import java.io.IOException;
import java.lang.reflect.Method;
import java.net.InetSocketAddress;
import java.nio.file.Files;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.List;
import java.util.stream.Collectors;
import org.apache.zookeeper.ZooKeeper;

/** Replaces the ensemble of ZooKeeper of Curator's tests. Each of its servers is a replica of evenfall. */
@SuppressWarnings("deprecation")
public class TestingCluster implements Closeable {
    private static final String CHECK = "znode.container.checkIntervalMs";

    private final List<InstanceSpec> specs;
    private final Replicas replicas;

    public TestingCluster(int count) {
        this(newSpecs(count));
    }

    public TestingCluster(InstanceSpec... specs) {
        this(Arrays.asList(specs));
    }

    public TestingCluster(Collection<InstanceSpec> specs) {
        this.specs = new ArrayList<>(specs);
        List<String> all = specs.stream().map(InstanceSpec::getConnectString).collect(Collectors.toList());
        try {
            this.replicas = new Replicas(all, Files.createTempDirectory("test").toFile(), options());
        } catch (IOException error) {
            throw new IllegalStateException(error);
        }
    }

    /**
     * The options of Curator's servers. A test may set the time between two looks for nodes whose time is
     * over. The shortest such time of a replica is 100 ms.
     */
    static String[] options() {
        List<String> options = new ArrayList<>(List.of("tickTime=3000"));
        options.add(CHECK + "=" + Math.max(100, Integer.getInteger(CHECK, 60_000)));
        String digest = System.getProperty("zookeeper.DigestAuthenticationProvider.superDigest");
        if (digest != null) {
            options.add("superDigest=" + digest);
        }
        return options.toArray(new String[0]);
    }

    private static List<InstanceSpec> newSpecs(int count) {
        List<InstanceSpec> all = new ArrayList<>();
        while (all.size() < count) {
            all.add(InstanceSpec.newInstanceSpec());
        }
        return all;
    }

    public Collection<InstanceSpec> getInstances() {
        return List.copyOf(specs);
    }

    public List<TestingZooKeeperServer> getServers() {
        throw new UnsupportedOperationException("this test asks for a server inside its own process");
    }

    public String getConnectString() {
        return specs.stream().map(InstanceSpec::getConnectString).collect(Collectors.joining(","));
    }

    public void start() throws Exception {
        replicas.start();
    }

    public void stop() throws IOException {
        replicas.stop();
    }

    @Override
    public void close() throws IOException {
        replicas.close();
    }

    public boolean killServer(InstanceSpec spec) throws Exception {
        int number = specs.indexOf(spec);
        if (number >= 0) {
            replicas.stop(number);
        }
        return number >= 0;
    }

    public boolean restartServer(InstanceSpec spec) throws Exception {
        int number = specs.indexOf(spec);
        if (number >= 0) {
            replicas.stop(number);
            replicas.start(number);
        }
        return number >= 0;
    }

    /** The server that a client is connected to, by its port. */
    public InstanceSpec findConnectionInstance(ZooKeeper client) throws Exception {
        Method remote = ZooKeeper.class.getDeclaredMethod("testableRemoteSocketAddress");
        remote.setAccessible(true);
        InetSocketAddress address = (InetSocketAddress) remote.invoke(client);
        for (InstanceSpec spec : specs) {
            if (address != null && spec.getPort() == address.getPort()) {
                return spec;
            }
        }
        return null;
    }
}
