// Go code that takes memory from C, in a goroutine and in a thread that Go has made.
package main

// #include <stdlib.h>
// static void *take(size_t size) { return malloc(size); }
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

func main() {
	deeper(100, 0)
	done := make(chan bool)
	go func() {
		deeper(200, 20)
		done <- true
	}()
	<-done
}
