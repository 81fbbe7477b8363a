//! Makes recordings of random programs, and keeps everything that happened in them.

use super::{Maker, Random, START, alloc, free, realloc};
use prof_trace::event::Event;
use prof_trace::pack::Compress;
use prof_trace::records::Module;
use prof_trace::size::{CodedSize, Header};
use prof_trace::ticks::Ticks;
use std::collections::HashMap;

/// The steps with their threads, in the order of time.
pub(crate) struct World {
    pub steps: Vec<(u32, Event)>,
    /// Live bytes, live blocks, allocated bytes and temporary blocks, by node.
    pub nodes: HashMap<u32, [u64; 4]>,
    pub live: u64,
    pub peak: u64,
    pub peak_at: u64,
    pub counts: [u64; 5],
    /// Every block that ever existed.
    pub blocks: Vec<Block>,
    pub chains: u32,
}

/// A block that is or was live.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Block {
    pub begin: u64,
    pub addr: u64,
    pub size: u64,
    pub node: u32,
    pub thread: u32,
    /// Time of its end, and the thread that ended it.
    pub end: Option<(u64, u32)>,
    pub temporary: bool,
    /// The block was passed to `realloc`.
    pub continued: bool,
    /// Number of its chain; 0: none.
    pub chain: u32,
    pub position: u32,
    /// glibc's chunk header.
    pub header: Header,
}

impl Block {
    pub(crate) const NEW: Self = Self {
        begin: 0,
        addr: 0,
        size: 0,
        node: 0,
        thread: 0,
        end: None,
        temporary: false,
        continued: false,
        chain: 0,
        position: 0,
        header: Header { arena: 0, mapped: false, extra: 0 },
    };
}

/// Runs threads that allocate, free their own and others' blocks, and reallocate; addresses are reused at once. Every
/// step takes a tick or two.
pub(crate) fn make(r: &mut Random, steps: usize, threads: u64) -> World {
    let mut w = World {
        steps: Vec::new(),
        nodes: HashMap::new(),
        live: 0,
        peak: 0,
        peak_at: 0,
        counts: [0; 5],
        blocks: Vec::new(),
        chains: 0,
    };
    let mut blocks: Vec<Block> = Vec::new();
    let mut free_addrs: Vec<u64> = (1..400).map(|i| i * 16).collect();
    let mut newest: HashMap<u32, u64> = HashMap::new();
    let mut now = START;
    let mut headers: HashMap<u32, Header> = HashMap::new();
    for _ in 0..steps {
        now += 1 + r.below(3);
        let thread = 1 + r.below(threads) as u32;
        let (node, size) = (1 + r.below(20) as u32, r.below(5000));
        let header = header(r, thread);
        let pick = r.below(100);
        let own = newest.remove(&thread);
        let lose = |w: &mut World, b: &mut Block, now: u64, continued: bool| {
            let n = w.nodes.entry(b.node).or_default();
            let temporary = !continued && own == Some(b.addr) && b.thread == thread;
            if continued && b.chain == 0 {
                w.chains += 1;
                b.chain = w.chains;
            }
            (b.end, b.temporary, b.continued) = (Some((now, thread)), temporary, continued);
            w.blocks.push(*b);
            n[0] -= b.size;
            n[1] -= 1;
            n[3] += u64::from(temporary);
            w.live -= b.size;
        };
        let mut gain = |w: &mut World, addr, now| {
            let n = w.nodes.entry(node).or_default();
            *n = [n[0] + size, n[1] + 1, n[2] + size, n[3]];
            w.live += size;
            if w.live > w.peak {
                (w.peak, w.peak_at) = (w.live, now);
            }
            newest.insert(thread, addr);
        };
        if pick < 5 {
            w.counts[3] += 1;
            w.counts[1] += 1;
            w.steps.push((thread, free(now, 0x10_0000 + 16 * r.below(50))));
        } else if pick < 45 && !blocks.is_empty() {
            let newest_of = blocks.iter().position(|b| own == Some(b.addr));
            let at = newest_of.filter(|_| r.below(3) == 0);
            let at = at.unwrap_or(r.below(blocks.len() as u64) as usize);
            let mut b = blocks.swap_remove(at);
            lose(&mut w, &mut b, now, false);
            w.counts[1] += 1;
            free_addrs.push(b.addr);
            w.steps.push((thread, free(now, b.addr)));
        } else if pick < 60 && !blocks.is_empty() {
            let at = r.below(blocks.len() as u64) as usize;
            let mut b = blocks.swap_remove(at);
            lose(&mut w, &mut b, now, true);
            w.counts[2] += 1;
            let before = now;
            now += 1 + r.below(9);
            let addr = if r.below(2) == 0 { b.addr } else { free_addrs.pop().unwrap_or(b.addr) };
            if addr != b.addr {
                free_addrs.push(b.addr);
            }
            gain(&mut w, addr, now);
            let (chain, position) = (b.chain, b.position + 1);
            blocks.push(Block {
                begin: now,
                addr,
                size,
                node,
                thread,
                chain,
                position,
                header,
                ..Block::NEW
            });
            let size = note_header(&mut headers, thread, size, header);
            w.steps.push((thread, realloc(before, now, b.addr, addr, size, node)));
        } else if let Some(addr) = free_addrs.pop() {
            w.counts[0] += 1;
            gain(&mut w, addr, now);
            blocks.push(Block { begin: now, addr, size, node, thread, header, ..Block::NEW });
            let size = note_header(&mut headers, thread, size, header);
            w.steps.push((thread, alloc(now, addr, size, node)));
        }
    }
    w.blocks.extend(blocks);
    w
}

/// Returns a random chunk header. Threads have arenas, some have another allocator than glibc's; a few blocks are
/// mapped, or larger than necessary.
fn header(r: &mut Random, thread: u32) -> Header {
    let usual = Header { arena: thread as u8 % 3, mapped: false, extra: 0 };
    match r.below(12) {
        0 => Header { arena: 0, mapped: true, extra: r.below(256) as u32 },
        1 if usual.arena != 0 => Header { extra: 1, ..usual },
        2 => Header { arena: 3 - usual.arena.max(1), ..usual },
        _ => usual,
    }
}

/// Returns the size as the hook writes it.
fn note_header(headers: &mut HashMap<u32, Header>, thread: u32, size: u64, header: Header) -> u64 {
    let last = headers.entry(thread).or_default();
    if *last == header {
        return size;
    }
    if !header.mapped {
        *last = Header { extra: 0, ..header };
    }
    CodedSize::with_header(size, header).0
}

/// Writes the steps as a collector would: in passes, thread by thread, where the newest events of some threads are
/// missed.
pub(crate) fn write(r: &mut Random, w: &World, threads: u32, compress: Compress) -> Maker {
    write_to(Maker::new(), r, w, threads, compress)
}

/// Appends the steps to what was written already.
pub(crate) fn write_to(
    mut m: Maker,
    r: &mut Random,
    w: &World,
    threads: u32,
    compress: Compress,
) -> Maker {
    m.compress = compress;
    let end = w.steps.last().map_or(2000, |s| s.1.time().0) + 1;
    let mut done = vec![0u64; threads as usize + 1]; // by thread: written up to that time
    let mut begin = START;
    while begin < end {
        m.pass(begin);
        let mut order: Vec<u32> = (1..=threads).collect();
        order.sort_by_key(|_| r.next());
        let mut now = begin;
        for t in order {
            now += r.below(30);
            let from = std::mem::replace(&mut done[t as usize], now);
            let events: Vec<Event> = w
                .steps
                .iter()
                .filter(|s| s.0 == t && (from..now).contains(&s.1.time().0))
                .map(|s| s.1)
                .collect();
            for part in events.chunks(1 + r.below(40) as usize) {
                m.events(t, part);
            }
        }
        begin = now + r.below(100);
    }
    m.pass(end);
    for t in 1..=threads {
        let rest: Vec<Event> = w
            .steps
            .iter()
            .filter(|s| s.0 == t && s.1.time() >= Ticks(done[t as usize]))
            .map(|s| s.1)
            .collect();
        m.events(t, &rest);
    }
    m.end(end);
    m
}

/// Returns the functions of a node's stack, innermost first.
pub(crate) fn functions(node: u32) -> Vec<u32> {
    (1..=node).rev().take_while(|n| *n == node || n % 4 != 0).collect()
}

/// Returns ticks and name of each mark.
pub(crate) fn marks(middle: u64) -> [(u64, &'static str); 3] {
    [(START + (middle - START) / 2, "warm"), (middle, "deployed"), (middle + 40, "warm")]
}

/// Adds stacks, names, threads and parts to a recording.
pub(crate) fn describe(m: &mut Maker, middle: u64) {
    for (ticks, name) in marks(middle) {
        m.mark(ticks, name);
    }
    m.toggle(START, 1).toggle(middle, 0).toggle(middle + 1, 1);
    for t in 1..=7 {
        m.thread(t, 100 + t, if t % 2 == 0 { "even" } else { "odd-one" });
    }
    for (number, path) in [(1, "/lib/one.so"), (2, "/lib/two.so")] {
        let (start, end) = (0x10000 * u64::from(number), 0x10000 * u64::from(number) + 0x8000);
        m.module(&Module {
            number,
            start,
            end,
            bias: start,
            path: path.into(),
            ..Module::default()
        });
        let names: Vec<_> = (1..=20).map(|n| (n * 0x100, 0x100, format!("f{n}_"))).collect();
        let names: Vec<_> = names.iter().map(|(a, s, n)| (*a, *s, n.as_str())).collect();
        m.symbols(number, &names);
    }
    let module = |n: u64| 1 + n % 2;
    let pcs: Vec<_> =
        (1..=20).map(|n| [n, 0x10000 * module(n) + n * 0x100 + 8, module(n)]).collect();
    let parent = |n: u64| if functions(n as u32).len() > 1 { n - 1 } else { 0 };
    let nodes: Vec<_> = (1..=20).map(|n| [n, parent(n), n]).collect();
    m.pcs(&pcs).nodes(&nodes);
}
