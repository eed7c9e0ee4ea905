package org.apache.curator.test;

import evenfall.Door;
import java.io.Closeable;
import java.io.File;
import java.io.IOException;

/** Stands where Curator's tests look for a server of ZooKeeper, and leads to replicas of evenfall. */
public class TestingServer implements Closeable {
    private final int port;
    private final Door door;
    private final File directory;

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
        this.port = port > 0 ? port : InstanceSpec.getRandomPort();
        this.directory = directory;
        this.door = new Door(this.port);
        Door.wipe();
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
        door.open();
    }

    public void restart() throws Exception {
        stop();
        start();
    }

    public void stop() throws IOException {
        door.close();
    }

    @Override
    public void close() throws IOException {
        stop();
    }

    public String getConnectString() {
        return "127.0.0.1:" + port;
    }
}
