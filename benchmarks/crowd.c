/* Many idle processes: fork N children that wait for a signal.
 *
 *     cc -O2 -o crowd crowd.c
 *     crowd 10000            prints "ready" when all are running; they die with it
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    int count = argc == 2 ? atoi(argv[1]) : 0;
    if (count < 1) {
        fprintf(stderr, "usage: crowd N\n");
        return 2;
    }
    for (int i = 0; i < count; i++) {
        pid_t child = fork();
        if (child < 0) {
            perror("fork");
            return 1;
        }
        if (child == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            for (;;)
                pause();
        }
    }
    puts("ready");
    fflush(stdout);
    for (;;)
        pause();
}
