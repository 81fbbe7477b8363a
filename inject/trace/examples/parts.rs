//! Prints the parts of the shared memory, one a line: name, offset, length. For `tests/bench/run
//! memory`, which looks at what of them is resident. The argument is the ring's size in bytes.

use prof_trace::shared::Geometry;

fn main() {
    let bytes = std::env::args().nth(1).and_then(|a| a.parse().ok()).unwrap_or(64 << 20);
    for (name, range) in Geometry::for_ring(bytes).parts() {
        println!("{name} {} {}", range.start, range.len());
    }
}
