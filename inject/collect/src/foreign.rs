//! Reads the state of a recording by another build of prof: the fields that all builds have in common.

use crate::peek::{alive, heartbeat_age, name_and_module};
use crate::ring_copy::unreadable;
use crate::{Clock, Error, Peek};
use prof_os::process::folder;
use prof_trace::capture::Capture;
use prof_trace::foreign::{Foreign, has_stable};
use prof_trace::records::Counters;
use prof_trace::shared::{Header, Kind, Table, set_bits};
use std::ffi::OsString;
use std::fs::File;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

/// Greatest number of table entries that are read; the target may have written any number there.
const MOST: u32 = 1 << 20;
/// Greatest length of an entry, or text.
const LONGEST: usize = 64 << 10;

/// The target's memory that begins with the control page.
struct Page {
    mem: File,
    addr: u64,
}

impl Page {
    fn read(&self, at: u64, len: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; len.min(LONGEST)];
        self.mem.read_exact_at(&mut bytes, self.addr.checked_add(at)?).ok()?;
        Some(bytes)
    }

    fn entry(&self, table: &Table, index: usize) -> Option<Vec<u8>> {
        let at = u64::from(table.stride).checked_mul(index as u64)?.checked_add(table.at)?;
        self.read(at, table.stride as usize)
    }
}

fn u32_at(entry: &[u8], at: u32) -> Option<u32> {
    entry.get(at as usize..)?.first_chunk().map(|b| u32::from_ne_bytes(*b))
}

fn u64_at(entry: &[u8], at: u32) -> Option<u64> {
    entry.get(at as usize..)?.first_chunk().map(|b| u64::from_ne_bytes(*b))
}

/// Reads the state of process `pid`, which has a ring at `addr`; `None` if the ring is another process's.
pub(crate) fn peek(pid: u32, addr: u64) -> Result<Option<Peek>, Error> {
    let mem = File::open(folder(pid.cast_signed()) + "/mem");
    let page = Page { mem: mem.map_err(Error::io("cannot open its memory"))?, addr };
    let header = match read_header(&page).map_err(|e| unreadable(pid, addr, e)) {
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
    let collector = (header.collector_pid.load(Acquire), header.collector_start.load(Acquire));
    let mut flag = [0u8; 4];
    let flag_addr = header.flag_addr.load(Relaxed);
    let read = flag_addr != 0 && page.mem.read_exact_at(&mut flag, flag_addr).is_ok();
    let path = page.read(header.path_at, header.path_len as usize).unwrap_or_default();
    let of = |at, len| page.read(at, len).unwrap_or_default();
    Ok(Some(Peek {
        unknown_modules: 0,
        pid,
        state: header.state.load(Acquire),
        recording: read && u32::from_ne_bytes(flag) == 1,
        path: OsString::from_vec(path).into(),
        collector,
        collector_alive: alive(&header, clock, collector),
        heartbeat_age: heartbeat_age(&header, clock),
        orphaned: header.orphaned.load(Relaxed) != 0,
        capture: Capture::default(),
        signal: header.signal,
        counters: counters(&page, &header),
        functions: functions(&page, &header),
        probes: Vec::new(),
        foreign: Foreign::of(&header, of),
    }))
}

fn read_header(page: &Page) -> std::io::Result<Box<Header>> {
    let mut b = Box::<Header>::new_uninit();
    // SAFETY: `write_bytes` initialises all bytes of the box, and only those are written to. Any values are valid, as
    // all fields are integers.
    unsafe {
        b.as_mut_ptr().write_bytes(0, 1);
        let bytes =
            std::slice::from_raw_parts_mut(b.as_mut_ptr().cast::<u8>(), size_of::<Header>());
        page.mem.read_exact_at(bytes, page.addr)?;
        Ok(b.assume_init())
    }
}

fn counters(page: &Page, h: &Header) -> Counters {
    let (used, table, f) = (&h.slots_used_table, &h.slot_table, &h.slot_fields);
    let words = page.read(used.at, (used.count.min(MOST) as usize).saturating_mul(8));
    let words = words.unwrap_or_default();
    let words = words.as_chunks::<8>().0.iter().map(|w| u64::from_ne_bytes(*w));
    let mut sum = Counters::default();
    for index in set_bits(words).take_while(|i| *i < table.count as usize) {
        let Some(entry) = page.entry(table, index) else { break };
        let add = |sum: &mut u64, at| *sum = sum.saturating_add(u64_at(&entry, at).unwrap_or(0));
        add(&mut sum.events, f.events);
        add(&mut sum.lost, f.lost);
    }
    sum
}

/// Returns name and module of each hooked function that is recorded.
fn functions(page: &Page, h: &Header) -> Vec<(String, String)> {
    let (table, f) = (&h.function_table, &h.function_fields);
    let count = h.functions.load(Relaxed).min(table.count).min(MOST) as usize;
    let recorded = |entry: &Vec<u8>| {
        u32_at(entry, f.kind).and_then(Kind::from_u32).is_none_or(Kind::is_recorded)
    };
    let entries = (0..count).map_while(|i| page.entry(table, i)).filter(recorded);
    let name = |entry: Vec<u8>| {
        let text = entry.get(f.name as usize..)?;
        Some(name_and_module(text.get(..f.name_len as usize).unwrap_or(text)))
    };
    entries.filter_map(name).collect()
}
