import java.io.File;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hdfs.HdfsConfiguration;
import org.apache.hadoop.hdfs.MiniDFSCluster;

/**
 * An HDFS of one process. Prints the address at which it takes WebHDFS, and ends with its standard input.
 *
 * Arguments: a directory, the number of dataservers, and `synced` when a file is on the disk before its last write is
 * acknowledged.
 */
public class Minicluster {
  public static void main(String[] arguments) throws Exception {
    Configuration conf = new HdfsConfiguration();
    if (arguments.length > 2 && arguments[2].equals("synced")) {
      conf.setBoolean("dfs.datanode.synconclose", true);
    }
    // Tests make files with blocks of 1 KiB.
    conf.setLong("dfs.namenode.fs-limits.min-block-size", 0);
    // Tests of HDFS leave the writes of the name log out.
    org.apache.hadoop.hdfs.server.namenode.EditLogFileOutputStream.setShouldSkipFsyncForTesting(false);
    int dataservers = Integer.parseInt(arguments[1]);
    MiniDFSCluster cluster = new MiniDFSCluster.Builder(conf, new File(arguments[0]))
        .numDataNodes(dataservers).build();
    cluster.waitActive();
    System.out.println("webhdfs://127.0.0.1:" + cluster.getNameNode().getHttpAddress().getPort());
    System.out.flush();
    while (System.in.read() >= 0) { }
    cluster.shutdown(true);
    System.exit(0);
  }
}
