//! Makes recordings by hand.
#![allow(dead_code)] // each test file uses its part

pub(crate) mod figures;
pub(crate) mod remade;
pub(crate) mod world;

use prof_analyze::{Analysis, LoadOptions};
use prof_trace::chunk;
use prof_trace::event::{Codec, Event, MAX_EVENT};
use prof_trace::pack::{Compress, Packer};
use prof_trace::records::{
    Call, CallFile, CallKind, Calls, Counters, End, Events, Hook, Hooks, Mark, Module, Nodes,
    NotHooked, Pass, Pcs, Symbols, Target, Thread, Toggle, kind,
};
use prof_trace::ticks::Ticks;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

/// Builds a recording. Ticks are nanoseconds, and start at 1000.
pub(crate) struct Maker {
    pub bytes: Vec<u8>,
    pub passes: u64,
    /// Compression of the events.
    pub compress: Compress,
    packer: Packer,
}

pub(crate) const START: u64 = 1000;

pub(crate) fn target() -> Target {
    Target {
        pid: 4_000_001,
        exe: "/opt/demo/server".into(),
        cmdline: vec!["server".into(), "--fast".into()],
        comm: "server".into(),
        arch: "x86_64".into(),
        pointer_size: 8,
        page_size: 4096,
        wall_ns: 1_700_000_000_000_000_000,
        start_ticks: Ticks(START),
        ticks_per_sec: 1_000_000_000,
        prof_version: "0.1.0".into(),
        ..Target::default()
    }
}

impl Maker {
    pub(crate) fn new() -> Self {
        Self::of(&target())
    }

    pub(crate) fn of(target: &Target) -> Self {
        let mut m = Self {
            bytes: chunk::file_header().to_vec(),
            passes: 0,
            compress: Compress::None,
            packer: Packer::new(),
        };
        m.put(kind::TARGET, &target.encode());
        m
    }

    pub(crate) fn put(&mut self, kind: u16, payload: &[u8]) -> &mut Self {
        self.end_pack();
        chunk::put(&mut self.bytes, kind, payload);
        self
    }

    /// Writes the packed events.
    fn end_pack(&mut self) {
        if self.packer.events() > 0 {
            let mut payload = Vec::new();
            self.packer.finish(self.compress, &mut payload);
            chunk::put(&mut self.bytes, kind::PACKED, &payload);
        }
    }

    pub(crate) fn pass(&mut self, ticks: u64) -> &mut Self {
        let number = self.passes;
        self.passes += 1;
        let p =
            Pass { number, ticks: Ticks(ticks), clock_ns: ticks + 5, rss_pages: 0, vss_pages: 0 };
        self.put(kind::PASS, &p.encode())
    }

    pub(crate) fn pages(&mut self, ticks: u64, rss_pages: u64, vss_pages: u64) -> &mut Self {
        let p = Pass {
            number: self.passes,
            ticks: Ticks(ticks),
            clock_ns: ticks + 5,
            rss_pages,
            vss_pages,
        };
        self.passes += 1;
        self.put(kind::PASS, &p.encode())
    }

    pub(crate) fn events(&mut self, thread: u32, events: &[Event]) -> &mut Self {
        let e = encode(thread, Codec::default(), events);
        if self.compress != Compress::None {
            if !self.packer.has_room(e.bytes.len()) {
                self.end_pack();
            }
            let got = self.packer.run(thread, &mut Codec::default(), &e.bytes, |_| {});
            assert_eq!(got, (e.count, e.bytes.len()));
            return self;
        }
        self.put(kind::EVENTS, &e.encode())
    }

    /// Writes calls that change mappings, of several threads.
    pub(crate) fn calls(&mut self, calls: &[(u32, Call)]) -> &mut Self {
        self.put(kind::CALLS, &Calls { calls: calls.to_vec() }.encode())
    }

    pub(crate) fn call_file(&mut self, file: &CallFile) -> &mut Self {
        self.put(kind::CALL_FILE, &file.encode())
    }

    pub(crate) fn thread(&mut self, number: u32, tid: u32, name: &str) -> &mut Self {
        self.put(kind::THREAD, &Thread { number, tid, name: name.into() }.encode())
    }

    pub(crate) fn nodes(&mut self, triples: &[[u64; 3]]) -> &mut Self {
        self.put(kind::NODES, &Nodes { triples: triples.concat() }.encode())
    }

    pub(crate) fn pcs(&mut self, triples: &[[u64; 3]]) -> &mut Self {
        self.put(kind::PCS, &Pcs { triples: triples.concat() }.encode())
    }

    pub(crate) fn module(&mut self, module: &Module) -> &mut Self {
        self.put(kind::MODULE, &module.encode())
    }

    pub(crate) fn symbols(&mut self, module: u32, symbols: &[(u64, u64, &str)]) -> &mut Self {
        let mut s = Symbols { module, ..Symbols::default() };
        for (start, size, name) in symbols {
            s.symbols.extend([*start, *size, s.names.len() as u64, name.len() as u64]);
            s.names.extend(name.as_bytes());
        }
        self.put(kind::SYMBOLS, &s.encode())
    }

    pub(crate) fn toggle(&mut self, ticks: u64, on: u32) -> &mut Self {
        self.put(kind::TOGGLE, &Toggle { ticks: Ticks(ticks), on }.encode())
    }

    pub(crate) fn mark(&mut self, ticks: u64, name: &str) -> &mut Self {
        self.put(kind::MARK, &Mark { ticks: Ticks(ticks), name: name.into() }.encode())
    }

    pub(crate) fn hooks(&mut self, hooked: &[&str], not: &[(&str, &str)]) -> &mut Self {
        let hooked = hooked.iter().enumerate().map(|(i, f)| Hook {
            index: i as u32,
            function: (*f).into(),
            module: "/lib/libc.so.6".into(),
            method: "inline".into(),
        });
        let not = not.iter().map(|(f, reason)| NotHooked {
            function: (*f).into(),
            module: "/lib/libc.so.6".into(),
            reason: (*reason).into(),
        });
        let h = Hooks { hooked: hooked.collect(), not_hooked: not.collect() };
        self.put(kind::HOOKS, &h.encode())
    }

    pub(crate) fn counters(&mut self, c: &Counters) -> &mut Self {
        self.put(kind::COUNTERS, &c.encode())
    }

    pub(crate) fn end(&mut self, ticks: u64) -> &mut Self {
        self.put(kind::END, &End { ticks: Ticks(ticks), reason: "detached".into() }.encode())
    }

    pub(crate) fn file(&self) -> Temp {
        Temp::new(&self.bytes)
    }

    pub(crate) fn analysis(&self) -> Analysis {
        let file = self.file();
        Analysis::from_file(&file.0, &LoadOptions::default()).expect("a recording")
    }
}

pub(crate) fn encode(thread: u32, from: Codec, events: &[Event]) -> Events {
    let mut w = from;
    let mut bytes = Vec::new();
    for e in events {
        let at = bytes.len();
        bytes.resize(at + MAX_EVENT, 0);
        let p = bytes[at..].as_mut_ptr();
        // SAFETY: MAX_EVENT bytes were added on the line before.
        let n = unsafe {
            match *e {
                Event::Alloc { time, addr, size, node } => w.put_alloc(p, time, addr, size, node),
                Event::Free { time, addr, node } => w.put_free(p, time, addr, node),
                Event::Realloc { time_before, time, old, addr, size, node } => {
                    w.put_realloc(p, time_before, time, old, addr, size, node)
                }
            }
        };
        assert!(n > 0, "{e:?} can't be written");
        bytes.truncate(at + n);
    }
    let count = events.len() as u32;
    Events { thread, time: from.time, addr: from.addr, node: from.node, count, bytes }
}

pub(crate) fn alloc(time: u64, addr: u64, size: u64, node: u32) -> Event {
    Event::Alloc { time: Ticks(time), addr, size: size.into(), node }
}

pub(crate) fn free(time: u64, addr: u64) -> Event {
    Event::Free { time: Ticks(time), addr, node: 0 }
}

pub(crate) fn realloc(
    time_before: u64,
    time: u64,
    old: u64,
    addr: u64,
    size: u64,
    node: u32,
) -> Event {
    Event::Realloc {
        time_before: Ticks(time_before),
        time: Ticks(time),
        old,
        addr,
        size: size.into(),
        node,
    }
}

/// Returns a successful call of a private anonymous mmap; the other kinds of calls are made from it.
pub(crate) fn mmap(begin: u64, end: u64, addr: u64, len: u64, node: u32) -> Call {
    let (kind, prot, flags, fd) = (CallKind::Mmap, 3, 0x22, -1);
    Call {
        kind,
        begin: Ticks(begin),
        end: Ticks(end),
        addr,
        len,
        prot,
        flags,
        fd,
        node,
        ..Call::default()
    }
}

/// Returns a successful munmap.
pub(crate) fn munmap(begin: u64, end: u64, addr: u64, len: u64, node: u32) -> Call {
    Call {
        kind: CallKind::Munmap,
        begin: Ticks(begin),
        end: Ticks(end),
        addr,
        len,
        fd: -1,
        node,
        ..Call::default()
    }
}

/// A temporary file, which is removed on drop.
pub(crate) struct Temp(pub PathBuf);

impl Temp {
    pub(crate) fn new(bytes: &[u8]) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("prof-analyze-{}-{n}", std::process::id()));
        std::fs::write(&path, bytes).expect("a temporary file");
        Self(path)
    }
}

impl Drop for Temp {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A generator of small random numbers.
pub(crate) struct Random(pub u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}
