/* The root of a run in a program of C: it publishes numbered messages to one receiver.
 *
 *   publish 127.0.0.1:9000 7 127.0.0.1:9007 1000     own address, the receiver's id and address, messages
 */
#include <evenfall.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static int fail(const char *call)
{
    fprintf(stderr, "%s: %s\n", call, evenfall_last_error());
    return 1;
}

int main(int argc, char **argv)
{
    if (argc != 5) {
        fprintf(stderr, "usage: %s ADDRESS RECEIVER-ID RECEIVER-ADDRESS MESSAGES\n", argv[0]);
        return 2;
    }
    evenfall_receiver receiver = {.id = (uint32_t)atoi(argv[2]), .address = argv[3]};
    evenfall_root_options options = {0};
    options.size = sizeof options;
    options.address = argv[1];
    options.receivers = &receiver;
    options.receiver_count = 1;
    evenfall_root *root;
    if (evenfall_root_start(&options, &root) != EVENFALL_OK)
        return fail("evenfall_root_start");

    const uint64_t wanted = strtoull(argv[4], NULL, 10);
    for (uint64_t number = 0; number < wanted; number++) {
        char message[32];
        int length = snprintf(message, sizeof message, "trade %llu", (unsigned long long)number);
        if (evenfall_root_publish(root, (const uint8_t *)message, (size_t)length, 0) != EVENFALL_OK)
            return fail("evenfall_root_publish");
    }
    uint64_t sent;
    if (evenfall_root_finish(root, &sent) != EVENFALL_OK)
        return fail("evenfall_root_finish");
    printf("messages %llu\n", (unsigned long long)sent);
    evenfall_root_free(root);
    return 0;
}
