//! Formats mappings as text.

use super::data::{MapData, MapEndData, MapGroupData, MapSourceData, MapTotalsData, MapsReport};
use crate::report::units::{bytes, count, duration};
use crate::report::{Style, frame_lines};
use std::fmt::{self, Write};

impl MapsReport {
    /// Returns the report as text.
    #[must_use]
    pub fn text(&self, style: Style) -> String {
        let mut out = String::new();
        // Writing to a string can't fail.
        let _ = self.write(style, &mut out);
        out
    }

    fn write(&self, style: Style, out: &mut String) -> fmt::Result {
        let (t, r) = (&self.head.target, &self.head.recording);
        writeln!(out, "mappings of {} (process {}), from {}", t.comm, t.pid, r.path)?;
        if let Some(why) = self.why_not {
            return writeln!(out, "\nThe recording does not tell of mappings: {why}.");
        }
        if let Some(now) = &self.now {
            totals(now, out)?;
        }
        if !self.over_time.is_empty() {
            return over_time(&self.over_time, out);
        }
        if self.details {
            return self.maps.iter().try_for_each(|m| details(m, style, out));
        }
        writeln!(out)?;
        if self.groups.is_empty() {
            self.table(out)?;
        } else {
            groups(&self.groups, style, out)?;
        }
        let s = &self.selected;
        writeln!(
            out,
            "\n{}: {} of address space, {} resident",
            count(self.total_count, "mapping", "mappings"),
            bytes(s.size),
            bytes(s.rss)
        )?;
        let shown = self.maps.len() as u64;
        if self.groups.is_empty() && shown < self.total_count {
            let all = style.hint("--top 0", "report(0)");
            writeln!(out, "{} not shown ({all} shows all)", self.total_count - shown)?;
        }
        if self.ended_count > 0 {
            let n = count(self.ended_count, "mapping has", "mappings have");
            writeln!(out, "{n} ended (--lifetime all shows them, too)")?;
        }
        Ok(())
    }

    fn table(&self, out: &mut String) -> fmt::Result {
        writeln!(
            out,
            "{:>6} {:>16} {:>11} {:>11} {:>11}  {:<4} {:<9} {:>9}  name",
            "id", "address", "size", "RSS", "peak RSS", "perm", "kind", "made at"
        )?;
        for m in &self.maps {
            let made = if m.before { "before".into() } else { duration(m.begun.ns()) };
            let line = format!(
                "{:>6} {:>16x} {:>11} {:>11} {:>11}  {:<4} {:<9} {:>9}  {}",
                m.id,
                m.address,
                bytes(m.size),
                if m.deallocation.is_some() { "ended".into() } else { bytes(m.rss) },
                bytes(m.peak_rss),
                perms(m.is_readable, m.is_writable, m.is_executable, m.is_shared),
                m.kind.name(),
                made,
                named(m),
            );
            writeln!(out, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// Returns the mapping's name or, if it has none, the function that made it.
fn named(m: &MapData) -> String {
    let by = m.source.as_ref().and_then(|s| {
        let named = s.backtrace.iter().rev().filter_map(|f| f.function.as_deref());
        named.into_iter().find(|f| !is_call(f)).map(|f| format!("by {f}"))
    });
    match (m.name.is_empty(), by) {
        (true, by) => by.unwrap_or_default(),
        (false, Some(by)) => format!("{} {by}", m.name),
        (false, None) => m.name.clone(),
    }
}

/// Returns whether a function only passes a call on to the kernel.
fn is_call(function: &str) -> bool {
    let plain = function.trim_start_matches('_');
    ["mmap", "mmap64", "mremap", "brk", "sbrk", "shmat", "syscall"].contains(&plain)
}

fn perms(r: bool, w: bool, x: bool, s: bool) -> String {
    let bit = |is: bool, c: char, no: char| if is { c } else { no };
    [bit(r, 'r', '-'), bit(w, 'w', '-'), bit(x, 'x', '-'), bit(s, 's', 'p')].iter().collect()
}

fn totals(t: &MapTotalsData, out: &mut String) -> fmt::Result {
    let at = duration(t.ns);
    let counted = match duration(t.counted_ns) {
        counted if counted == at => String::new(),
        counted => format!(" (counted at {counted})"),
    };
    writeln!(
        out,
        "\nat {at}: address space {}, resident {}{counted}; of it anonymous {}, dirty {}, clean {}, in huge pages {}; swapped out {}",
        bytes(t.address_space),
        bytes(t.rss),
        bytes(t.anonymous),
        bytes(t.dirty),
        bytes(t.clean),
        bytes(t.huge),
        bytes(t.swap)
    )?;
    let kinds = t.by_kind.iter().filter(|k| *k.1 > 0);
    let kinds: Vec<String> = kinds.map(|(k, n)| format!("{k} {}", bytes(*n))).collect();
    if !kinds.is_empty() {
        writeln!(out, "resident by kind: {}", kinds.join(", "))?;
    }
    Ok(())
}

fn over_time(all: &[MapTotalsData], out: &mut String) -> fmt::Result {
    let heads = ["at", "address space", "resident", "anonymous", "dirty", "clean", "swap", "huge"];
    let row = |cells: [String; 8]| {
        let line: Vec<String> = cells.iter().map(|c| format!("{c:>13}")).collect();
        line.join(" ")
    };
    writeln!(out, "\n{}", row(heads.map(String::from)))?;
    for t in all {
        let n = [t.address_space, t.rss, t.anonymous, t.dirty, t.clean, t.swap, t.huge].map(bytes);
        let [a, b, c, d, e, f, g] = n;
        writeln!(out, "{}", row([duration(t.ns), a, b, c, d, e, f, g]))?;
    }
    Ok(())
}

fn groups(all: &[MapGroupData], style: Style, out: &mut String) -> fmt::Result {
    writeln!(
        out,
        "{:>8} {:>11} {:>11} {:>11} {:>11}  name",
        "mappings", "size", "RSS", "peak RSS", "dirty"
    )?;
    for g in all {
        writeln!(
            out,
            "{:>8} {:>11} {:>11} {:>11} {:>11}  {}",
            g.count,
            bytes(g.size),
            bytes(g.rss),
            bytes(g.peak_rss),
            bytes(g.dirty),
            if g.frames.is_empty() { g.name.clone() } else { format!("stack {}", g.name) }
        )?;
        if !g.frames.is_empty() {
            frame_lines(&g.frames, false, style, out)?;
        }
    }
    Ok(())
}

fn source(what: &str, s: Option<&MapSourceData>, style: Style, out: &mut String) -> fmt::Result {
    let Some(s) = s else { return writeln!(out, "{what}: seen, not caught: no stack") };
    writeln!(out, "{what} by thread {} at {}:", s.thread, duration(s.at.ns()))?;
    let inner: Vec<_> = s.backtrace.iter().rev().cloned().collect();
    frame_lines(&inner, false, style, out)
}

fn details(m: &MapData, style: Style, out: &mut String) -> fmt::Result {
    writeln!(
        out,
        "\nmapping {} at {:#x}: {}, {} ({}) {}",
        m.id,
        m.address,
        bytes(m.size),
        m.kind.name(),
        perms(m.is_readable, m.is_writable, m.is_executable, m.is_shared),
        m.name
    )?;
    let u = &m.usage;
    writeln!(
        out,
        "resident {} (at most {}): anonymous {}, private dirty {}, private clean {}, shared dirty {}, shared clean {}; \
         swapped out {}",
        bytes(m.rss),
        bytes(m.peak_rss),
        bytes(u.anonymous),
        bytes(u.private_dirty),
        bytes(u.private_clean),
        bytes(u.shared_dirty),
        bytes(u.shared_clean),
        bytes(u.swap)
    )?;
    let made = match m.before {
        true => "it is from before the attach".to_owned(),
        false => format!("made at {}", duration(m.begun.ns())),
    };
    source(&made, m.source.as_ref(), style, out)?;
    if let Some(e) = &m.deallocation {
        source(&format!("ended at {}", duration(e.ns)), e.source.as_ref(), style, out)?;
    }
    regions(m, out)?;
    let history = m.usage_history.as_deref().unwrap_or_default();
    writeln!(
        out,
        "\n{:>11} {:>13} {:>11} {:>11} {:>11} {:>11} {:>11}",
        "at", "address space", "RSS", "anonymous", "dirty", "clean", "swap"
    )?;
    for u in history {
        writeln!(
            out,
            "{:>11} {:>13} {:>11} {:>11} {:>11} {:>11} {:>11}",
            duration(u.at.ns()),
            bytes(u.address_space),
            bytes(u.rss),
            bytes(u.anonymous),
            bytes(u.private_dirty.saturating_add(u.shared_dirty)),
            bytes(u.private_clean.saturating_add(u.shared_clean)),
            bytes(u.swap)
        )?;
    }
    Ok(())
}

fn regions(m: &MapData, out: &mut String) -> fmt::Result {
    writeln!(
        out,
        "\n{:>9} {:>11} {:>16} {:>11}  {:<4} {:>9}  how it ended",
        "from", "to", "address", "size", "perm", "offset"
    )?;
    for r in m.regions.iter().flatten() {
        let line = format!(
            "{:>9} {:>11} {:>16x} {:>11}  {:<4} {:>9x}  {}",
            duration(r.begun.ns()),
            r.deallocation.as_ref().map_or("".into(), |e| duration(e.ns)),
            r.address,
            bytes(r.size),
            perms(r.is_readable, r.is_writable, r.is_executable, r.is_shared),
            r.file_offset,
            r.deallocation.as_ref().map(|e| ending(r.address, r.size, e)).unwrap_or_default(),
        );
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}

/// Says how a region ended.
fn ending(address: u64, size: u64, e: &MapEndData) -> String {
    let cuts = e.sources.as_deref().unwrap_or_default();
    let Some(c) = cuts.first() else { return "grown, moved, or other permissions".into() };
    let (front, back) =
        (c.address == address, c.address.wrapping_add(c.length) == address.wrapping_add(size));
    let part = match (front, back) {
        (true, true) => "all of it".to_owned(),
        (true, false) => format!("its first {}", bytes(c.length)),
        (false, true) => format!("its last {}", bytes(c.length)),
        (false, false) => format!("{} in its middle", bytes(c.length)),
    };
    let by = c
        .source
        .as_ref()
        .map_or("", |s| if s.backtrace.is_empty() { "" } else { ", by a known stack" });
    format!("{part} unmapped or replaced{by}")
}
