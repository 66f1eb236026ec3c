/* The minimum cost of a scrape: read the files in a list, and do nothing with them.
 *
 *     cc -O2 -o readers readers.c
 *     yes '' | head -100 | readers open LIST     each round opens, reads and closes every file
 *     yes '' | head -100 | readers keep LIST     descriptors stay open; a round is one pread() per
 *                                                file, and another if it fills the buffer
 *
 * A line on standard input starts a round, so that something can happen in between. Prints one JSON
 * object at the end: CPU and wall nanoseconds, system calls and bytes, each per round.
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

/* A file that is missing or cannot be read counts as empty; this is not an error here. */
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

static char **read_list(const char *name, size_t *count)
{
    FILE *list = fopen(name, "r");
    if (!list)
        fail(name);
    char **paths = NULL, *line = NULL;
    size_t room = 0;
    for (ssize_t length; (length = getline(&line, &room, list)) > 0; line = NULL, room = 0) {
        if (line[length - 1] == '\n')
            line[length - 1] = 0;
        paths = realloc(paths, (*count + 1) * sizeof *paths);
        if (!paths)
            fail("realloc");
        paths[(*count)++] = line;
    }
    fclose(list);
    return paths;
}

int main(int argc, char **argv)
{
    if (argc != 3 || (strcmp(argv[1], "open") && strcmp(argv[1], "keep"))) {
        fprintf(stderr, "usage: readers open|keep LIST\n");
        return 2;
    }
    int keep = !strcmp(argv[1], "keep");
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
    size_t count = 0;
    char **paths = read_list(argv[2], &count);
    int *fds = calloc(count + 1, sizeof *fds);
    if (!fds)
        fail("calloc");
    if (keep)
        for (size_t i = 0; i < count; i++)
            if ((fds[i] = open(paths[i], O_RDONLY | O_CLOEXEC)) < 0 && errno == EMFILE)
                fail(paths[i]);

    double cpu = 0, wall = 0;
    int rounds = 0;
    for (int c; (c = getchar()) != EOF;) {
        if (c != '\n')
            continue;
        double cpu_before = now(CLOCK_PROCESS_CPUTIME_ID), wall_before = now(CLOCK_MONOTONIC);
        for (size_t i = 0; i < count; i++)
            keep ? read_kept(fds[i]) : read_opened(paths[i]);
        cpu += now(CLOCK_PROCESS_CPUTIME_ID) - cpu_before;
        wall += now(CLOCK_MONOTONIC) - wall_before;
        rounds++;
    }
    if (!rounds)
        return 1;
    printf("{\"files\": %zu, \"cpu_ns\": %.0f, \"wall_ns\": %.0f, \"calls\": %.1f, \"bytes\": %.1f}\n",
           count, cpu / rounds, wall / rounds, (double)calls / rounds, (double)bytes / rounds);
    return 0;
}
