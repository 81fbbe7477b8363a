//! The Rust version of trial.c: boxed slices in a vector; "own" leaks boxes of 3,000 bytes.
use std::time::{Duration, Instant};

fn main() {
    let leaks = std::env::args().nth(2).is_some_and(|a| a == "own");
    let mut x = 12345u32;
    let mut next = move || {
        x = x.wrapping_mul(1664525).wrapping_add(1013904223);
        x >> 12
    };
    let mut cache: Vec<Box<[u8]>> = (0..20000).map(|_| vec![1; 700].into_boxed_slice()).collect();
    let mut request = |leak: bool| {
        let at = next() as usize % cache.len();
        cache[at] = vec![2; 700].into_boxed_slice();
        if leak {
            std::mem::forget(std::hint::black_box(vec![3u8; 3000].into_boxed_slice()));
        }
    };
    (0..40000).for_each(|_| request(false));
    println!("ready");
    let start = Instant::now();
    let mut n = 0;
    loop {
        while n < start.elapsed().as_millis() {
            request(leaks);
            n += 1;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}
