//! Writes heaptrack's text format as its interpreter does (file version 2): strings, instruction pointers and traces,
//! then every allocation and deallocation in the order of time.

use super::{ExportError, Profile, Source, one_line};
use std::collections::HashMap;
use std::io::{self, Write};

/// Writes heaptrack's lines, and numbers strings and traces from 1; 0 means none.
struct Writer<'a> {
    out: &'a mut dyn Write,
    strings: HashMap<String, u64>,
    traces: HashMap<(u64, u64), u64>,
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

    /// Writes an instruction pointer for each location. heaptrack numbers them from 1.
    fn pointers(&mut self, profile: &Profile) -> io::Result<()> {
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
        Ok(())
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

pub(super) fn write(source: &Source<'_>, out: &mut dyn Write) -> Result<(), ExportError> {
    let analysis = source.index.analysis();
    let meta = analysis.meta();
    let profile = Profile::new(analysis);
    writeln!(out, "v 10400 2")?;
    let command = meta.target.command();
    writeln!(out, "X {}", one_line(&command))?;
    writeln!(out, "I {:x} 0", meta.target.page_size)?;
    let mut w = Writer { out, strings: HashMap::new(), traces: HashMap::new() };
    w.pointers(&profile)?;
    let traces: Vec<u64> =
        profile.stacks.iter().map(|s| w.trace(&s.locations)).collect::<io::Result<_>>()?;
    // heaptrack takes allocation number 0 for none in one place, so a dummy takes that number.
    writeln!(w.out, "a 0 0")?;
    let mut sizes: HashMap<(u64, u32), u64> = HashMap::new();
    let (mut now, mut failed) = (0, None);
    let mut event = |e: &crate::query::Event| -> io::Result<()> {
        let next = sizes.len() as u64 + 1;
        let info = match sizes.get(&(e.size, e.group)) {
            Some(n) => *n,
            None => {
                let trace = traces.get(e.group as usize).copied().unwrap_or(0);
                writeln!(w.out, "a {:x} {trace:x}", e.size)?;
                sizes.insert((e.size, e.group), next);
                next
            }
        };
        let ms = meta.clock.ns(e.time()) / 1_000_000;
        if ms != now {
            now = ms;
            writeln!(w.out, "c {ms:x}")?;
        }
        writeln!(w.out, "{} {info:x}", if e.begins() { '+' } else { '-' })
    };
    source.query.in_order(source.until(), |e| {
        if failed.is_none() {
            failed = event(e).err();
        }
    })?;
    if let Some(e) = failed {
        return Err(e.into());
    }
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
