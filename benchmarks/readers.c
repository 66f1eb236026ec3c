/* The least a scrape can cost: read the files named on standard input, and do nothing with them.
 *
 *     cc -O2 -o readers readers.c
 *     readers open 100 < paths     each round opens, reads to the end and closes every file
 *     readers keep 100 < paths     descriptors stay open; each round is one pread() per file,
 *                                  and one more where a file fills the buffer
 *
 * Prints one JSON object: CPU and wall nanoseconds, system calls and bytes, each per round.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

static char buffer[65536];
static unsigned long long calls, bytes;

static double now(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

/* A file that is gone or that answers with an error has no bytes; that is no failure here. */
static void read_opened(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    calls++;
    if (fd < 0)
        return;
    ssize_t got;
    do {
        got = read(fd, buffer, sizeof buffer);
        calls++;
        if (got > 0)
            bytes += got;
    } while (got == (ssize_t)sizeof buffer);
    close(fd);
    calls++;
}

static void read_kept(int fd)
{
    off_t offset = 0;
    ssize_t got;
    do {
        got = pread(fd, buffer, sizeof buffer, offset);
        calls++;
        if (got > 0) {
            bytes += got;
            offset += got;
        }
    } while (got == (ssize_t)sizeof buffer);
}

int main(int argc, char **argv)
{
    if (argc != 3 || (strcmp(argv[1], "open") && strcmp(argv[1], "keep")) || atoi(argv[2]) < 1) {
        fprintf(stderr, "usage: readers open|keep ROUNDS < paths\n");
        return 2;
    }
    int keep = !strcmp(argv[1], "keep"), rounds = atoi(argv[2]);
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }

    char **paths = NULL, *line = NULL;
    size_t count = 0, room = 0;
    for (ssize_t length; (length = getline(&line, &room, stdin)) > 0; line = NULL, room = 0) {
        if (line[length - 1] == '\n')
            line[length - 1] = 0;
        paths = realloc(paths, (count + 1) * sizeof *paths);
        if (!paths)
            fail("realloc");
        paths[count++] = line;
    }
    int *fds = calloc(count + 1, sizeof *fds);
    if (!fds)
        fail("calloc");
    if (keep)
        for (size_t i = 0; i < count; i++)
            if ((fds[i] = open(paths[i], O_RDONLY | O_CLOEXEC)) < 0 && errno == EMFILE)
                fail(paths[i]);

    double cpu = now(CLOCK_PROCESS_CPUTIME_ID), wall = now(CLOCK_MONOTONIC);
    for (int round = 0; round < rounds; round++)
        for (size_t i = 0; i < count; i++)
            keep ? read_kept(fds[i]) : read_opened(paths[i]);
    cpu = now(CLOCK_PROCESS_CPUTIME_ID) - cpu;
    wall = now(CLOCK_MONOTONIC) - wall;
    printf("{\"files\": %zu, \"cpu_ns\": %.0f, \"wall_ns\": %.0f, \"calls\": %.1f, \"bytes\": %.1f}\n",
           count, cpu / rounds, wall / rounds, (double)calls / rounds, (double)bytes / rounds);
    return 0;
}
