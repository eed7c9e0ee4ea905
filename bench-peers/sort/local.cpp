// Sorts the keys of one rank, as its first step does, by the standard library and by ips4o.
//
//   local RECORDS ROUNDS     prints a line of JSON with records per ms of each, by round
#include "records.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#ifdef HAS_IPS4O
#include <ips4o.hpp>
#endif

template <typename Sort> static double rate(const Records &records, Sort sort)
{
    const auto begun = std::chrono::steady_clock::now();
    std::vector<Tag> tags = records.tags(0);
    sort(tags);
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begun;
    if (!std::is_sorted(tags.begin(), tags.end()))
        std::abort();
    return double(tags.size()) / took.count();
}

int main(int argc, char **argv)
{
    const std::size_t count = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 7000;
    const int rounds = argc > 2 ? std::atoi(argv[2]) : 5;
    for (int round = 0; round < rounds; round++) {
        const Records records = Records::draw(count, std::uint64_t(round) + 1);
        const double standard = rate(records, [](std::vector<Tag> &tags) { std::sort(tags.begin(), tags.end()); });
        std::printf("{\"std_sort\": %.1f", standard);
#ifdef HAS_IPS4O
        const double theirs = rate(records, [](std::vector<Tag> &tags) { ips4o::sort(tags.begin(), tags.end()); });
        std::printf(", \"ips4o\": %.1f", theirs);
#endif
        std::puts("}");
    }
}
