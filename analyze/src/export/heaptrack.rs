//! Writes heaptrack's text format as its interpreter does (file version 2): strings, instruction pointers and traces,
//! then every allocation and deallocation in the order of time.

use super::{ExportError, Profile, Source, one_line};
use crate::load::Clock;
use crate::maps::{Held, What};
use prof_trace::ticks::Ticks;
use std::collections::HashMap;
use std::io::{self, Write};

/// Writes heaptrack's lines, and numbers strings and traces from 1; 0 means none.
struct Writer<'a> {
    out: &'a mut dyn Write,
    strings: HashMap<String, u64>,
    traces: HashMap<(u64, u64), u64>,
    /// Number of instruction pointers so far.
    pointers: u32,
}

impl Writer<'_> {
    fn string(&mut self, s: &str) -> io::Result<u64> {
        if s.is_empty() {
            return Ok(0);
        }
        if let Some(n) = self.strings.get(s) {
            return Ok(*n);
        }
        let n = self.strings.len() as u64 + 1;
        writeln!(self.out, "s {}", one_line(s))?;
        self.strings.insert(s.to_owned(), n);
        Ok(n)
    }

    /// Writes an instruction pointer for each location. heaptrack numbers them from 1. Returns how many were before.
    fn pointers(&mut self, profile: &Profile) -> io::Result<u32> {
        let before = self.pointers;
        self.pointers += profile.locations.len() as u32;
        for l in &profile.locations {
            let module = l.frames.last().and_then(|f| f.module.clone());
            let module = self.string(module.as_deref().unwrap_or_default())?;
            let mut line = format!("i {:x} {module:x}", l.pc.address);
            for f in l.frames.iter() {
                let Some(name) = &f.function else { break };
                let function = self.string(name)?;
                let file = self.string(f.file.as_deref().unwrap_or_default())?;
                line += &format!(" {function:x} {file:x} {:x}", f.line.unwrap_or(0));
            }
            writeln!(self.out, "{line}")?;
        }
        Ok(before)
    }

    /// Writes the trace of a stack, from the outermost frame inwards, and returns its number.
    fn trace(&mut self, locations: &[u32]) -> io::Result<u64> {
        let mut parent = 0;
        for l in locations.iter().rev() {
            let key = (u64::from(*l) + 1, parent);
            let next = self.traces.len() as u64 + 1;
            parent = match self.traces.get(&key) {
                Some(n) => *n,
                None => {
                    writeln!(self.out, "t {:x} {:x}", key.0, key.1)?;
                    self.traces.insert(key, next);
                    next
                }
            };
        }
        Ok(parent)
    }
}

/// A change of the resident memory of mappings.
struct Change {
    ticks: Ticks,
    /// Number of the mapping, for its outstanding parts.
    id: u32,
    trace: u64,
    rss: u64,
}

/// Returns the changes of all exported mappings up to the exported moment, in the order of time. The format has no
/// mappings, but blocks: what becomes resident is a block of the mapping's stack, and is freed when it is no more.
fn changes(w: &mut Writer<'_>, source: &Source<'_>, held: &Held<'_>) -> io::Result<Vec<Change>> {
    let groups = source.mapped_at(source.at);
    let analysis = source.index.analysis();
    let profile = Profile::of(analysis, false, &groups);
    let first = w.pointers(&profile)?;
    let mut traces = HashMap::new();
    for (g, s) in groups.iter().zip(&profile.stacks) {
        let locations: Vec<u32> = s.locations.iter().map(|l| l + first).collect();
        traces.insert((g.node, g.name.clone()), w.trace(&locations)?);
    }
    let (mut all, until) = (Vec::new(), source.until());
    held.each_grouped(|m, key, theirs| {
        let Some(trace) = traces.get(key).copied() else { return };
        let theirs = if held.what == What::All { theirs.1 } else { 0 };
        let mut last = 0;
        for u in m.usage.iter().filter(|u| u.ticks <= until) {
            let rss = u.rss.saturating_sub(theirs);
            if rss != std::mem::replace(&mut last, rss) {
                all.push(Change { ticks: u.ticks, id: m.id, trace, rss });
            }
        }
        if let Some(e) = m.end.filter(|e| last > 0 && e.ticks <= until) {
            all.push(Change { ticks: e.ticks, id: m.id, trace, rss: 0 });
        }
    });
    all.sort_by_key(|c| (c.ticks, c.id));
    Ok(all)
}

/// Writes what begins and ends in the order of time.
struct Events<'a, 'b> {
    w: Writer<'a>,
    clock: &'b Clock,
    /// Numbers of the allocations that differ by size and trace.
    sizes: HashMap<(u64, u64), u64>,
    now: u64,
    /// Sizes of the parts of each mapping that are resident.
    parts: HashMap<u32, Vec<u64>>,
}

impl Events<'_, '_> {
    fn put(&mut self, ticks: Ticks, begins: bool, size: u64, trace: u64) -> io::Result<()> {
        let next = self.sizes.len() as u64 + 1;
        let info = match self.sizes.get(&(size, trace)) {
            Some(n) => *n,
            None => {
                writeln!(self.w.out, "a {size:x} {trace:x}")?;
                self.sizes.insert((size, trace), next);
                next
            }
        };
        let ms = self.clock.ns(ticks) / 1_000_000;
        if ms > self.now {
            self.now = ms;
            writeln!(self.w.out, "c {ms:x}")?;
        }
        writeln!(self.w.out, "{} {info:x}", if begins { '+' } else { '-' })
    }

    fn change(&mut self, c: &Change) -> io::Result<()> {
        let mut parts = self.parts.remove(&c.id).unwrap_or_default();
        let mut sum: u64 = parts.iter().sum();
        while sum > c.rss
            && let Some(part) = parts.pop()
        {
            self.put(c.ticks, false, part, c.trace)?;
            sum -= part;
        }
        if sum < c.rss {
            self.put(c.ticks, true, c.rss - sum, c.trace)?;
            parts.push(c.rss - sum);
        }
        if c.rss > 0 {
            self.parts.insert(c.id, parts);
        }
        Ok(())
    }
}

pub(super) fn write(source: &Source<'_>, out: &mut dyn Write) -> Result<(), ExportError> {
    let analysis = source.index.analysis();
    let meta = analysis.meta();
    let profile = Profile::of(analysis, source.has_blocks(), &[]);
    writeln!(out, "v 10400 2")?;
    let command = meta.target.command();
    writeln!(out, "X {}", one_line(&command))?;
    writeln!(out, "I {:x} 0", meta.target.page_size)?;
    let mut w = Writer { out, strings: HashMap::new(), traces: HashMap::new(), pointers: 0 };
    w.pointers(&profile)?;
    let traces: Vec<u64> =
        profile.stacks.iter().map(|s| w.trace(&s.locations)).collect::<io::Result<_>>()?;
    let changes = source.held.map_or(Ok(Vec::new()), |held| changes(&mut w, source, held))?;
    // heaptrack takes allocation number 0 for none in one place, so a dummy takes that number.
    writeln!(w.out, "a 0 0")?;
    let parts = HashMap::new();
    let mut events = Events { w, clock: &meta.clock, sizes: HashMap::new(), now: 0, parts };
    let (mut changes, mut failed) = (changes.iter().peekable(), None);
    let mut event = |events: &mut Events<'_, '_>, e: &crate::query::Event| -> io::Result<()> {
        while let Some(c) = changes.next_if(|c| c.ticks < e.time()) {
            events.change(c)?;
        }
        let trace = traces.get(e.group as usize).copied().unwrap_or(0);
        events.put(e.time(), e.begins(), e.size, trace)
    };
    if source.has_blocks() {
        source.query.in_order(source.until(), |e| {
            if failed.is_none() {
                failed = event(&mut events, e).err();
            }
        })?;
    }
    if let Some(e) = failed {
        return Err(e.into());
    }
    changes.try_for_each(|c| events.change(c))?;
    let Events { w, now, .. } = events;
    if let Some(k) = meta.kernel {
        let pages = k.rss_bytes / u64::from(meta.target.page_size).max(1);
        writeln!(w.out, "R {pages:x}")?;
    }
    let end = analysis.at_ns().unwrap_or(analysis.duration_ns()) / 1_000_000;
    if end > now {
        writeln!(w.out, "c {end:x}")?;
    }
    Ok(())
}
