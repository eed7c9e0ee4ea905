/* MPI_Alltoallv over a shuffle matrix, measured as `evenfall bench shuffle` measures itself: a
 * round lasts from the first rank's call to the last rank's return, by the host's monotonic clock.
 *
 *   mpicc -O2 -o alltoallv alltoallv.c
 *   mpirun -n 8 ./alltoallv MATRIX ROUNDS WARM_UP
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double clock_us(clockid_t id) {
    struct timespec t;
    clock_gettime(id, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *all, int count) {
    qsort(all, (size_t)count, sizeof *all, by_value);
    return all[count / 2];
}

static void fail(const char *what) {
    fprintf(stderr, "alltoallv: %s\n", what);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

/* Reads the matrix, row by row. The text after a '#' is a comment. */
static int *read_matrix(const char *path, int ranks) {
    FILE *file = fopen(path, "r");
    int *cells = calloc((size_t)ranks * (size_t)ranks, sizeof *cells);
    int count = 0, c;
    if (!file || !cells) fail("the matrix cannot be read");
    while ((c = fgetc(file)) != EOF) {
        if (c == '#') {
            while ((c = fgetc(file)) != EOF && c != '\n') {}
        } else if (c >= '0' && c <= '9') {
            long long bytes = 0;
            for (; c >= '0' && c <= '9'; c = fgetc(file)) bytes = bytes * 10 + (c - '0');
            if (count == ranks * ranks) fail("more cells than ranks squared");
            cells[count++] = (int)bytes;
        }
    }
    fclose(file);
    if (count != ranks * ranks) fail("fewer cells than ranks squared");
    return cells;
}

/* A byte of a message. It depends on both ranks, the round and the place in the message. */
static unsigned char byte_of(int from, int to, int round, int at) {
    return (unsigned char)((unsigned)at * 31u + (unsigned)from * 7u + (unsigned)to * 131u +
                           (unsigned)round * 17u);
}

int main(int argc, char **argv) {
    int me, ranks;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (argc != 4) fail("give MATRIX ROUNDS WARM_UP");
    int rounds = atoi(argv[2]), warm_up = atoi(argv[3]);
    int *cells = read_matrix(argv[1], ranks);
    size_t n = (size_t)ranks;
    int *sends = calloc(n, sizeof *sends), *here = calloc(n, sizeof *here);
    int *to = calloc(n, sizeof *to), *from = calloc(n, sizeof *from);
    double *took = calloc((size_t)rounds + 1, sizeof *took);
    double *cpu = calloc((size_t)rounds + 1, sizeof *cpu);
    if (!sends || !here || !to || !from || !took || !cpu) fail("no memory");
    int out = 0, in = 0;
    for (int r = 0; r < ranks; r++) {
        sends[r] = cells[me * ranks + r], here[r] = cells[r * ranks + me];
        to[r] = out, from[r] = in;
        out += sends[r], in += here[r];
    }
    unsigned char *send = malloc((size_t)out + 1), *receive = malloc((size_t)in + 1);
    if (!send || !receive) fail("no memory");
    for (int round = 0; round < warm_up + rounds; round++) {
        for (int r = 0; r < ranks; r++)
            for (int i = 0; i < sends[r]; i++) send[to[r] + i] = byte_of(me, r, round, i);
        memset(receive, 0, (size_t)in);
        MPI_Barrier(MPI_COMM_WORLD);
        double begin = clock_us(CLOCK_MONOTONIC), used = clock_us(CLOCK_PROCESS_CPUTIME_ID);
        MPI_Alltoallv(send, sends, to, MPI_BYTE, receive, here, from, MPI_BYTE, MPI_COMM_WORLD);
        double end = clock_us(CLOCK_MONOTONIC);
        used = clock_us(CLOCK_PROCESS_CPUTIME_ID) - used;
        MPI_Barrier(MPI_COMM_WORLD);
        for (int r = 0; r < ranks; r++)
            for (int i = 0; i < here[r]; i++)
                if (receive[from[r] + i] != byte_of(r, me, round, i)) fail("wrong contents");
        double first, last, all;
        MPI_Reduce(&begin, &first, 1, MPI_DOUBLE, MPI_MIN, 0, MPI_COMM_WORLD);
        MPI_Reduce(&end, &last, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
        MPI_Reduce(&used, &all, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
        if (me == 0 && round >= warm_up) {
            took[round - warm_up] = last - first;
            cpu[round - warm_up] = all / ((double)ranks * (ranks - 1));
        }
    }
    if (me == 0)
        printf("{\"completion_us\": %.1f, \"cpu_us_per_message\": %.2f}\n", median(took, rounds),
               median(cpu, rounds));
    MPI_Finalize();
    return 0;
}
