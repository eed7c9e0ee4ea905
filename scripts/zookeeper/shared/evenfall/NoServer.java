package evenfall;

/**
 * What a test gets that starts a server of ZooKeeper in its own process. Such a test would say nothing
 * about evenfall, so it fails. The property zookeeper.serverCnxnFactory names this class.
 */
public final class NoServer {
    public NoServer() {
        throw new UnsupportedOperationException("this test starts a server of ZooKeeper by itself");
    }
}
