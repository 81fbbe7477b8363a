/* A process of another width: answers each line until its input ends. On 32-bit x86 it needs no library, as none may
   be installed. */
#ifdef __i386__
void _start(void) {
    static char byte;
    for (;;) {
        int got;
        __asm__ volatile("int $0x80" : "=a"(got) : "a"(3), "b"(0), "c"(&byte), "d"(1) : "memory");
        if (got <= 0) __asm__ volatile("int $0x80" : : "a"(1), "b"(0));
        if (byte == '\n') {
            static const char line[] = "done\n";
            __asm__ volatile("int $0x80" : "=a"(got) : "a"(4), "b"(1), "c"(line), "d"(5));
        }
    }
}
#else
#include <stdio.h>

int main(void) {
    int c;
    while ((c = getchar()) != EOF) {
        if (c == '\n') {
            puts("done");
            fflush(stdout);
        }
    }
    return 0;
}
#endif
