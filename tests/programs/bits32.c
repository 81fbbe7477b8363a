/* A 32-bit process without any library: waits for its input to end. */
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
