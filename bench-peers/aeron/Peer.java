import io.aeron.Aeron;
import io.aeron.ExclusivePublication;
import io.aeron.Subscription;
import io.aeron.driver.MediaDriver;
import io.aeron.driver.ThreadingMode;
import io.aeron.logbuffer.BufferClaim;
import io.aeron.logbuffer.FragmentHandler;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;
import org.agrona.concurrent.BackoffIdleStrategy;
import org.agrona.concurrent.IdleStrategy;

/**
 * One side of Aeron multi-destination-cast: a client and its media driver in one process, so that
 * the process's time is that of both.
 *
 * <p>`Peer sub FANOUT` subscribes that often, prints "ready", and answers each line with its count.
 * `Peer pub FANOUT SIZE RATE SECONDS` (rate 0: flat out) warms up, prints "warm", waits for a line,
 * sends, and prints "done MESSAGES CPU_NS ELAPSED_NS".
 *
 * <p>Settings: shared driver threads (there may be two cores), 8 KiB frames, 2 MiB socket buffers and
 * windows, 16 MiB pre-touched terms, claims instead of copies, the slowest receiver sets the pace.
 */
public final class Peer {
    private static final String CONTROL = "127.0.0.1:24326";
    private static final long WARM_UP_NS = 3_000_000_000L;

    public static void main(final String[] args) throws Exception {
        final String directory = "/dev/shm/evenfall-peers-aeron-" + args[0];
        final MediaDriver.Context context = new MediaDriver.Context()
            .aeronDirectoryName(directory)
            .dirDeleteOnStart(true)
            .dirDeleteOnShutdown(true)
            .threadingMode(ThreadingMode.SHARED)
            .termBufferSparseFile(false)
            .socketSndbufLength(2 << 20)
            .socketRcvbufLength(2 << 20)
            .initialWindowLength(2 << 20)
            .mtuLength(8192);
        try (MediaDriver driver = MediaDriver.launch(context);
            Aeron aeron = Aeron.connect(new Aeron.Context().aeronDirectoryName(directory))) {
            final BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
            if (args[0].equals("sub")) {
                subscribe(aeron, input, Integer.parseInt(args[1]));
            } else {
                publish(aeron, input, args);
            }
        }
    }

    private static void subscribe(final Aeron aeron, final BufferedReader input, final int fanout)
        throws Exception {
        final AtomicLong count = new AtomicLong();
        final Subscription[] subscriptions = new Subscription[fanout];
        for (int i = 0; i < fanout; i++) {
            subscriptions[i] = aeron.addSubscription(
                "aeron:udp?endpoint=127.0.0.1:" + (24400 + i) + "|control=" + CONTROL
                    + "|control-mode=dynamic", 7);
        }
        final FragmentHandler handler = (buffer, offset, length, header) -> count.lazySet(count.get() + 1);
        final Thread poller = new Thread(() -> {
            final IdleStrategy idle = new BackoffIdleStrategy();
            while (true) {
                int work = 0;
                for (final Subscription subscription : subscriptions) {
                    work += subscription.poll(handler, 256);
                }
                idle.idle(work);
            }
        });
        poller.setDaemon(true);
        poller.start();
        System.out.println("ready");
        while (input.readLine() != null) {
            System.out.println(count.get());
        }
    }

    private static void publish(final Aeron aeron, final BufferedReader input, final String[] args)
        throws Exception {
        final int size = Integer.parseInt(args[2]);
        final double rate = Double.parseDouble(args[3]);
        final long durationNs = (long)(Double.parseDouble(args[4]) * 1e9);
        final ExclusivePublication publication = aeron.addExclusivePublication(
            "aeron:udp?control=" + CONTROL + "|control-mode=dynamic|fc=min|term-length=16m", 7);
        while (!publication.isConnected()) {
            Thread.sleep(10);
        }
        Thread.sleep(1500);
        send(publication, size, rate, WARM_UP_NS);
        Thread.sleep(500);
        System.out.println("warm");
        input.readLine();
        final com.sun.management.OperatingSystemMXBean system =
            (com.sun.management.OperatingSystemMXBean)ManagementFactory.getOperatingSystemMXBean();
        final long cpu = system.getProcessCpuTime();
        final long start = System.nanoTime();
        final long messages = send(publication, size, rate, durationNs);
        final long elapsed = System.nanoTime() - start;
        System.out.println("done " + messages + " " + (system.getProcessCpuTime() - cpu) + " " + elapsed);
        input.readLine();
    }

    private static long send(
        final ExclusivePublication publication, final int size, final double rate, final long durationNs) {
        final BufferClaim claim = new BufferClaim();
        final IdleStrategy idle = new BackoffIdleStrategy();
        final long start = System.nanoTime();
        long messages = 0;
        long now = start;
        while (now - start < durationNs) {
            if (rate > 0 && messages > (now - start) * 1e-9 * rate) {
                final long next = start + (long)(messages / rate * 1e9);
                LockSupport.parkNanos(Math.max(next - now, 20_000));
            } else if (publication.tryClaim(size, claim) > 0) {
                claim.buffer().setMemory(claim.offset(), size, (byte)42);
                claim.commit();
                messages++;
                idle.reset();
            } else {
                idle.idle();
            }
            now = System.nanoTime();
        }
        return messages;
    }
}
