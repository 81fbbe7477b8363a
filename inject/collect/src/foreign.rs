//! Reads the state of a recording by another build of prof: the fields that all builds have in common.

use crate::peek::{collector, heartbeat_age, name_and_module};
use crate::ring_copy::unreadable;
use crate::{Clock, Error, Peek};
use prof_os::Pid;
use prof_os::process::folder;
use prof_trace::capture::Capture;
use prof_trace::foreign::{Foreign, has_stable};
use prof_trace::protocol::Memory;
use prof_trace::protocol::remote::{self, HookedFunction, Page};
use prof_trace::records::Counters;
use prof_trace::shared::Kind;
use std::ffi::OsString;
use std::fs::File;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

/// The memory of a process, to be read.
struct ProcessMemory(File);

impl Memory for ProcessMemory {
    type Error = std::io::Error;

    fn read(&self, at: u64, to: &mut [u8]) -> std::io::Result<()> {
        self.0.read_exact_at(to, at)
    }
}

/// Reads the state of process `pid`, which has a ring at `addr`; `None` if the ring is another process's.
pub(crate) fn peek(pid: Pid, addr: u64) -> Result<Option<Peek>, Error> {
    let mem = File::open(folder(pid) + "/mem");
    let mem = ProcessMemory(mem.map_err(Error::io("cannot open its memory"))?);
    let header = match remote::header(&mem, addr).map_err(|e| unreadable(pid, addr, e)) {
        Err(Error::NoRing) => return Ok(None),
        header => header?,
    };
    if !has_stable(&header) {
        return Err(Error::OtherLayout { layout: header.layout, addr });
    }
    if header.ring_addr.load(Relaxed) != addr {
        return Ok(None);
    }
    let clock = Clock::new(header.clock, header.ticks_per_sec.load(Relaxed));
    let collector = collector(pid, &header, clock);
    let mut flag = [0u8; 4];
    let flag_addr = header.flag_addr.load(Relaxed);
    let read = flag_addr != 0 && mem.read(flag_addr, &mut flag).is_ok();
    let page = Page::new(&mem, addr, &header);
    let of = |at, len| page.bytes(at, len).unwrap_or_default();
    let mut counters = Counters::default();
    for slot in page.slots() {
        counters.events = counters.events.saturating_add(slot.events);
        counters.lost = counters.lost.saturating_add(slot.lost);
    }
    let recorded = |f: &HookedFunction| Kind::from_u32(f.kind).is_none_or(Kind::is_recorded);
    Ok(Some(Peek {
        makes_heirs: false,
        hook_time: None,
        unknown_modules: 0,
        pid,
        state: header.state.load(Acquire),
        recording: read && u32::from_ne_bytes(flag) == 1,
        path: OsString::from_vec(page.path()).into(),
        collector: collector.id,
        collector_alive: collector.lives,
        heir_of: None,
        is_out_of_sight: collector.by_heartbeat,
        heartbeat_age: heartbeat_age(&header, clock),
        orphaned: header.orphaned.load(Relaxed) != 0,
        capture: Capture::default(),
        signal: header.signal.load(Relaxed),
        dump_signal: header.dump_signal.load(Relaxed),
        counters,
        functions: page.functions().filter(recorded).map(|f| name_and_module(&f.text)).collect(),
        probes: Vec::new(),
        foreign: Foreign::of(&header, of),
    }))
}
