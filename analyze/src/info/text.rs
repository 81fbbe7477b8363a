//! Formats the description of a recording's file as text.

use super::Info;
use crate::report::{DISTANCES, Style};
use prof_trace::values::text::{bytes, count, duration, number};
use std::fmt::{self, Write};

/// Greatest number of threads, and of modules, that are listed.
const LISTED: usize = 40;
/// Length of the longest bar in columns.
const BAR: usize = 30;

impl Info {
    /// Returns the description as text.
    pub fn text(&self, style: Style) -> String {
        let mut out = self.head.text(style);
        // Writing to a string can't fail.
        let _ = self.write(&mut out);
        out
    }

    fn write(&self, out: &mut String) -> fmt::Result {
        let f = &self.file;
        let by = &f.recorded_by;
        writeln!(out, "file       {}, format {}, by prof {by}", bytes(f.bytes), f.format)?;
        for c in &f.compression {
            let each = c.bytes as f64 / c.events.max(1) as f64;
            let how = match c.name {
                "none" => "not compressed".to_owned(),
                name => format!("compressed ({name})"),
            };
            writeln!(out, "events     {} {how}, {each:.2} bytes each", number(c.events))?;
        }
        if let Some(path) = &f.index {
            writeln!(out, "index      {path}")?;
        }
        let distances = &self.head.recording.distances;
        // The lines above have the last ones.
        for d in distances.iter().filter(|_| distances.len() > DISTANCES) {
            let (start, end) = (duration(d.start_ns), duration(d.end_ns));
            writeln!(out, "sampled    {start} to {end}: one for each {}", bytes(d.bytes))?;
        }
        for s in &self.scans {
            let name = if s.name.is_empty() { String::new() } else { format!(" ({})", s.name) };
            let census = if s.census { ", with those from before the attach" } else { "" };
            writeln!(
                out,
                "scan       #{}{name} at {}: {} live{census}; `prof holds FILE --scan {}` shows it",
                s.number,
                duration(s.at_ns),
                count(s.blocks, "block", "blocks"),
                s.number
            )?;
        }
        writeln!(out, "\n{:<12} {:>10} {:>12} {:>7}", "chunks", "number", "bytes", "share")?;
        for c in &self.chunks {
            let share = 100.0 * c.bytes as f64 / f.bytes.max(1) as f64;
            let name = match c.name {
                "unknown" => format!("kind {}", c.kind),
                name => name.to_owned(),
            };
            writeln!(
                out,
                "{name:<12} {:>10} {:>12} {share:>6.1}%",
                number(c.count),
                bytes(c.bytes)
            )?;
        }
        self.kinds(out)?;
        self.lifetimes(out)?;
        self.threads(out)?;
        self.modules(out)
    }

    fn kinds(&self, out: &mut String) -> fmt::Result {
        if self.events.iter().all(|e| e.count == 0) {
            return Ok(());
        }
        writeln!(out, "\n{:<15} {:>12} {:>12} {:>9}", "events", "number", "in the file", "each")?;
        for e in self.events.iter().filter(|e| e.count > 0) {
            let each = e.bytes as f64 / e.count as f64;
            writeln!(
                out,
                "{:<15} {:>12} {:>12} {each:>9.2}",
                e.kind,
                number(e.count),
                bytes(e.bytes)
            )?;
        }
        Ok(())
    }

    fn lifetimes(&self, out: &mut String) -> fmt::Result {
        writeln!(out, "\n{:<12} {:>12} {:>12}", "lifetimes", "blocks", "bytes")?;
        let most = self.lifetimes.iter().map(|l| l.count).max().unwrap_or(0).max(1);
        for (i, l) in self.lifetimes.iter().enumerate() {
            let before = i.checked_sub(1).and_then(|i| self.lifetimes[i].below_ns).unwrap_or(0);
            let name = match l.below_ns {
                Some(ns) => format!("< {}", short(ns)),
                None if l.live => "still live".to_owned(),
                None => format!(">= {}", short(before)),
            };
            let part = (l.count as u128 * BAR as u128).div_ceil(u128::from(most)) as usize;
            let bar = "#".repeat(part);
            let line = format!("{name:<12} {:>12} {:>12}  {bar}", number(l.count), bytes(l.bytes));
            writeln!(out, "{}", line.trim_end())?;
        }
        Ok(())
    }

    fn threads(&self, out: &mut String) -> fmt::Result {
        let n = self.threads.len();
        if n == 0 {
            return Ok(());
        }
        writeln!(out, "\n{:<12} {:>12}  name", count(n as u64, "thread", "threads"), "events")?;
        let mut all: Vec<_> = self.threads.iter().collect();
        all.sort_by_key(|t| (std::cmp::Reverse(t.events), t.number));
        for t in all.iter().take(LISTED) {
            writeln!(out, "{:<12} {:>12}  {}", t.tid, number(t.events), t.name)?;
        }
        if n > LISTED {
            writeln!(out, "and {} others (--format json has all)", n - LISTED)?;
        }
        Ok(())
    }

    fn modules(&self, out: &mut String) -> fmt::Result {
        let n = self.modules.len();
        writeln!(out, "\n{:<12} {:>12}  path", count(n as u64, "module", "modules"), "symbols")?;
        for m in self.modules.iter().take(LISTED) {
            let symbols = match m.symbol_bytes {
                0 => "-".to_owned(),
                n => bytes(n),
            };
            let id = m.build_id.get(..12).unwrap_or(&m.build_id);
            let gone = if m.unloaded_ns.is_some() { " (unloaded)" } else { "" };
            writeln!(out, "{id:<12} {symbols:>12}  {}{gone}", m.path)?;
        }
        if n > LISTED {
            writeln!(out, "and {} others (--format json has all)", n - LISTED)?;
        }
        Ok(())
    }
}

/// Formats a duration without parts that are zero.
fn short(ns: u64) -> String {
    duration(ns).replace(".0 ", " ").replace("m 00s", " min").replace("h 00m", " h")
}
