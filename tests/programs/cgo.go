// Go code that takes memory from C: in a goroutine, in a thread that Go has made, and where C has called Go.
package main

// #include <stdlib.h>
// static void *take(size_t size) { return malloc(size); }
// static void *take_in_callback(size_t size) { return malloc(size); }
// static void *take_after_callback(size_t size) { return malloc(size); }
// void calledByC(int);
// static void *calls_go(int depth) {
//     calledByC(depth);
//     return take_after_callback(3000);
// }
import "C"
import "unsafe"

var kept []unsafe.Pointer

//go:noinline
func allocates(n int) {
	for i := 0; i < n; i++ {
		kept = append(kept, C.take(1000))
	}
}

//go:noinline
func deeper(n, depth int) {
	if depth > 0 {
		deeper(n, depth-1)
	} else {
		allocates(n)
	}
}

// Makes the goroutine's stack grow, and so move.
//
//go:noinline
func grows(depth int) byte {
	var room [512]byte
	if depth > 0 {
		room[depth] = grows(depth - 1)
	}
	return room[depth/2]
}

//export calledByC
func calledByC(depth C.int) {
	grows(1 << (5 + depth))
	if depth > 0 {
		callsC(depth - 1)
	} else {
		kept = append(kept, C.take_in_callback(2000))
	}
}

//go:noinline
func callsC(depth C.int) {
	kept = append(kept, C.calls_go(depth))
}

func main() {
	deeper(100, 0)
	done := make(chan bool)
	go func() {
		deeper(200, 20)
		done <- true
	}()
	<-done
	for i := 0; i < 50; i++ {
		go func() {
			callsC(2)
			done <- true
		}()
		<-done
	}
}
