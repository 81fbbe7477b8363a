// Calls Go code of a library (golib.go) in its first thread and in another, which Go has not made.
#include <pthread.h>
#include <stddef.h>

void allocates(int n);

static void *thread(void *arg) {
    allocates(100);
    return arg;
}

int main(void) {
    for (int i = 0; i < 3; i++)
        allocates(50);
    pthread_t t;
    pthread_create(&t, NULL, thread, NULL);
    return pthread_join(t, NULL);
}
