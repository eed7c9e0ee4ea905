/* Calls that a program should not make: each is refused with a status and a sentence. */
#include <arpa/inet.h>
#include <evenfall.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static int failures;

static void expect(evenfall_status got, evenfall_status wanted, const char *words, const char *what)
{
    if (got != wanted || (words && !strstr(evenfall_last_error(), words))) {
        printf("%s: status %d, wanted %d with \"%s\"; the error is \"%s\"\n", what, got, wanted,
               words ? words : "", evenfall_last_error());
        failures++;
    }
}

/* An address of this machine on which nobody listens, as "HOST:PORT". */
static void free_address(char *text, size_t size)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, length) != 0 ||
        getsockname(fd, (struct sockaddr *)&address, &length) != 0) {
        perror("a free port");
        exit(1);
    }
    close(fd);
    snprintf(text, size, "127.0.0.1:%d", ntohs(address.sin_port));
}

static void *poll_for_a_second(void *feed)
{
    const evenfall_update *updates;
    size_t count;
    evenfall_feed_poll(feed, 1, 1000000000, &updates, &count);
    return NULL;
}

static evenfall_feed *subscribe(evenfall_feed_options *options, const char *root)
{
    evenfall_feed *feed = NULL;
    memset(options, 0, sizeof *options);
    options->size = sizeof *options;
    options->root = root;
    options->address = "127.0.0.1:0";
    options->id = 7;
    expect(evenfall_subscribe(options, &feed), EVENFALL_OK, NULL, "a subscription");
    return feed;
}

/* The name of a new file with a secret of 64 digits in this form, for this process alone. */
static const char *write_file(const char *form)
{
    static char names[2][32];
    static int written;
    char *name = strcpy(names[written++], "/tmp/evenfall-misuse-XXXXXX");
    FILE *file = fdopen(mkstemp(name), "w");
    fprintf(file, form, "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef");
    fclose(file);
    return name;
}

static void refuse_options(void)
{
    evenfall_feed_options options = {0};
    evenfall_feed *feed = NULL;
    expect(evenfall_subscribe(NULL, &feed), EVENFALL_WRONG_ARGUMENT, "options is a null", "no options");
    expect(evenfall_subscribe(&options, &feed), EVENFALL_WRONG_ARGUMENT, "evenfall_feed_options.size is 0",
           "options of size 0");
    expect(evenfall_subscribe(&options, NULL), EVENFALL_WRONG_ARGUMENT, "feed is a null",
           "no place for the feed");
    /* A failed call leaves a null, so that the program may free what it has. */
    feed = (evenfall_feed *)&options;
    expect(evenfall_subscribe(NULL, &feed), EVENFALL_WRONG_ARGUMENT, "options is a null",
           "rubbish in the place of the feed");
    evenfall_feed_free(feed);
    options.size = sizeof options;
    expect(evenfall_subscribe(&options, &feed), EVENFALL_WRONG_ARGUMENT, "root is a null", "no root");
    options.root = "127.0.0.1";
    options.address = "127.0.0.1:0";
    expect(evenfall_subscribe(&options, &feed), EVENFALL_WRONG_ARGUMENT, "root: ", "a root without a port");
    options.root = "127.0.0.1:9";
    options.key = "/nonexistent/key";
    expect(evenfall_subscribe(&options, &feed), EVENFALL_WRONG_SETTINGS, "/nonexistent/key", "a missing key");
    const char *of_node_4 = write_file("4 %s\n"), *shared = write_file("%s\n");
    options.key = NULL;
    options.node_key = of_node_4;
    options.id = 4;
    expect(evenfall_subscribe(&options, &feed), EVENFALL_WRONG_SETTINGS, "needs the shared key",
           "a node key without the shared key");
    options.key = of_node_4;
    expect(evenfall_subscribe(&options, &feed), EVENFALL_WRONG_SETTINGS, "is the key of node 4, and here belongs",
           "a node key for the shared key");
    options.key = shared;
    options.id = 5;
    expect(evenfall_subscribe(&options, &feed), EVENFALL_WRONG_SETTINGS, "of node 4, and this node has id 5",
           "the key of another node");
    options.node_key = shared;
    expect(evenfall_subscribe(&options, &feed), EVENFALL_WRONG_SETTINGS, "begins with the id",
           "the shared key for a node key");
    options.id = 0;
    unlink(of_node_4);
    unlink(shared);
    options.key = options.node_key = NULL;
    options.symbol_count = 1;
    expect(evenfall_subscribe(&options, &feed), EVENFALL_WRONG_ARGUMENT, "symbols", "an array without values");
    options.symbol_count = 0;
    options.root = "192.0.2.1:9";
    expect(evenfall_subscribe(&options, &feed), EVENFALL_WRONG_SETTINGS, "key", "a feed without a key");
    options.config = "/nonexistent/evenfall.toml";
    options.name = "desk";
    expect(evenfall_subscribe(&options, &feed), EVENFALL_WRONG_ARGUMENT, "not both", "two ways at once");
    options.root = options.address = NULL;
    options.node_key = "/nonexistent/key";
    expect(evenfall_subscribe(&options, &feed), EVENFALL_WRONG_ARGUMENT, "names its keys itself",
           "a key beside a settings file");
    options.node_key = NULL;
    expect(evenfall_subscribe(&options, &feed), EVENFALL_WRONG_SETTINGS, "/nonexistent/evenfall.toml",
           "a missing settings file");
    if (feed) {
        puts("a refused subscription gave a feed");
        failures++;
    }
}

static void refuse_calls(void)
{
    evenfall_feed_options options;
    evenfall_feed *feed = subscribe(&options, "127.0.0.1:9");
    const evenfall_update *updates;
    size_t count;
    char hash[65];
    expect(evenfall_feed_poll(NULL, 1, 0, &updates, &count), EVENFALL_WRONG_ARGUMENT, "feed is a null", "no feed");
    expect(evenfall_feed_poll(feed, 1, 0, NULL, &count), EVENFALL_WRONG_ARGUMENT, "updates", "no place for updates");
    expect(evenfall_feed_poll(feed, 1, 1000000, &updates, &count), EVENFALL_OK, NULL, "a poll without a root");
    if (count != 0)
        failures++;
    expect(evenfall_feed_hash(feed, hash), EVENFALL_WRONG_ARGUMENT, "hashed = 1", "a hash that was not kept");

    pthread_t other;
    pthread_create(&other, NULL, poll_for_a_second, feed);
    usleep(200000);
    expect(evenfall_feed_poll(feed, 1, 0, &updates, &count), EVENFALL_BUSY, "another thread", "two threads");
    pthread_join(other, NULL);

    /* The threads of evenfall do not live in a child. */
    pid_t child = fork();
    if (child == 0) {
        evenfall_status status = evenfall_feed_poll(feed, 1, 0, &updates, &count);
        evenfall_feed_free(feed);
        _exit(status == EVENFALL_BUSY && strstr(evenfall_last_error(), "fork") ? 0 : 1);
    }
    int status;
    waitpid(child, &status, 0);
    if (status != 0) {
        puts("a child used the feed of its parent");
        failures++;
    }
    evenfall_feed_free(feed);
    evenfall_feed_free(NULL);
}

static void refuse_messages(void)
{
    evenfall_receiver receiver = {.id = 7, .address = "127.0.0.1:0"};
    evenfall_root_options options = {.size = sizeof options, .address = "127.0.0.1:0"};
    options.receivers = &receiver;
    options.receiver_count = 1;
    evenfall_root *root;
    expect(evenfall_root_start(&options, &root), EVENFALL_WRONG_SETTINGS, "port 0", "a root that nobody finds");
    char address[32];
    free_address(address, sizeof address);
    options.address = address;
    expect(evenfall_root_start(&options, &root), EVENFALL_OK, NULL, "a root");
    unsigned char *long_message = calloc(65001, 1);
    expect(evenfall_root_publish(root, long_message, 65001, 0), EVENFALL_WRONG_ARGUMENT, "65001", "a long message");
    expect(evenfall_root_publish(root, NULL, 4, 0), EVENFALL_WRONG_ARGUMENT, "bytes", "a message without bytes");
    expect(evenfall_root_publish(root, long_message, 100, 0), EVENFALL_OK, NULL, "a message");
    free(long_message);
    evenfall_root_free(root);
    evenfall_root_free(NULL);
    evenfall_publisher_free(NULL);
}

int main(void)
{
    refuse_options();
    refuse_calls();
    refuse_messages();
    printf("evenfall %s, %d failures\n", evenfall_version(), failures);
    return failures != 0;
}
