import java.util.ArrayList;
import java.util.List;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystemContractBaseTest;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.contract.*;
import org.junit.AssumptionViolatedException;
import org.junit.Before;
import org.junit.runner.Description;
import org.junit.runner.JUnitCore;
import org.junit.runner.notification.Failure;
import org.junit.runner.notification.RunListener;

/**
 * Hadoop's tests of file systems over WebHDFS. Arguments: the address of a file system, and the names of the classes
 * below that run (all of them without names). Prints `failed` and `skipped` lines with a reason, and a line of counts
 * for each class. The program ends with 0 whatever failed, because `scripts/hadoop-contract.sh` judges the lines.
 */
public class Contract {
  static String address;

  static class Web extends AbstractBondedFSContract {
    Web(Configuration conf) {
      super(conf);
      addConfResource("webhdfs.xml");
      conf.set("fs.contract.test.fs.webhdfs", address);
    }
    @Override public String getScheme() { return "webhdfs"; }
  }

  public static class Create extends AbstractContractCreateTest {
    @Override protected AbstractFSContract createContract(Configuration conf) { return new Web(conf); }
  }
  public static class Open extends AbstractContractOpenTest {
    @Override protected AbstractFSContract createContract(Configuration conf) { return new Web(conf); }
  }
  public static class Append extends AbstractContractAppendTest {
    @Override protected AbstractFSContract createContract(Configuration conf) { return new Web(conf); }
  }
  public static class Concat extends AbstractContractConcatTest {
    @Override protected AbstractFSContract createContract(Configuration conf) { return new Web(conf); }
  }
  public static class Delete extends AbstractContractDeleteTest {
    @Override protected AbstractFSContract createContract(Configuration conf) { return new Web(conf); }
  }
  public static class Mkdir extends AbstractContractMkdirTest {
    @Override protected AbstractFSContract createContract(Configuration conf) { return new Web(conf); }
  }
  public static class Rename extends AbstractContractRenameTest {
    @Override protected AbstractFSContract createContract(Configuration conf) { return new Web(conf); }
  }
  public static class Seek extends AbstractContractSeekTest {
    @Override protected AbstractFSContract createContract(Configuration conf) { return new Web(conf); }
  }
  public static class GetFileStatus extends AbstractContractGetFileStatusTest {
    @Override protected AbstractFSContract createContract(Configuration conf) { return new Web(conf); }
  }
  public static class SetTimes extends AbstractContractSetTimesTest {
    @Override protected AbstractFSContract createContract(Configuration conf) { return new Web(conf); }
  }
  public static class ContentSummary extends AbstractContractContentSummaryTest {
    @Override protected AbstractFSContract createContract(Configuration conf) { return new Web(conf); }
  }
  public static class Unbuffer extends AbstractContractUnbufferTest {
    @Override protected AbstractFSContract createContract(Configuration conf) { return new Web(conf); }
  }
  public static class CopyFromLocal extends AbstractContractCopyFromLocalTest {
    @Override protected AbstractFSContract createContract(Configuration conf) { return new Web(conf); }
  }
  public static class BulkDelete extends AbstractContractBulkDeleteTest {
    @Override protected AbstractFSContract createContract(Configuration conf) { return new Web(conf); }
  }
  public static class RootDirectory extends AbstractContractRootDirectoryTest {
    @Override protected AbstractFSContract createContract(Configuration conf) { return new Web(conf); }
  }
  /** The older suite, of which HDFS runs `TestWebHdfsFileSystemContract`. */
  public static class Base extends FileSystemContractBaseTest {
    @Before public void setUp() throws Exception {
      fs = FileSystem.get(new java.net.URI(address), new Configuration());
    }
    @Override protected String getDefaultWorkingDirectory() {
      return fs.getWorkingDirectory().toUri().getPath();
    }
  }

  static String reason(Throwable thrown) {
    String text = String.valueOf(thrown).replaceAll("\\s+", " ");
    return text.substring(0, Math.min(text.length(), 240));
  }

  public static void main(String[] arguments) throws Exception {
    address = arguments[0];
    List<Class<?>> classes = new ArrayList<>();
    for (Class<?> one : new Class<?>[] {Create.class, Open.class, Append.class, Concat.class, Delete.class,
        Mkdir.class, Rename.class, Seek.class, GetFileStatus.class, SetTimes.class, ContentSummary.class,
        Unbuffer.class, CopyFromLocal.class, BulkDelete.class, Base.class, RootDirectory.class}) {
      boolean wanted = arguments.length < 2;
      for (int at = 1; at < arguments.length; at++) {
        wanted |= arguments[at].equals(one.getSimpleName());
      }
      if (wanted) {
        classes.add(one);
      }
    }
    for (Class<?> one : classes) {
      String name = one.getSimpleName();
      int[] counts = new int[3];
      JUnitCore runner = new JUnitCore();
      runner.addListener(new RunListener() {
        boolean bad;
        @Override public void testStarted(Description test) { bad = false; }
        @Override public void testFailure(Failure failure) {
          bad = true;
          counts[1]++;
          System.out.println("failed " + name + "." + failure.getDescription().getMethodName() + ": "
              + reason(failure.getException()));
        }
        @Override public void testAssumptionFailure(Failure failure) {
          bad = true;
          counts[2]++;
          System.out.println("skipped " + name + "." + failure.getDescription().getMethodName() + ": "
              + reason(failure.getException()));
        }
        @Override public void testFinished(Description test) { if (!bad) { counts[0]++; } }
      });
      runner.run(one);
      System.out.println("counts " + name + " " + counts[0] + " " + counts[1] + " " + counts[2]);
    }
    System.exit(0);
  }
}
