/* "fail" looks for a symbol that nobody has; "fetch" prints what dlerror says; "kept" prints the message that it has said last
 * again. */
#define _GNU_SOURCE
#include "common.h"
#include <dlfcn.h>

int main(void) {
    const char *message = "none";
    free(malloc(100));
    say("ready\n");
    for (;;) {
        const char *word = command();
        if (is(word, "fail")) {
            if (dlsym(RTLD_DEFAULT, "no_such_function")) fail("a symbol");
            say("done\n");
        } else if (is(word, "fetch")) {
            message = dlerror();
            if (!message) message = "nothing";
            say("done %s\n", message);
        } else if (is(word, "kept")) {
            say("done %s\n", message);
        } else {
            fail("what is %s?", word);
        }
    }
}
