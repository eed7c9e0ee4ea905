// Records as `evenfall sort` has them: 10 bytes of key and 90 bytes of value, kept apart.
#pragma once
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

constexpr std::size_t KEY = 10, VALUE = 90;

// A key, then where it comes from: rank and index, so that equal keys keep their order.
__extension__ typedef unsigned __int128 Tag;

inline Tag tag(const unsigned char *key, std::uint32_t rank, std::uint32_t index)
{
    std::uint64_t high;
    std::uint16_t low;
    std::memcpy(&high, key, 8);
    std::memcpy(&low, key + 8, 2);
    return Tag(__builtin_bswap64(high)) << 64 | Tag(__builtin_bswap16(low)) << 48 | Tag(rank & 0xffff) << 32 | index;
}

inline std::uint32_t index_of(Tag tag) { return std::uint32_t(tag); }
inline std::uint32_t rank_of(Tag tag) { return std::uint32_t(tag >> 32) & 0xffff; }

struct Records {
    std::vector<unsigned char> keys, values;

    static Records draw(std::size_t count, std::uint64_t seed)
    {
        Records records{std::vector<unsigned char>(count * KEY), std::vector<unsigned char>(count * VALUE)};
        std::mt19937_64 random(seed);
        auto fill = [&](std::vector<unsigned char> &bytes) {
            for (std::size_t at = 0; at < bytes.size(); at += 8) {
                const std::uint64_t word = random();
                std::memcpy(&bytes[at], &word, std::min<std::size_t>(8, bytes.size() - at));
            }
        };
        fill(records.keys);
        fill(records.values);
        return records;
    }

    std::size_t count() const { return keys.size() / KEY; }

    std::vector<Tag> tags(std::uint32_t rank) const
    {
        std::vector<Tag> tags(count());
        for (std::size_t at = 0; at < tags.size(); at++)
            tags[at] = tag(&keys[at * KEY], rank, std::uint32_t(at));
        return tags;
    }
};
