package evenfall;

import java.io.Closeable;
import java.io.File;
import java.io.IOException;
import java.io.InputStream;
import java.lang.ProcessBuilder.Redirect;
import java.net.Socket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;

/**
 * Replicas of evenfall as processes, in the place of a server of ZooKeeper. Each test has new replicas, and
 * a test that stops its server kills their processes. All clients of a test connect to
 * the first replica, because the tests expect that one client sees at once what another has written.
 */
public final class Replicas implements Closeable {
    /** The address of the first replica of a test. The other replicas have the next addresses. */
    public static final String HOST = System.getProperty("evenfall.host", "127.0.0.1");

    private static final String PROGRAM = System.getProperty("evenfall.program");
    private static final int COUNT = 3;
    /** Seconds between two kills of a replica that no client is connected to; 0 for none. */
    private static final long KILL_EVERY = Long.getLong("evenfall.kill-every", 0);
    private static final long PATIENCE_NS = 60_000_000_000L;
    /** The ports of tests lie below the ports that the kernel gives to connections. */
    private static final int FIRST_PORT = 24_000;
    private static final int LAST_PORT = 32_000;
    private static int lastPort = FIRST_PORT;

    private final List<String> addresses;
    private final File directory;
    private final List<String> options;
    private final Process[] processes;
    private Thread killer;

    /** Replicas at these addresses, with logs below the directory. */
    public Replicas(List<String> addresses, File directory, String... options) {
        this.addresses = addresses;
        this.directory = directory;
        this.options = List.of(options);
        this.processes = new Process[addresses.size()];
    }

    /** Three replicas, of which the first listens at this port of HOST. */
    public Replicas(int port, File directory, String... options) {
        this(beside(port), directory, options);
    }

    private static List<String> beside(int port) {
        int dot = HOST.lastIndexOf('.') + 1;
        int last = Integer.parseInt(HOST.substring(dot));
        List<String> all = new ArrayList<>();
        for (int number = 0; number < COUNT; number++) {
            all.add(HOST.substring(0, dot) + (last + number) + ":" + port);
        }
        return all;
    }

    /** A port of HOST that no other test of this process has. */
    public static synchronized int port() {
        lastPort = lastPort == LAST_PORT ? FIRST_PORT : lastPort + 1;
        return lastPort;
    }

    public void start() throws IOException {
        for (int number = 0; number < processes.length; number++) {
            launch(number);
        }
        for (int number = 0; number < processes.length; number++) {
            await(number);
        }
        if (KILL_EVERY > 0 && killer == null) {
            killer = new Thread(this::killInTurn, "killer");
            killer.setDaemon(true);
            killer.start();
        }
    }

    private void killInTurn() {
        try {
            for (int turn = 0;; turn++) {
                Thread.sleep(1_000 * KILL_EVERY);
                again(1 + turn % (processes.length - 1));
            }
        } catch (IOException | InterruptedException error) {
            // The test has ended.
        }
    }

    /** Kills a replica and starts it again, unless the test has stopped it. */
    private synchronized void again(int number) throws IOException {
        if (processes[number] != null) {
            stop(number);
            launch(number);
        }
    }

    public void start(int number) throws IOException {
        launch(number);
        await(number);
    }

    private synchronized void launch(int number) throws IOException {
        if (processes[number] != null) {
            return;
        }
        directory.mkdirs();
        StringBuilder nodes = new StringBuilder();
        for (int each = 0; each < addresses.size(); each++) {
            nodes.append("[[node]]\nname = \"replica-").append(each).append("\"\nid = ").append(each + 1);
            nodes.append("\nrole = \"keys\"\naddress = \"").append(addresses.get(each)).append("\"\n\n");
        }
        Path settings = directory.toPath().resolve("keys-" + number + ".toml");
        Files.writeString(settings, nodes);
        List<String> command = new ArrayList<>(List.of(PROGRAM, "run", "keys", "--lifeline"));
        command.addAll(List.of("--config", settings.toString(), "--name", "replica-" + number));
        command.addAll(List.of("--dir", new File(directory, "keys").toString()));
        for (String option : options) {
            command.addAll(List.of("--zoo", option));
        }
        // A replica ends when this process ends, because its standard input does.
        processes[number] = new ProcessBuilder(command)
                .redirectErrorStream(true)
                .redirectOutput(Redirect.appendTo(log(number)))
                .start();
    }

    private File log(int number) {
        return new File(directory, "replica-" + number + ".log");
    }

    /** Waits until a replica takes clients. */
    private void await(int number) throws IOException {
        long end = System.nanoTime() + PATIENCE_NS;
        while (!answers(addresses.get(number))) {
            Process process = process(number);
            boolean hasEnded = process != null && !process.isAlive();
            if (hasEnded || System.nanoTime() > end) {
                throw new IOException("a replica takes no clients: " + Files.readString(log(number).toPath()));
            }
            pause();
        }
    }

    private synchronized Process process(int number) {
        return processes[number];
    }

    private static boolean answers(String address) {
        int colon = address.indexOf(':');
        try (Socket socket = new Socket(address.substring(0, colon), Integer.parseInt(address.substring(colon + 1)))) {
            socket.getOutputStream().write("ruok".getBytes());
            InputStream in = socket.getInputStream();
            return new String(in.readAllBytes()).equals("imok");
        } catch (IOException error) {
            return false;
        }
    }

    private static void pause() throws IOException {
        try {
            Thread.sleep(10);
        } catch (InterruptedException error) {
            throw new IOException(error);
        }
    }

    /** Kills all replicas. Their logs stay. */
    public void stop() {
        for (int number = 0; number < processes.length; number++) {
            stop(number);
        }
    }

    public synchronized void stop(int number) {
        if (processes[number] != null) {
            processes[number].destroyForcibly().onExit().join();
            processes[number] = null;
        }
    }

    /** Kills all replicas and deletes their logs. */
    @Override
    public void close() throws IOException {
        if (killer != null) {
            killer.interrupt();
        }
        stop();
        delete(directory);
    }

    private static void delete(File what) throws IOException {
        File[] below = what.listFiles();
        for (File file : below == null ? new File[0] : below) {
            delete(file);
        }
        Files.deleteIfExists(what.toPath());
    }
}
