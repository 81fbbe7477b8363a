//! A report as text.

use super::units::{bytes, count, duration};
use super::{FrameData, GroupData, Report, SortKey};
use std::fmt::{self, Write};

/// How a report may look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Style {
    /// With colours.
    pub color: bool,
    /// Columns of the terminal; `None`: nothing is shortened.
    pub width: Option<usize>,
}

/// Shorter terminals are treated as if they had this width.
const NARROWEST: usize = 60;
/// So many functions that could not be hooked are listed.
const NOT_HOOKED: usize = 5;

const BOLD: &str = "1";
const DIM: &str = "2";
const WARN: &str = "33";
const FUNCTION: &str = "36";

impl Report {
    /// The report as text.
    pub fn text(&self, style: Style) -> String {
        let mut out = String::new();
        // Writing to a string does not fail.
        let _ = Text { report: self, style, out: &mut out }.all();
        out
    }
}

struct Text<'a> {
    report: &'a Report,
    style: Style,
    out: &'a mut String,
}

impl Text<'_> {
    fn paint(&self, code: &str, s: &str) -> String {
        if self.style.color { format!("\x1b[{code}m{s}\x1b[0m") } else { s.to_owned() }
    }

    fn all(&mut self) -> fmt::Result {
        self.header()?;
        let shown = &self.report.groups;
        if shown.is_empty() {
            writeln!(self.out, "\n{}", nothing(self.report.sort))?;
        }
        for (i, g) in shown.iter().enumerate() {
            self.group(i + 1, g)?;
        }
        self.footer()
    }

    fn line(&mut self, name: &str, text: &str) -> fmt::Result {
        let name = self.paint(DIM, &format!("{name:<10}"));
        writeln!(self.out, "{name} {text}")
    }

    fn header(&mut self) -> fmt::Result {
        let Report { target, recording: rec, totals: t, .. } = self.report;
        let name = if target.comm.is_empty() { "(unnamed)" } else { &target.comm };
        let title = self.paint(BOLD, &format!("{}, pid {}", printable(name), target.pid));
        self.line("program", &format!("{title}: {}", printable(&target.exe)))?;
        let on = rec.parts.iter().fold(0u64, |s, p| s.saturating_add(p.end_ns - p.start_ns));
        let mut time = duration(rec.duration_ns);
        // A few milliseconds pass before recording is first on; they are no pause.
        if rec.parts.len() != 1 || on < rec.duration_ns / 20 * 19 {
            let _ = write!(time, " ({} of it on)", duration(on));
        }
        let parts = count(rec.parts.len() as u64, "part", "parts");
        let end = match (&rec.end_reason, rec.complete) {
            (Some(r), true) => format!("complete: {}", printable(r)),
            _ => "not complete".to_owned(),
        };
        self.line("recording", &format!("{}: {parts}, {time}, {end}", printable(&rec.path)))?;
        let lost = format!("{} lost", count(rec.lost_events, "event", "events"));
        let lost = if rec.lost_events > 0 { self.paint(WARN, &lost) } else { lost };
        let calls = [
            count(t.allocations, "allocation", "allocations"),
            count(t.frees, "free", "frees"),
            count(t.reallocations, "reallocation", "reallocations"),
            format!("{} temporary", t.temporary),
            lost,
        ];
        self.line("calls", &calls.join(", "))?;
        let blocks = |n| count(n, "block", "blocks");
        self.line("live", &format!("{} in {}", bytes(t.live_bytes), blocks(t.live_count)))?;
        self.line("peak", &format!("{} at {}", bytes(t.peak_bytes), duration(t.peak_at_ns)))?;
        self.line("allocated", &format!("{} ever", bytes(t.allocated_bytes)))?;
        self.coverage()?;
        self.exactness()
    }

    fn coverage(&mut self) -> fmt::Result {
        let rec = &self.report.recording;
        let mut modules: Vec<(&str, u64)> = Vec::new();
        for h in &rec.hooks {
            match modules.iter_mut().find(|m| m.0 == h.module) {
                Some(m) => m.1 += 1,
                None => modules.push((&h.module, 1)),
            }
        }
        let modules: Vec<_> =
            modules.iter().map(|m| format!("{} in {}", m.1, printable(base(m.0)))).collect();
        let not = rec.not_hooked.len();
        let mut text = count(rec.hooks.len() as u64, "function hooked", "functions hooked");
        if !modules.is_empty() {
            let _ = write!(text, " ({})", modules.join(", "));
        }
        let _ = write!(text, ", {not} not hooked");
        self.line("coverage", &text)?;
        for n in rec.not_hooked.iter().take(NOT_HOOKED) {
            let (f, m, r) =
                (printable(&n.function), printable(base(&n.module)), printable(&n.reason));
            let text = self.paint(WARN, &format!("not hooked: {f} in {m}: {r}"));
            self.line("", &text)?;
        }
        if not > NOT_HOOKED {
            let more = count((not - NOT_HOOKED) as u64, "other function", "other functions");
            self.line("", &format!("not hooked: {more}, listed by --format json"))?;
        }
        Ok(())
    }

    fn exactness(&mut self) -> fmt::Result {
        let rec = &self.report.recording;
        let frees = |n| count(n, "free", "frees");
        let text = format!("{} of blocks from before the attach", frees(rec.unknown_frees));
        let text = if rec.parts.len() > 1 { format!("{text} or from a pause") } else { text };
        self.line("unknown", &text)?;
        if rec.implied_frees > 0 {
            let text = format!(
                "{} unseen, in a pause or lost: the address was handed out again",
                frees(rec.implied_frees)
            );
            self.line("", &text)?;
        }
        if rec.truncated_stacks > 0 {
            let text = count(rec.truncated_stacks, "stack", "stacks") + " cut short";
            self.line("stacks", &text)?;
        }
        if rec.reentered > 0 {
            let calls = count(rec.reentered, "call", "calls");
            self.line("signals", &format!("{calls} by signal handlers not recorded"))?;
        }
        for note in &rec.notes {
            let text = self.paint(WARN, note);
            self.line("note", &text)?;
        }
        Ok(())
    }

    fn group(&mut self, rank: usize, g: &GroupData) -> fmt::Result {
        let title = self.paint(BOLD, &format!("=== backtrace #{rank} ==="));
        let mut text = format!(
            "[count/peak: {}/{}] [size/peak: {}/{}]",
            g.live_count,
            g.peak_count,
            bytes(g.live_bytes),
            bytes(g.peak_bytes)
        );
        let age = g.oldest_live_age_ns.map_or("-".to_owned(), duration);
        write!(text, " [age: {age}]")?;
        match self.report.sort {
            SortKey::Allocated => write!(text, " [allocated: {}]", bytes(g.allocated_bytes))?,
            SortKey::Allocations if g.reallocations > 0 => {
                write!(text, " [allocations: {} + {} by realloc]", g.allocations, g.reallocations)?
            }
            SortKey::Allocations => write!(text, " [allocations: {}]", g.allocations)?,
            SortKey::Temporary => write!(
                text,
                " [temporary: {} of {}]",
                g.temporary,
                g.allocations + g.reallocations
            )?,
            _ => {}
        }
        writeln!(self.out, "\n{title} {text}")?;
        if g.frames.is_empty() {
            writeln!(self.out, "  (no stack)")?;
        }
        for (i, f) in g.frames.iter().enumerate() {
            let line = self.frame(i, f);
            writeln!(self.out, "{line}")?;
        }
        if g.truncated {
            writeln!(self.out, "  .. cut short: the outer frames are not known")?;
        }
        Ok(())
    }

    /// `  0 0x00007f.. function+0x12 (inlined) at file.c:7 (libx.so+0x1234)`; on a terminal no
    /// longer than its lines.
    fn frame(&self, i: usize, f: &FrameData) -> String {
        let address = f.address.strip_prefix("0x").unwrap_or(&f.address);
        let head = format!("{i:>3} 0x{address:0>16} ");
        let mut function = printable(f.function.as_deref().unwrap_or("??"));
        let offset = f.function_offset.map_or(String::new(), |o| format!("+{o:#x}"));
        let inlined = if f.inlined { " [inlined]" } else { "" };
        let mut place = match (&f.file, f.line) {
            (Some(file), Some(line)) => format!(" {}:{line}", printable(file)),
            (Some(file), None) => format!(" {}", printable(file)),
            _ => String::new(),
        };
        let module = match (&f.module, &f.offset) {
            (Some(m), Some(o)) => format!(" ({}+{o})", printable(base(m))),
            _ => String::new(),
        };
        if let Some(width) = self.style.width {
            let fixed = [&head, &offset, inlined, &module].map(chars).iter().sum::<usize>();
            let room = width.max(NARROWEST).saturating_sub(fixed);
            if chars(&function) + chars(&place) > room {
                let most = room.saturating_sub(chars(&function)).max(room / 2);
                place = shorten(&place, most);
                function = shorten(&function, room.saturating_sub(chars(&place)).max(8));
            }
        }
        let head = self.paint(DIM, &head);
        let function = self.paint(FUNCTION, &function);
        let module = self.paint(DIM, &module);
        format!("{head}{function}{offset}{inlined}{place}{module}")
    }

    fn footer(&mut self) -> fmt::Result {
        let Report { totals, kernel, rest, sort, .. } = self.report;
        writeln!(self.out)?;
        if rest.groups > 0 {
            let stacks = count(rest.groups, "other stack", "other stacks");
            let figure = match sort {
                SortKey::Allocated => format!("{} allocated ever", bytes(rest.allocated_bytes)),
                SortKey::Allocations => {
                    let n = rest.allocations + rest.reallocations;
                    count(n, "allocation", "allocations")
                }
                SortKey::Temporary => format!("{} temporary", rest.temporary),
                _ => {
                    let blocks = count(rest.live_count, "block", "blocks");
                    format!("{} live in {blocks}", bytes(rest.live_bytes))
                }
            };
            self.line("rest", &format!("{stacks}: {figure} (--top 0 shows all)"))?;
        }
        let blocks = count(totals.live_count, "block", "blocks");
        self.line("traced", &format!("{} live in {blocks}", bytes(totals.live_bytes)))?;
        match kernel {
            Some(k) => {
                let (vss, rss) = (bytes(k.vss_bytes), bytes(k.rss_bytes));
                self.line("kernel", &format!("VSS {vss}, RSS {rss}, at {}", duration(k.at_ns)))
            }
            None => self.line("kernel", "VSS and RSS are not in the recording"),
        }
    }
}

/// What to say if no group has anything of a key.
fn nothing(sort: SortKey) -> &'static str {
    match sort {
        SortKey::Size | SortKey::Count | SortKey::Age => {
            "nothing that was allocated while recording is live (--sort peak-size shows what was)"
        }
        SortKey::Temporary => "no temporary allocations were recorded",
        _ => "no allocations were recorded",
    }
}

/// The last part of a path.
fn base(path: &str) -> &str {
    path.rsplit('/').find(|s| !s.is_empty()).unwrap_or(path)
}

fn chars(s: &str) -> usize {
    s.chars().count()
}

/// Names come from the target and the recording: none shall move the cursor, or break a line.
fn printable(s: &str) -> String {
    if !s.contains(char::is_control) {
        return s.to_owned();
    }
    s.chars()
        .flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] })
        .collect()
}

/// Cuts the middle out of what is longer than `most`.
fn shorten(s: &str, most: usize) -> String {
    let n = chars(s);
    if n <= most {
        return s.to_owned();
    }
    let keep = most.saturating_sub(3);
    let front = keep.div_ceil(2);
    let head = s.chars().take(front);
    let tail = s.chars().skip(n - (keep - front));
    head.chain("...".chars()).chain(tail).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_is_cut_out() {
        assert_eq!(shorten("abcdefghij", 10), "abcdefghij");
        assert_eq!(shorten("abcdefghijk", 10), "abcd...ijk");
        assert_eq!(shorten("äöüäöüäöü", 5), "ä...ü");
        assert_eq!(shorten("abcdef", 0), "...");
    }

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(printable("a\x1b[2Jb\nc"), "a\\u{1b}[2Jb\\nc");
        assert_eq!(base("/usr/lib/libc.so.6"), "libc.so.6");
        assert_eq!(base("[vdso]"), "[vdso]");
    }
}
