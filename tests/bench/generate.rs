//! Writes a recording of any size, to measure its readers.
//!
//!     cargo run --release -p prof-analyze --example generate -- FILE [EVENTS [THREADS [LIVE]]]
//!
//! Threads take turns of some events. Once LIVE blocks exist, blocks are freed by any thread, in a random order; one in
//! twenty is reallocated. There are 5,000 stacks over 2,000 functions, and a pass of the collector every 200,000
//! events.

use prof_trace::chunk;
use prof_trace::event::{Codec, MAX_EVENT};
use prof_trace::records::{End, Events, Module, Nodes, Pass, Pcs, Symbols, Target, Thread, kind};
use prof_trace::ticks::Ticks;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

const STACKS: u64 = 5000;
const FUNCTIONS: u64 = 2000;
const PER_PASS: u64 = 200_000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let path = args.next().ok_or("give the file to write")?;
    let mut args = args.map(|a| a.parse::<u64>());
    let mut next = |default| args.next().transpose().map(|v| v.unwrap_or(default));
    let (events, threads, live) = (next(10_000_000)?, next(4)?, next(100_000)?);
    let mut out = BufWriter::new(File::create(Path::new(&path))?);
    write(&mut out, events, threads.max(1), live.max(1))?;
    Ok(out.flush()?)
}

/// The events of a thread that are not written yet.
#[derive(Clone, Default)]
struct ThreadState {
    from: Codec,
    now: Codec,
    count: u32,
    bytes: Vec<u8>,
}

impl ThreadState {
    fn flush(&mut self, thread: usize, out: &mut Vec<u8>) {
        let (from, count) = (self.from, std::mem::take(&mut self.count));
        let bytes = std::mem::take(&mut self.bytes);
        let Codec { time, addr, node, .. } = from;
        let e = Events { thread: thread as u32 + 1, time, addr, node, count, bytes };
        chunk::put(out, kind::EVENTS, &e.encode());
        self.from = self.now;
    }

    /// Makes room for an event; `put` writes it and returns its length.
    fn add(&mut self, put: impl FnOnce(&mut Codec, *mut u8) -> usize) {
        let at = self.bytes.len();
        self.bytes.resize(at + MAX_EVENT, 0);
        let n = put(&mut self.now, self.bytes[at..].as_mut_ptr());
        self.bytes.truncate(at + n);
        self.count += 1;
    }
}

/// A generator of small random numbers.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % n
    }
}

fn write(out: &mut impl Write, events: u64, threads: u64, live: u64) -> std::io::Result<()> {
    let mut buf = preamble(threads);
    let mut r = Random(0x9e37_79b9_7f4a_7c15);
    let mut blocks: Vec<u64> = Vec::new();
    let mut unused: Vec<u64> = (1..=live + 1).rev().map(|i| 0x7f00_0000_0000 + i * 64).collect();
    let mut states = vec![ThreadState::default(); threads as usize];
    let (mut time, mut thread_index) = (1000, 0);
    for i in 0..events {
        if i % PER_PASS == 0 {
            for (t, state) in states.iter_mut().enumerate() {
                state.flush(t, &mut buf);
            }
            let pass = Pass {
                number: i / PER_PASS,
                ticks: Ticks(time + 1),
                clock_ns: time + 1,
                rss_pages: 1000,
                vss_pages: 2000,
            };
            chunk::put(&mut buf, kind::PASS, &pass.encode());
            out.write_all(&buf)?;
            buf.clear();
        }
        if r.below(4) == 0 {
            thread_index = r.below(threads) as usize;
        }
        time += 50 + r.below(200);
        let state = &mut states[thread_index];
        let full = blocks.len() as u64 >= live || (!blocks.is_empty() && r.below(100) < 45);
        let (size, node) = (16 + r.below(1000), 1 + r.below(STACKS) as u32);
        if full && r.below(20) == 0 {
            let at = r.below(blocks.len() as u64) as usize;
            let old = blocks[at];
            let addr = if r.below(2) == 0 { unused.pop().unwrap_or(old) } else { old };
            if addr != old {
                unused.push(old);
                blocks[at] = addr;
            }
            // SAFETY: `add` passes a pointer to room for an event.
            state.add(|c, p| unsafe {
                c.put_realloc(p, Ticks(time - 20), Ticks(time), old, addr, size.into(), node)
            });
        } else if full {
            let addr = blocks.swap_remove(r.below(blocks.len() as u64) as usize);
            unused.push(addr);
            // SAFETY: `add` passes a pointer to room for an event.
            state.add(|c, p| unsafe { c.put_free(p, Ticks(time), addr, 0) });
        } else {
            let addr = unused.pop().unwrap_or(64);
            blocks.push(addr);
            // SAFETY: `add` passes a pointer to room for an event.
            state.add(|c, p| unsafe { c.put_alloc(p, Ticks(time), addr, size.into(), node) });
        }
        if state.bytes.len() > 16_000 {
            state.flush(thread_index, &mut buf);
        }
    }
    for (t, state) in states.iter_mut().enumerate() {
        state.flush(t, &mut buf);
    }
    let end = End { ticks: Ticks(time + 1), reason: "detached".into() };
    chunk::put(&mut buf, kind::END, &end.encode());
    out.write_all(&buf)
}

/// Returns header, target, threads, a module with its functions, and the stacks: trees of ten frames.
fn preamble(threads: u64) -> Vec<u8> {
    let mut buf = chunk::file_header().to_vec();
    let target = Target {
        pid: 4_000_000,
        exe: "/opt/generated".into(),
        cmdline: vec!["generated".into()],
        comm: "generated".into(),
        arch: "x86_64".into(),
        pointer_size: 8,
        page_size: 4096,
        start_ticks: Ticks(1000),
        ticks_per_sec: 1_000_000_000,
        ..Target::default()
    };
    chunk::put(&mut buf, kind::TARGET, &target.encode());
    for t in 1..=threads as u32 {
        let thread = Thread { number: t, tid: 4_000_000 + t, name: format!("worker-{t}") };
        chunk::put(&mut buf, kind::THREAD, &thread.encode());
    }
    let (start, bias) = (0x55_0000_0000, 0x55_0000_0000);
    let module = Module {
        number: 1,
        start,
        end: start + FUNCTIONS * 64,
        bias,
        path: "/opt/generated".into(),
        ..Module::default()
    };
    chunk::put(&mut buf, kind::MODULE, &module.encode());
    let mut symbols = Symbols { module: 1, ..Symbols::default() };
    for i in 0..FUNCTIONS {
        let name = format!("function_{i}");
        symbols.symbols.extend([i * 64, 64, symbols.names.len() as u64, name.len() as u64]);
        symbols.names.extend(name.as_bytes());
    }
    chunk::put(&mut buf, kind::SYMBOLS, &symbols.encode());
    let pcs = (0..FUNCTIONS).flat_map(|i| [i + 1, start + i * 64 + 8, 1]).collect();
    chunk::put(&mut buf, kind::PCS, &Pcs { triples: pcs }.encode());
    let parent = |node: u64| if node.is_multiple_of(10) { 0 } else { node - 1 };
    let nodes = (1..=STACKS).flat_map(|n| [n, parent(n), 1 + n % FUNCTIONS]).collect();
    chunk::put(&mut buf, kind::NODES, &Nodes { triples: nodes }.encode());
    buf
}
