/* Keeps up with a fast feed: takes all messages that wait at once, and prints how many came and were lost.
 *
 *   batches 127.0.0.1:9000 127.0.0.1:9007 7          the root's address, its own and its id
 */
#include <evenfall.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>

static int fail(const char *call)
{
    fprintf(stderr, "%s: %s\n", call, evenfall_last_error());
    return 1;
}

int main(int argc, char **argv)
{
    if (argc != 4) {
        fprintf(stderr, "usage: %s ROOT ADDRESS ID\n", argv[0]);
        return 2;
    }
    evenfall_feed_options options = {0};
    options.size = sizeof options;
    options.root = argv[1];
    options.address = argv[2];
    options.id = (uint32_t)atoi(argv[3]);
    evenfall_feed *feed;
    if (evenfall_subscribe(&options, &feed) != EVENFALL_OK)
        return fail("evenfall_subscribe");
    struct pollfd wait = {.events = POLLIN};
    if (evenfall_feed_descriptor(feed, &wait.fd) != EVENFALL_OK)
        return fail("evenfall_feed_descriptor");

    unsigned long long messages = 0, lost = 0;
    for (;;) {
        poll(&wait, 1, -1);
        const evenfall_update *updates;
        size_t count;
        evenfall_status status = evenfall_feed_poll(feed, 65536, 0, &updates, &count);
        if (status == EVENFALL_ENDED)
            break;
        if (status != EVENFALL_OK) {
            fail("evenfall_feed_poll");
            evenfall_feed_free(feed);
            return 1;
        }
        for (size_t at = 0; at < count; at++) {
            if (updates[at].kind == EVENFALL_LOST)
                lost += updates[at].lost;
            else
                messages++;
        }
    }
    printf("messages %llu lost %llu\n", messages, lost);
    evenfall_feed_free(feed);
    return 0;
}
