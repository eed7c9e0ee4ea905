// A sample sort by MPI, with the plan of `evenfall sort` at one level: keys and values apart, local sort,
// splitters out of samples, both shuffled, merge, each value copied to its place once.
//
//   mpirun -n RANKS sample_sort RECORDS ROUNDS     rank 0 prints seconds, a line a round
#include "records.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <mpi.h>
#include <numeric>
#include <queue>

// Samples that each rank draws for each rank, as `evenfall sort --pivots 1` does.
constexpr std::size_t SAMPLES = 1;

static std::vector<int> starts(const std::vector<int> &counts)
{
    std::vector<int> starts(counts.size());
    std::exclusive_scan(counts.begin(), counts.end(), starts.begin(), 0);
    return starts;
}

static std::vector<unsigned char> exchange(const std::vector<unsigned char> &out, std::vector<int> counts, std::size_t width,
                                           std::vector<int> &received)
{
    const int ranks = int(counts.size());
    received.resize(counts.size());
    MPI_Alltoall(counts.data(), 1, MPI_INT, received.data(), 1, MPI_INT, MPI_COMM_WORLD);
    MPI_Datatype row;
    MPI_Type_contiguous(int(width), MPI_BYTE, &row);
    MPI_Type_commit(&row);
    const std::size_t all = std::size_t(std::accumulate(received.begin(), received.end(), 0L));
    std::vector<unsigned char> in(all * width);
    const std::vector<int> from = starts(counts), to = starts(received);
    MPI_Alltoallv(out.data(), counts.data(), from.data(), row, in.data(), received.data(), to.data(), row, MPI_COMM_WORLD);
    MPI_Type_free(&row);
    (void)ranks;
    return in;
}

static double sort_all(const Records &records, int rank, int ranks)
{
    MPI_Barrier(MPI_COMM_WORLD);
    const double begun = MPI_Wtime();
    std::vector<Tag> tags = records.tags(std::uint32_t(rank));
    std::sort(tags.begin(), tags.end());

    // Splitters.
    const std::size_t drawn = SAMPLES * std::size_t(ranks);
    std::vector<Tag> samples(drawn), all(drawn * std::size_t(ranks));
    for (std::size_t at = 0; at < drawn; at++)
        samples[at] = tags[(at + 1) * tags.size() / drawn - 1];
    MPI_Allgather(samples.data(), int(drawn * sizeof(Tag)), MPI_BYTE, all.data(), int(drawn * sizeof(Tag)), MPI_BYTE, MPI_COMM_WORLD);
    std::sort(all.begin(), all.end());
    std::vector<int> counts(std::size_t(ranks), 0);
    std::size_t begin = 0;
    for (int to = 0; to < ranks; to++) {
        // A sample stands for half of the records on each of its sides.
        const std::size_t cut = std::size_t(to + 1) * all.size() / std::size_t(ranks);
        std::size_t end = tags.size();
        if (to + 1 < ranks) {
            const Tag splitter = cut < all.size() ? all[cut - 1] / 2 + all[cut] / 2 : all.back();
            end = std::size_t(std::upper_bound(tags.begin(), tags.end(), splitter) - tags.begin());
        }
        counts[std::size_t(to)] = int(end - begin);
        begin = end;
    }

    // Keys and values in their order, shuffled.
    std::vector<unsigned char> keys(records.keys.size()), values(records.values.size());
    for (std::size_t at = 0; at < tags.size(); at++) {
        const std::size_t from = index_of(tags[at]);
        std::memcpy(&keys[at * KEY], &records.keys[from * KEY], KEY);
        std::memcpy(&values[at * VALUE], &records.values[from * VALUE], VALUE);
    }
    std::vector<int> received;
    const std::vector<unsigned char> my_keys = exchange(keys, counts, KEY, received);
    const std::vector<unsigned char> my_values = exchange(values, counts, VALUE, received);

    // Merge, and each value to its place.
    const std::vector<int> from = starts(received);
    using Head = std::pair<Tag, std::pair<int, int>>;
    std::priority_queue<Head, std::vector<Head>, std::greater<Head>> heads;
    auto push = [&](int list, int at) {
        if (at < received[std::size_t(list)]) {
            const std::size_t place = std::size_t(from[std::size_t(list)] + at);
            heads.push({tag(&my_keys[place * KEY], std::uint32_t(list), std::uint32_t(at)), {list, at}});
        }
    };
    for (int list = 0; list < ranks; list++)
        push(list, 0);
    std::vector<unsigned char> sorted_keys(my_keys.size()), sorted_values(my_values.size());
    for (std::size_t to = 0; !heads.empty(); to++) {
        const auto [list, at] = heads.top().second;
        heads.pop();
        const std::size_t place = std::size_t(from[std::size_t(list)] + at);
        std::memcpy(&sorted_keys[to * KEY], &my_keys[place * KEY], KEY);
        std::memcpy(&sorted_values[to * VALUE], &my_values[place * VALUE], VALUE);
        push(list, at + 1);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    const double took = MPI_Wtime() - begun;
    for (std::size_t at = KEY; at + KEY <= sorted_keys.size(); at += KEY)
        if (std::memcmp(&sorted_keys[at - KEY], &sorted_keys[at], KEY) > 0)
            MPI_Abort(MPI_COMM_WORLD, 1);
    return took;
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    int rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    const std::size_t count = std::strtoull(argv[1], nullptr, 10) / std::size_t(ranks);
    const int rounds = std::atoi(argv[2]);
    for (int round = 0; round < rounds; round++) {
        const Records records = Records::draw(count, std::uint64_t(round * ranks + rank) + 1);
        const double took = sort_all(records, rank, ranks);
        if (rank == 0)
            std::printf("%.6f\n", took);
    }
    MPI_Finalize();
}
