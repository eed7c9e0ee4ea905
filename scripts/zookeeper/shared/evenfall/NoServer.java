package evenfall;

/**
 * Fails each test that starts a server of ZooKeeper in its own process, because such a test does not test
 * evenfall. The property zookeeper.serverCnxnFactory names this class.
 */
public final class NoServer {
    public NoServer() {
        throw new UnsupportedOperationException("this test starts a server of ZooKeeper by itself");
    }
}
