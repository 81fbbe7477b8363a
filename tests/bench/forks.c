/* Forks children that end at once, and prints for each line "N": "done" and the median time of a fork in this process, in us. The
 * first argument is the number of MiB that the process has. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 10000 };
static double times[MOST];

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static int order(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    int n;
    size_t all = (argc > 1 ? strtoul(argv[1], NULL, 10) : 8) << 20;
    char *memory = malloc(all);
    if (!memory) return 1;
    memset(memory, 1, all);
    puts("ready");
    fflush(stdout);
    while (scanf("%d", &n) == 1 && n <= MOST) {
        for (int i = 0; i < n; i++) {
            double begun = now();
            pid_t pid = fork();
            if (pid == 0) _exit(0);
            times[i] = now() - begun;
            waitpid(pid, NULL, 0);
        }
        qsort(times, (size_t)n, sizeof *times, order);
        printf("done %.1f\n", times[n / 2]);
        fflush(stdout);
    }
}
