/* Takes a feed, and prints what came, what was lost, sums of the messages' fields and the hash of all
 * messages.
 *
 *   subscribe evenfall.toml desk-1                     as a node of a settings file
 *   subscribe 127.0.0.1:9000 127.0.0.1:9007 7          by the root's address, its own and its id
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
    evenfall_feed_options options = {0};
    options.size = sizeof options;
    options.hashed = 1;
    options.decoded = 1;
    if (argc == 3) {
        options.config = argv[1];
        options.name = argv[2];
    } else if (argc == 4) {
        options.root = argv[1];
        options.address = argv[2];
        options.id = (uint32_t)atoi(argv[3]);
    } else {
        fprintf(stderr, "usage: %s SETTINGS NODE | ROOT ADDRESS ID\n", argv[0]);
        return 2;
    }
    evenfall_feed *feed;
    if (evenfall_subscribe(&options, &feed) != EVENFALL_OK)
        return fail("evenfall_subscribe");

    struct pollfd wait = {.events = POLLIN};
    if (evenfall_feed_descriptor(feed, &wait.fd) != EVENFALL_OK)
        return fail("evenfall_feed_descriptor");

    unsigned long long messages = 0, lost = 0, bytes = 0, early = 0;
    unsigned long long adds = 0, named = 0, shares = 0;
    long long prices = 0;
    for (;;) {
        /* The program may wait for its other sockets in the same call. */
        poll(&wait, 1, -1);
        const evenfall_update *updates;
        size_t count;
        evenfall_status status = evenfall_feed_poll(feed, 4096, 0, &updates, &count);
        if (status == EVENFALL_ENDED)
            break;
        if (status != EVENFALL_OK) {
            fail("evenfall_feed_poll");
            evenfall_feed_free(feed);
            return 1;
        }
        /* The bytes are lent until the next poll. */
        for (size_t at = 0; at < count; at++) {
            const evenfall_update *update = &updates[at];
            if (update->kind == EVENFALL_LOST) {
                lost += update->lost;
                continue;
            }
            messages++;
            bytes += update->length;
            early += update->released_ns < update->deadline_ns;
            /* A field that the message lacks is 0, empty, UINT64_MAX or INT64_MIN. */
            adds += update->type == 'A';
            named += update->symbol[0] != '\0';
            shares += update->shares == UINT64_MAX ? 0 : update->shares;
            prices += update->price == INT64_MIN ? 0 : update->price;
        }
    }
    char hash[65];
    if (evenfall_feed_hash(feed, hash) != EVENFALL_OK)
        return fail("evenfall_feed_hash");
    printf("messages %llu lost %llu bytes %llu early %llu adds %llu named %llu shares %llu dollars %.4f hash %s\n",
           messages, lost, bytes, early, adds, named, shares, (double)prices / EVENFALL_PRICE_UNITS, hash);
    evenfall_feed_free(feed);
    return 0;
}
