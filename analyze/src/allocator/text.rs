//! Formats the report on allocators as text.

use super::overhead::OverheadData;
use super::{AllocatorReport, ArenaData, OverheadReport, SettingCallData};
use crate::report::units::{bytes, count, duration, number};
use crate::report::{FrameData, Style, frame_lines};
use crate::style::BOLD;
use crate::table::{Table, title};
use std::fmt::{self, Write};

/// Effects of the allocator's calls of the kernel, in the order of the table.
const DOINGS: [(&str, &str); 12] = [
    ("brk-grown", "the main arena has grown (brk)"),
    ("brk-shrunk", "the main arena was trimmed (brk)"),
    ("heap-made", "address space was reserved for a heap of another arena (mmap)"),
    ("heap-grown", "a heap of another arena has grown (mprotect)"),
    ("heap-shrunk", "a heap of another arena was trimmed (mmap)"),
    ("heap-removed", "a heap of another arena was given back (munmap)"),
    ("mapped", "memory was mapped (mmap)"),
    ("remapped", "memory was moved, or made longer or shorter (mremap)"),
    ("unmapped", "memory was given back (munmap)"),
    ("pages-released", "pages were given back, and their addresses kept (madvise)"),
    ("huge-pages-asked", "huge pages were asked for (madvise)"),
    ("protected", "access was changed (mprotect)"),
];

impl AllocatorReport {
    /// Returns the report as text.
    #[must_use]
    pub fn text(&self, style: Style) -> String {
        let mut out = String::new();
        // Writing to a string can't fail.
        let _ = self.write(style, &mut out);
        out
    }

    fn write(&self, style: Style, out: &mut String) -> fmt::Result {
        match &self.head {
            Some(h) => {
                let (comm, path) = (&h.target.comm, &h.recording.path);
                writeln!(out, "allocators of {comm} (process {}), from {path}", self.process)?;
            }
            None => writeln!(
                out,
                "allocators of process {}, which is not being recorded",
                self.process
            )?,
        }
        self.found(style, out)?;
        self.set(style, out)?;
        self.arenas(style, out)?;
        if let Some(o) = &self.overhead {
            overhead(o, self.overhead_note(), style, out)?;
        }
        self.done(style, out)?;
        if !self.unknown.is_empty() {
            title(style, "not known", out)?;
            for u in &self.unknown {
                writeln!(out, "  {}: {}", u.allocator, u.what)?;
            }
        }
        Ok(())
    }

    fn found(&self, style: Style, out: &mut String) -> fmt::Result {
        writeln!(out)?;
        if self.allocators.is_empty() {
            return writeln!(out, "no allocator that prof knows was found");
        }
        for a in &self.allocators {
            let version = if a.version.is_empty() { "(version not known)" } else { &a.version };
            let name = style.paint(BOLD, &a.name);
            let mut line = format!("{name} {version}, in {}", a.file);
            if !a.functions.is_empty() {
                let shown = a.functions.iter().take(4).map(String::as_str).collect::<Vec<_>>();
                let more = a.functions.len().saturating_sub(shown.len());
                write!(line, "; recorded: {}", shown.join(", "))?;
                if more > 0 {
                    write!(line, " and {more} others")?;
                }
            }
            writeln!(out, "{line}")?;
        }
        Ok(())
    }

    fn set(&self, style: Style, out: &mut String) -> fmt::Result {
        let parts = [
            ("environment", "set by the environment that the program was started with"),
            ("memory", "settings that hold, from the allocator's own memory"),
        ];
        for (source, what) in parts {
            let all: Vec<_> = self.settings.iter().filter(|s| s.source == source).collect();
            if all.is_empty() {
                continue;
            }
            title(style, what, out)?;
            for s in all {
                writeln!(out, "  {:<24} {}", s.name, explained(&s.name, &s.value))?;
            }
        }
        if !self.figures.is_empty() {
            title(style, "the allocator's own figures", out)?;
            for f in &self.figures {
                let is_number = ["blocks", "caches"].iter().any(|w| f.name.ends_with(w));
                let value = if is_number { number(f.value) } else { bytes(f.value) };
                writeln!(out, "  {:<24} {value}", format!("{}.{}", f.allocator, f.name))?;
            }
        }
        Ok(())
    }

    fn arenas(&self, style: Style, out: &mut String) -> fmt::Result {
        let Some(total) = &self.arenas_total else { return Ok(()) };
        let when = self.read_ns.map_or(String::new(), |ns| format!(", at {}", duration(ns)));
        title(style, &format!("glibc's arenas{when}"), out)?;
        let head = vec![
            "mapped",
            "in use",
            "free",
            "dirty",
            "at the end",
            "most mapped",
            "free chunks",
            "heaps",
            "threads",
            "arena",
        ];
        let mut table = Table::new(head);
        let row = |a: &ArenaData, name: String| {
            let sizes = [
                a.mapped_bytes,
                a.in_use_bytes,
                a.free_bytes,
                a.dirty_bytes,
                a.top_bytes,
                a.most_mapped_bytes,
            ];
            let mut cells: Vec<String> = sizes.map(bytes).into();
            cells.extend([a.free_chunks, a.heaps, a.threads].map(number));
            cells.push(name);
            cells
        };
        for a in &self.arenas {
            let name = if a.main { "main".into() } else { format!("{:#x}", a.address) };
            table.row(row(a, name));
        }
        if self.arenas.len() > 1 {
            table.row(row(total, "all".into()));
        }
        table.write(style, out)?;
        writeln!(
            out,
            "  in use includes blocks in threads' caches; dirty is the resident part of what is free"
        )
    }

    /// Returns what is to be said of the figures of overhead.
    fn overhead_note(&self) -> Option<&'static str> {
        let h = self.head.as_ref()?;
        let sampled = h.recording.capture.as_ref().is_some_and(|c| c.is_sampled());
        sampled.then_some(
            "the recording is a sample: these are the figures of the recorded blocks alone",
        )
    }

    fn done(&self, style: Style, out: &mut String) -> fmt::Result {
        if self.head.is_none() {
            return Ok(());
        }
        if !self.calls_recorded {
            return writeln!(
                out,
                "\nThe recording does not have the allocator's own calls: it was made with --no-maps, or by an earlier prof."
            );
        }
        if !self.doings.is_empty() {
            title(style, "what the allocator has done", out)?;
            let mut table = Table::new(vec!["calls", "bytes", "first at", "last at", "what"]);
            let place = |what: &str| DOINGS.iter().position(|d| d.0 == what);
            let mut all: Vec<_> = self.doings.iter().collect();
            all.sort_by_key(|d| place(d.what));
            for d in all {
                let what = place(d.what).map_or(d.what, |i| DOINGS[i].1);
                let times = [duration(d.first_ns), duration(d.last_ns)];
                let [first, last] = times;
                table.row(vec![number(d.count), bytes(d.bytes), first, last, what.into()]);
            }
            table.write(style, out)?;
        }
        if !self.made.is_empty() {
            title(style, "arenas and heaps made", out)?;
            for m in self.made.iter().take(20) {
                let by = asker(&m.frames);
                writeln!(
                    out,
                    "  {:>9}  {} at {:#x}, by thread {} ({}){by}",
                    duration(m.ns),
                    m.what,
                    m.address,
                    m.thread,
                    m.thread_name
                )?;
            }
            let more = self.other_made.saturating_add(self.made.len().saturating_sub(20) as u64);
            if more > 0 {
                writeln!(out, "  {} more", number(more))?;
            }
        }
        if !self.calls.is_empty() {
            title(style, "calls of the program that change settings, or give orders", out)?;
            let repeated: Vec<_> = self.call_groups.iter().filter(|g| g.count > 1).collect();
            for g in repeated.iter().take(10) {
                let value = g.last_value.map_or(String::new(), |v| format!(", {v} at last"));
                let failed = if g.failed > 0 {
                    format!(", {} failed", number(g.failed))
                } else {
                    String::new()
                };
                let calls = count(g.count, "call", "calls");
                let (first, last) = (duration(g.first_ns), duration(g.last_ns));
                writeln!(
                    out,
                    "  {calls} of {}({}{value}), from {first} to {last}{failed}",
                    g.function, g.parameter
                )?;
            }
            for c in &self.calls {
                call(c, out)?;
            }
            if self.other_calls > 0 {
                let n = count(self.other_calls, "other call", "other calls");
                writeln!(out, "  {n} (--top 0 shows all)")?;
            }
        }
        Ok(())
    }
}

fn call(c: &SettingCallData, out: &mut String) -> fmt::Result {
    let value = c.value.map_or(String::new(), |v| format!(", {v}"));
    let end = match (c.success, c.function) {
        (true, "malloc_trim") if c.result == 0 => ": nothing to give back".to_owned(),
        (true, _) => String::new(),
        (false, _) => format!(": failed, returned {}", c.result),
    };
    writeln!(
        out,
        "  {:>9}  {}({}{value}){end}, by thread {} ({}){}",
        duration(c.ns),
        c.function,
        c.parameter,
        c.thread,
        c.thread_name,
        asker(&c.frames)
    )
}

/// Returns the innermost named function that is not the allocator's or libc's, for the end of a line.
fn asker(frames: &[FrameData]) -> String {
    let is_low = |name: &str| {
        let plain = name.trim_start_matches('_');
        crate::askers::is_allocator(name)
            || super::doings::is_call(name)
            || [
                "sysmalloc",
                "_int_",
                "arena_",
                "new_heap",
                "alloc_new_heap",
                "tcache",
                "ptmalloc",
                "int_",
                "malloc",
            ]
            .iter()
            .any(|p| name.starts_with(p) || plain.starts_with(p))
    };
    let mut named = frames.iter().filter_map(|f| Some((f, f.function.as_deref()?)));
    let Some((f, name)) = named.find(|(_, name)| !is_low(name)) else { return String::new() };
    let place = match (&f.file, f.line) {
        (Some(file), Some(line)) => {
            format!(" ({}:{line})", file.rsplit('/').next().unwrap_or(file))
        }
        _ => String::new(),
    };
    format!(", in {name}{place}")
}

/// Returns the value of a setting with its unit, or what a special one means.
fn explained(name: &str, value: &str) -> String {
    const SIZES: [&str; 6] = [
        "mmap_threshold",
        "trim_threshold",
        "top_pad",
        "huge_page",
        "tcache_max",
        "opt.oversize_threshold",
    ];
    let n = value.parse::<u64>().ok();
    match (name, n) {
        ("arena_max", Some(0)) => "0 (no limit but by processors)".into(),
        ("huge_page", Some(0)) => "0 (none)".into(),
        ("dynamic_thresholds", Some(0)) => "no (thresholds were set)".into(),
        ("dynamic_thresholds", Some(_)) => "yes (freed mapped blocks raise the thresholds)".into(),
        (name, Some(n)) if SIZES.contains(&name) => format!("{value} ({})", bytes(n)),
        _ => value.into(),
    }
}

fn percent(part: f64) -> String {
    format!("{:.1}%", part * 100.0)
}

fn overhead(o: &OverheadReport, note: Option<&str>, style: Style, out: &mut String) -> fmt::Result {
    let how = match o.how {
        "headers" => "from the headers of glibc's blocks".to_owned(),
        "size-classes" => format!("from {}'s size classes", o.allocator),
        _ => {
            let of = if o.allocator.is_empty() { "the allocator" } else { &o.allocator };
            return writeln!(
                out,
                "\nWhat blocks take beyond what was asked for is not known: prof does not know the size classes of {of}."
            );
        }
    };
    title(
        style,
        &format!("what blocks take beyond what was asked for, at {} ({how})", duration(o.at_ns)),
        out,
    )?;
    for (what, d) in [("live", &o.live), ("ever allocated", &o.all)] {
        writeln!(
            out,
            "  {what}: {} for {}, asked for {}: {} of what they take is overhead ({} rounding, {} headers)",
            bytes(d.taken_bytes),
            count(d.count, "block", "blocks"),
            bytes(d.requested_bytes),
            percent(d.overhead_part),
            bytes(d.rounding_bytes),
            bytes(d.header_bytes)
        )?;
        if d.unknown_count > 0 {
            let n = count(d.unknown_count, "block", "blocks");
            writeln!(out, "  of {n} more ({}) it is not known", bytes(d.unknown_bytes))?;
        }
    }
    if let Some(note) = note {
        writeln!(out, "  {note}")?;
    }
    let head = vec!["blocks", "asked for", "taken", "rounding", "headers", "overhead", "size"];
    let mut table = Table::new(head);
    for s in &o.by_size {
        let name = match s.max_size {
            u64::MAX => format!("over {}", bytes(s.min_size.saturating_sub(1))),
            max => format!("up to {}", bytes(max)),
        };
        table.row(cells(&s.sum, name));
    }
    if !o.by_size.is_empty() {
        writeln!(out)?;
        table.write(style, out)?;
    }
    for (i, s) in o.stacks.iter().enumerate() {
        let d = &s.live;
        writeln!(
            out,
            "\n{}  {} of what this stack takes is overhead: {} of {} in {} ({} rounding, {} headers; stack {})",
            style.paint(BOLD, &format!("#{}", i + 1)),
            percent(d.overhead_part),
            bytes(d.overhead_bytes()),
            bytes(d.taken_bytes),
            count(d.count, "block", "blocks"),
            bytes(d.rounding_bytes),
            bytes(d.header_bytes),
            s.id
        )?;
        frame_lines(&s.frames, s.truncated, style, out)?;
    }
    if o.other_stacks > 0 {
        let n = count(o.other_stacks, "other stack", "other stacks");
        writeln!(out, "\nrest       {n} (--top 0 shows all)")?;
    }
    Ok(())
}

fn cells(d: &OverheadData, name: String) -> Vec<String> {
    let mut all = vec![number(d.count)];
    let sizes = [d.requested_bytes, d.taken_bytes, d.rounding_bytes, d.header_bytes];
    all.extend(sizes.map(bytes));
    all.extend([percent(d.overhead_part), name]);
    all
}
