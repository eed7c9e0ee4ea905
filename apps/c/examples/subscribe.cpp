// Takes a feed in C++17: a handle that frees itself, and a wait with a limit.
//
//   subscribe evenfall.toml desk-2
#include <evenfall.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>

namespace {

void expect(evenfall_status status)
{
    if (status != EVENFALL_OK)
        throw std::runtime_error(evenfall_last_error());
}

struct FreeFeed {
    void operator()(evenfall_feed *feed) const { evenfall_feed_free(feed); }
};
using Feed = std::unique_ptr<evenfall_feed, FreeFeed>;

Feed subscribe(const char *config, const char *name)
{
    evenfall_feed_options options{};
    options.size = sizeof options;
    options.config = config;
    options.name = name;
    options.hashed = 1;
    evenfall_feed *feed = nullptr;
    expect(evenfall_subscribe(&options, &feed));
    return Feed(feed);
}

void take(evenfall_feed *feed)
{
    using namespace std::chrono_literals;
    unsigned long long messages = 0, lost = 0, early = 0;
    for (;;) {
        const evenfall_update *updates = nullptr;
        std::size_t count = 0;
        const auto wait = std::chrono::nanoseconds(200ms).count();
        const auto status = evenfall_feed_poll(feed, 4096, wait, &updates, &count);
        if (status == EVENFALL_ENDED)
            break;
        expect(status);
        for (std::size_t at = 0; at < count; at++) {
            if (updates[at].kind == EVENFALL_LOST) {
                lost += updates[at].lost;
            } else {
                messages++;
                early += updates[at].released_ns < updates[at].deadline_ns;
            }
        }
    }
    char hash[65];
    expect(evenfall_feed_hash(feed, hash));
    std::printf("messages %llu lost %llu early %llu hash %s\n", messages, lost, early, hash);
}

} // namespace

int main(int argc, char **argv)
{
    if (argc != 3) {
        std::fprintf(stderr, "usage: %s SETTINGS NODE\n", argv[0]);
        return 2;
    }
    try {
        take(subscribe(argv[1], argv[2]).get());
    } catch (const std::exception &error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}
