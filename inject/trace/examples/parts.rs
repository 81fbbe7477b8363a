//! Prints the parts of the shared memory, one per line: name, offset, length. `tests/bench/run memory` uses
//! it to find which of them are resident. The argument is the ring's size in bytes.

use prof_trace::shared::Geometry;

fn main() {
    let bytes = std::env::args().nth(1).and_then(|a| a.parse().ok()).unwrap_or(64 << 20);
    for (name, range) in Geometry::for_ring(bytes).parts() {
        println!("{name} {} {}", range.start, range.len());
    }
}
