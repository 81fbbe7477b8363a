// Answers each line "MODE DEPTH PAIRS" with the processor's time in ns for a malloc and free that C does for Go.
package main

// #include <stdio.h>
// #include <stdlib.h>
// #include <time.h>
// static void *volatile kept;
// static void pairs(long n) {
//     for (long i = 0; i < n; i++) {
//         kept = malloc(100);
//         free(kept);
//     }
// }
// struct question {
//     char mode[16];
//     int depth, pairs;
// };
// static int ask(struct question *q) { return scanf("%15s %d %d", q->mode, &q->depth, &q->pairs); }
// static double now(void) {
//     struct timespec t;
//     clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
//     return t.tv_sec * 1e9 + t.tv_nsec;
// }
import "C"
import (
	"fmt"
	"runtime"
	"sync"
)

// One call of C for all pairs.
//
//go:noinline
func once(n int) { C.pairs(C.long(n)) }

// A call of C for each pair.
//
//go:noinline
func each(n int) {
	for i := 0; i < n; i++ {
		C.pairs(1)
	}
}

// The same, with another goroutine on the thread after each.
//
//go:noinline
func turns(n int) {
	for i := 0; i < n; i++ {
		C.pairs(1)
		runtime.Gosched()
	}
}

//go:noinline
func deeper(f func(int), n, depth int) {
	if depth > 1 {
		deeper(f, n, depth-1)
	} else {
		f(n)
	}
}

var modes = map[string]struct {
	f          func(int)
	goroutines int
}{"once": {once, 1}, "each": {each, 1}, "turns": {turns, 20}, "many": {turns, 500}}

func main() {
	runtime.GOMAXPROCS(1)
	fmt.Println("ready")
	var q C.struct_question
	for C.ask(&q) == 3 {
		m, depth, n := modes[C.GoString(&q.mode[0])], int(q.depth), int(q.pairs)
		var all sync.WaitGroup
		began := C.now()
		for i := 0; i < m.goroutines; i++ {
			all.Add(1)
			go func() {
				deeper(m.f, n/m.goroutines, depth)
				all.Done()
			}()
		}
		all.Wait()
		fmt.Printf("done %.1f\n", float64(C.now()-began)/float64(n))
	}
}
