// Takes a feed in C++17: a handle that frees itself, and a wait with a limit.
//
//   subscribe evenfall.toml desk-2
#include <evenfall.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
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
    options.decoded = 1;
    evenfall_feed *feed = nullptr;
    expect(evenfall_subscribe(&options, &feed));
    return Feed(feed);
}

// A field that a message lacks, as C++ says it.
std::optional<std::uint64_t> shares_of(const evenfall_update &update)
{
    return update.shares == UINT64_MAX ? std::nullopt : std::optional(update.shares);
}

std::optional<std::int64_t> price_of(const evenfall_update &update)
{
    return update.price == INT64_MIN ? std::nullopt : std::optional(update.price);
}

void take(evenfall_feed *feed)
{
    using namespace std::chrono_literals;
    unsigned long long messages = 0, lost = 0, early = 0, adds = 0, named = 0, shares = 0;
    long long prices = 0;
    std::map<std::string, unsigned long long> by_symbol;
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
                adds += updates[at].type == 'A';
                shares += shares_of(updates[at]).value_or(0);
                prices += price_of(updates[at]).value_or(0);
                if (updates[at].symbol[0] != '\0')
                    by_symbol[updates[at].symbol]++;
            }
        }
    }
    char hash[65];
    expect(evenfall_feed_hash(feed, hash));
    for (const auto &symbol : by_symbol)
        named += symbol.second;
    std::printf("messages %llu lost %llu early %llu adds %llu named %llu shares %llu dollars %.4f hash %s\n",
                messages, lost, early, adds, named, shares,
                static_cast<double>(prices) / EVENFALL_PRICE_UNITS, hash);
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
