package org.apache.curator.test;

import evenfall.Replicas;
import java.io.Closeable;
import java.io.File;
import java.io.IOException;
import java.nio.file.Files;

/** Replaces the server of ZooKeeper of Curator's tests by replicas of evenfall. */
public class TestingServer implements Closeable {
    private final int port;
    private final File directory;
    private final Replicas replicas;

    public TestingServer() throws Exception {
        this(-1, null, true);
    }

    public TestingServer(boolean start) throws Exception {
        this(-1, null, start);
    }

    public TestingServer(int port) throws Exception {
        this(port, null, true);
    }

    public TestingServer(int port, boolean start) throws Exception {
        this(port, null, start);
    }

    public TestingServer(int port, File directory) throws Exception {
        this(port, directory, true);
    }

    public TestingServer(InstanceSpec spec, boolean start) throws Exception {
        this(spec.getPort(), spec.getDataDirectory(), start);
    }

    public TestingServer(int port, File directory, boolean start) throws Exception {
        this.port = port > 0 ? port : Replicas.port();
        this.directory = directory == null ? Files.createTempDirectory("test").toFile() : directory;
        this.replicas = new Replicas(this.port, this.directory, TestingCluster.options());
        if (start) {
            start();
        }
    }

    public int getPort() {
        return port;
    }

    public File getTempDirectory() {
        return directory;
    }

    public void start() throws Exception {
        replicas.start();
    }

    public void restart() throws Exception {
        stop();
        start();
    }

    public void stop() throws IOException {
        replicas.stop();
    }

    @Override
    public void close() throws IOException {
        replicas.close();
    }

    public String getConnectString() {
        return Replicas.HOST + ":" + port;
    }
}
