// A library for C programs, whose Go code takes memory from C.
package main

// #include <stdlib.h>
// static void *take(size_t size) { return malloc(size); }
import "C"
import "unsafe"

var kept []unsafe.Pointer

//export allocates
func allocates(n C.int) {
	for i := 0; i < int(n); i++ {
		kept = append(kept, C.take(1000))
	}
}

func main() {}
