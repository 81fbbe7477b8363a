//! Formats a report as text.

use super::merged::temporary;
use super::places::PlaceData;
use super::rows::RowData;
use super::{AskedData, FiguresData, FrameData, GroupData, Head, Report, SortKey, SumData};
use crate::unseen::workers_text;
use prof_trace::values::text::{about, about_bytes, about_number, bytes, count, duration, number};
use std::fmt::{self, Write};

/// The style of a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Style {
    /// Use colours.
    pub color: bool,
    /// Width of the terminal in columns; `None`: nothing is shortened.
    pub width: Option<usize>,
}

/// Least width that is assumed of a terminal.
const NARROWEST: usize = 60;
/// Number of functions that could not be hooked that are listed.
const NOT_HOOKED: usize = 5;

pub(super) const BOLD: &str = "1";
pub(super) const DIM: &str = "2";
pub(super) const WARN: &str = "33";
const FUNCTION: &str = "36";

impl Report {
    /// Returns the report as text.
    pub fn text(&self, style: Style) -> String {
        let mut out = String::new();
        // Writing to a string can't fail.
        let _ = Text { report: self, style, out: &mut out }.all();
        out
    }
}

impl Head {
    /// Returns the lines at the top of every report.
    pub fn text(&self, style: Style) -> String {
        let mut out = String::new();
        // Writing to a string can't fail.
        let _ = HeadText { head: self, style, out: &mut out }.header();
        out
    }
}

impl Style {
    pub(super) fn paint(self, code: &str, s: &str) -> String {
        if self.color { format!("\x1b[{code}m{s}\x1b[0m") } else { s.to_owned() }
    }

    pub(super) fn line(self, out: &mut String, name: &str, text: &str) -> fmt::Result {
        let name = self.paint(DIM, &format!("{name:<10}"));
        writeln!(out, "{name} {text}")
    }
}

/// Writes the frames of a stack, a line each.
pub(crate) fn frame_lines(
    frames: &[FrameData],
    truncated: bool,
    style: Style,
    out: &mut String,
) -> fmt::Result {
    if frames.is_empty() {
        writeln!(out, "  (no stack)")?;
    }
    for (i, f) in frames.iter().enumerate() {
        writeln!(out, "{}", frame(style, i, f))?;
    }
    if truncated {
        writeln!(out, "{CUT_SHORT}")?;
    }
    Ok(())
}

const CUT_SHORT: &str = "  .. cut short: the outer frames are not known";

/// Writes the frames outside of a place, indented and numbered from 1.
pub(super) fn printable_frames(
    frames: &[FrameData],
    truncated: bool,
    style: Style,
    out: &mut String,
) -> fmt::Result {
    for (i, f) in frames.iter().enumerate() {
        writeln!(out, "  {}", frame(style, i + 1, f))?;
    }
    if truncated {
        writeln!(out, "  {CUT_SHORT}")?;
    }
    Ok(())
}

/// Formats a place in one line: `insert cache.c:7 (server)`.
pub(super) fn place_line(p: &PlaceData) -> String {
    let mut text = match (&p.function, &p.offset) {
        (Some(name), _) => printable(name),
        (None, Some(offset)) => format!("?? {offset}"),
        (None, None) => "??".to_owned(),
    };
    if p.inlined {
        text.push_str(" [inlined]");
    }
    // Writing to a string can't fail.
    let _ = match (&p.file, p.line) {
        (Some(file), Some(line)) => write!(text, " {}:{line}", printable(file)),
        (Some(file), None) => write!(text, " {}", printable(file)),
        _ => Ok(()),
    };
    if let Some(m) = &p.module {
        let _ = write!(text, " ({})", printable(base(m)));
    }
    text
}

/// Writes the place that asked for blocks, and the library function or wrapper it called: `open_session leak.cpp:10, by
/// std::vector::resize`.
pub(crate) fn asked_line(asked: Option<&AskedData>, style: Style, out: &mut String) -> fmt::Result {
    let Some(asked) = asked else { return Ok(()) };
    let mut text = place_line(&PlaceData { module: None, ..asked.place.clone() });
    if asked.place.file.is_none()
        && let Some(module) = &asked.place.module
    {
        write!(text, " ({})", printable(base(module)))?;
    }
    if let Some(through) = &asked.through {
        write!(text, ", by {}", printable(through))?;
    }
    writeln!(out, "{}", style.paint(FUNCTION, &text))
}

/// Times of a row, in nanoseconds.
#[derive(Clone, Copy, Default)]
struct Times {
    age: Option<u64>,
    first: Option<u64>,
    last: Option<u64>,
    peak: Option<u64>,
}

/// Formats the figures of a row, including its sort key.
pub(super) fn bracketed(f: &FiguresData, row: &RowData, sort: SortKey) -> String {
    let times = Times {
        age: row.oldest_live_age_ns,
        first: row.first_ns,
        last: row.last_ns,
        peak: row.peak_at_ns,
    };
    figures_text(f, times, sort)
}

fn figures_text(f: &FiguresData, t: Times, sort: SortKey) -> String {
    let mut text = format!(
        "[count/peak: {}/{}] [size/peak: {}/{}]",
        about_number(f.live_count, f.live_count_stderr),
        about_number(f.peak_count, f.peak_count_stderr),
        about_bytes(f.live_bytes, f.live_bytes_stderr),
        about_bytes(f.peak_bytes, f.peak_bytes_stderr)
    );
    let time = |t: Option<u64>| t.map_or("-".to_owned(), duration);
    // Writing to a string can't fail.
    let _ = write!(text, " [age: {}]", time(t.age));
    let _ = match sort {
        SortKey::Allocated => {
            let n = about_bytes(f.allocated_bytes, f.allocated_bytes_stderr);
            write!(text, " [allocated: {n}]")
        }
        SortKey::Allocations => {
            let n = about_number(f.allocations, f.allocations_stderr);
            let again = about_number(f.reallocations, f.reallocations_stderr);
            match f.reallocations {
                0 => write!(text, " [allocations: {n}]"),
                _ => write!(text, " [allocations: {n} + {again} by realloc]"),
            }
        }
        SortKey::Temporary => {
            let n = f.temporary.unwrap_or(0);
            write!(text, " [{}]", temporary(n, f.allocations + f.reallocations))
        }
        SortKey::First => write!(text, " [first: {}]", time(t.first)),
        SortKey::Last => write!(text, " [last: {}]", time(t.last)),
        SortKey::PeakAt => write!(text, " [peak at: {}]", time(t.peak)),
        SortKey::Interval => {
            let interval = t.first.zip(t.last).map(|(a, b)| b.saturating_sub(a));
            write!(text, " [interval: {}]", time(interval))
        }
        _ => Ok(()),
    };
    text
}

struct Text<'a> {
    report: &'a Report,
    style: Style,
    out: &'a mut String,
}

struct HeadText<'a> {
    head: &'a Head,
    style: Style,
    out: &'a mut String,
}

impl HeadText<'_> {
    fn paint(&self, code: &str, s: &str) -> String {
        self.style.paint(code, s)
    }

    fn line(&mut self, name: &str, text: &str) -> fmt::Result {
        self.style.line(self.out, name, text)
    }

    fn header(&mut self) -> fmt::Result {
        let Head { target, recording: rec, totals: t, .. } = self.head;
        let name = if target.comm.is_empty() { "(unnamed)" } else { &target.comm };
        let title = self.paint(BOLD, &format!("{}, pid {}", printable(name), target.pid));
        self.line("program", &format!("{title}: {}", printable(&target.exe)))?;
        let on = rec.parts.iter().fold(0u64, |s, p| s.saturating_add(p.end_ns - p.start_ns));
        let mut time = duration(rec.duration_ns);
        // A few milliseconds pass before recording is on for the first time; they do not count as a pause.
        if rec.parts.len() != 1 || on < rec.duration_ns / 20 * 19 {
            let _ = write!(time, " ({} of it on)", duration(on));
        }
        let parts = count(rec.parts.len() as u64, "part", "parts");
        let end = match (&rec.end_reason, rec.complete) {
            (Some(r), true) => format!("complete: {}", printable(r)),
            _ => "not complete".to_owned(),
        };
        self.line("recording", &format!("{}: {parts}, {time}, {end}", printable(&rec.path)))?;
        let given: Vec<_> = self
            .head
            .filter
            .iter()
            .map(|f| format!("--{} {}", f.name, printable(&f.value)))
            .collect();
        if !given.is_empty() {
            let text = format!("{}: the figures are of these blocks only", given.join(" "));
            self.line("filter", &self.paint(WARN, &text))?;
        }
        self.suppressed()?;
        if let Some(at) = self.head.at_ns {
            let text = format!("as it was at {}", duration(at));
            self.line("moment", &self.paint(WARN, &text))?;
        }
        let lost = format!("{} lost", count(rec.lost_events, "event", "events"));
        let lost = if rec.lost_events > 0 { self.paint(WARN, &lost) } else { lost };
        let calls = [
            Some(about(t.allocations, t.allocations_stderr, "allocation", "allocations")),
            Some(about(t.frees, t.frees_stderr, "free", "frees")),
            Some(about(t.reallocations, t.reallocations_stderr, "reallocation", "reallocations")),
            t.temporary.map(|n| format!("{} temporary", number(n))),
            Some(lost),
        ];
        self.line("calls", &calls.into_iter().flatten().collect::<Vec<_>>().join(", "))?;
        self.capture()?;
        let (b, n) = (t.live_bytes, t.live_count);
        self.line("live", &live("in", b, t.live_bytes_stderr, n, t.live_count_stderr))?;
        let peak = about_bytes(t.peak_bytes, t.peak_bytes_stderr);
        self.line("peak", &format!("{peak} at {}", duration(t.peak_at_ns)))?;
        let allocated = about_bytes(t.allocated_bytes, t.allocated_bytes_stderr);
        self.line("allocated", &format!("{allocated} ever"))?;
        self.coverage()?;
        self.unseen()?;
        self.exactness()
    }

    /// Writes signs that the recording misses memory.
    fn unseen(&mut self) -> fmt::Result {
        let unseen = self.head.unseen.iter().flat_map(|u| &u.text);
        let workers = workers_text(&self.head.workers);
        let lines = unseen.enumerate().map(|(i, t)| (if i == 0 { "unseen" } else { "" }, t));
        for (name, text) in lines.chain(workers.iter().map(|t| ("workers", t))) {
            let text = self.style.paint(WARN, text);
            self.style.line(self.out, name, &text)?;
        }
        Ok(())
    }

    /// Writes the figures that suppression rules removed.
    fn suppressed(&mut self) -> fmt::Result {
        let Some(s) = &self.head.suppressed else { return Ok(()) };
        let what = |sums: &SumData, stacks: u64| {
            let (b, n) = (sums.live_bytes, sums.live_count);
            let live = live("in", b, sums.live_bytes_stderr, n, sums.live_count_stderr);
            format!("{live}, of {}", count(stacks, "stack", "stacks"))
        };
        let text = format!("{}: left out of all figures", what(&s.sums, s.stacks));
        self.line("suppressed", &self.paint(WARN, &text))?;
        for r in &s.rules {
            let text =
                format!("{} ({}): {}", printable(&r.rule), base(&r.from), what(&r.sums, r.stacks));
            self.line("", &text)?;
        }
        for path in &s.unread {
            let text = format!("{path}: its own suppressions could not be found in its data");
            self.line("", &self.paint(WARN, &text))?;
        }
        Ok(())
    }

    /// Writes which blocks are recorded, unless all are.
    fn capture(&mut self) -> fmt::Result {
        let Some(c) = &self.head.recording.capture else { return Ok(()) };
        if c.is_sampled() {
            let how = match (c.sample_bytes, c.sample_bytes_range) {
                (_, Some([least, most])) if least < most => format!(
                    "one for each {} to {} allocated, on average, as much as the program allocates",
                    bytes(least),
                    bytes(most)
                ),
                (0, _) => format!("one in {} allocations of each thread", number(c.sample_every)),
                (n, _) => format!("one for each {} allocated, on average", bytes(n)),
            };
            let text = format!("{how}; figures are estimates, ± their standard error");
            let text = self.paint(WARN, &text);
            self.line("sampled", &text)?;
        }
        let text = match (c.min_size, c.max_size) {
            (0, None) => return Ok(()),
            (min, None) => format!("blocks smaller than {} are not in the recording", bytes(min)),
            (0, Some(max)) => format!("blocks larger than {} are not in the recording", bytes(max)),
            (min, Some(max)) => format!(
                "blocks smaller than {} or larger than {} are not in the recording",
                bytes(min),
                bytes(max)
            ),
        };
        let text = self.paint(WARN, &text);
        self.line("filtered", &text)
    }

    fn coverage(&mut self) -> fmt::Result {
        let rec = &self.head.recording;
        let mut modules: Vec<(&str, u64)> = Vec::new();
        let functions = || rec.hooks.iter().filter(|h| h.alias_of.is_none());
        for h in functions() {
            match modules.iter_mut().find(|m| m.0 == h.module) {
                Some(m) => m.1 += 1,
                None => modules.push((&h.module, 1)),
            }
        }
        let modules: Vec<_> = modules
            .iter()
            .map(|m| format!("{} in {}", number(m.1), printable(base(m.0))))
            .collect();
        let not = rec.not_hooked.len();
        let mut text = count(functions().count() as u64, "function hooked", "functions hooked");
        if !modules.is_empty() {
            let _ = write!(text, " ({})", modules.join(", "));
        }
        let _ = write!(text, ", {} not hooked", number(not as u64));
        self.line("coverage", &text)?;
        for n in rec.not_hooked.iter().take(NOT_HOOKED) {
            let name = crate::symbols::demangle(&n.function);
            let (f, m, r) = (printable(&name), printable(base(&n.module)), printable(&n.reason));
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
        let rec = &self.head.recording;
        let frees = |n| count(n, "free", "frees");
        let text = format!("{} of blocks from before the attach", frees(rec.unknown_frees));
        let text = if rec.parts.len() > 1 { format!("{text} or from a pause") } else { text };
        let text = match rec.capture {
            Some(_) => "frees of blocks that are not in the recording are not counted".to_owned(),
            None => text,
        };
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
        if rec.verified_stacks > 0 {
            let stacks = count(rec.verified_stacks, "stack", "stacks");
            let text =
                format!("{stacks} taken both ways, {} differ", number(rec.mismatched_stacks));
            self.line("verified", &text)?;
        }
        for note in &rec.notes {
            let text = self.paint(WARN, note);
            self.line("note", &text)?;
        }
        Ok(())
    }
}

impl Text<'_> {
    fn paint(&self, code: &str, s: &str) -> String {
        self.style.paint(code, s)
    }

    fn all(&mut self) -> fmt::Result {
        self.out.push_str(&self.report.head.text(self.style));
        self.report.symbols.write(self.style, self.out)?;
        let shown = &self.report.groups;
        if shown.is_empty() {
            let partial = self.report.head.recording.capture.is_some();
            let text = match self.report.sort {
                SortKey::Temporary if partial => {
                    "temporary allocations are not known, as not all blocks were recorded"
                }
                SortKey::Size | SortKey::Count | SortKey::Age if partial => {
                    "no block of the recording is live (--sort peak-size shows what was)"
                }
                sort => nothing(sort),
            };
            writeln!(self.out, "\n{text}")?;
        }
        for (i, g) in shown.iter().enumerate() {
            self.group(i + 1, g)?;
        }
        self.footer()
    }

    fn line(&mut self, name: &str, text: &str) -> fmt::Result {
        self.style.line(self.out, name, text)
    }

    fn group(&mut self, rank: usize, g: &GroupData) -> fmt::Result {
        let title = self.paint(BOLD, &format!("=== backtrace #{rank} ==="));
        let times = Times {
            age: g.oldest_live_age_ns,
            first: Some(g.first_ns),
            last: Some(g.last_ns),
            peak: Some(g.peak_at_ns),
        };
        let text = figures_text(&g.figures, times, self.report.sort);
        writeln!(self.out, "\n{title} {text}")?;
        asked_line(g.asked_by.as_ref(), self.style, self.out)?;
        let shown = match self.report.depth {
            0 => g.frames.len(),
            n => n.min(g.frames.len()),
        };
        frame_lines(&g.frames[..shown], false, self.style, self.out)?;
        let more = g.frames.len() - shown;
        if more > 0 {
            writeln!(
                self.out,
                "  .. {} (--depth)",
                count(more as u64, "more frame", "more frames")
            )?;
        }
        if g.truncated {
            writeln!(self.out, "{CUT_SHORT}")?;
        }
        Ok(())
    }

    fn footer(&mut self) -> fmt::Result {
        let Report { head, kernel, rest, sort, .. } = self.report;
        let totals = &head.totals;
        writeln!(self.out)?;
        if rest.groups > 0 {
            let stacks = count(rest.groups, "other stack", "other stacks");
            let figure = match sort {
                SortKey::Allocated => {
                    let n =
                        about_bytes(rest.sums.allocated_bytes, rest.sums.allocated_bytes_stderr);
                    format!("{n} allocated ever")
                }
                SortKey::Allocations => {
                    let n = rest.sums.allocations + rest.sums.reallocations;
                    count(n, "allocation", "allocations")
                }
                SortKey::Temporary => {
                    format!("{} temporary", number(rest.sums.temporary.unwrap_or(0)))
                }
                _ => {
                    let (b, n) = (rest.sums.live_bytes, rest.sums.live_count);
                    live("live in", b, rest.sums.live_bytes_stderr, n, rest.sums.live_count_stderr)
                }
            };
            self.line("rest", &format!("{stacks}: {figure} (--top 0 shows all)"))?;
        }
        let (b, n) = (totals.live_bytes, totals.live_count);
        let text = live("live in", b, totals.live_bytes_stderr, n, totals.live_count_stderr);
        self.line("traced", &text)?;
        match kernel {
            Some(k) => {
                let (vss, rss) = (bytes(k.vss_bytes), bytes(k.rss_bytes));
                self.line("kernel", &format!("VSS {vss}, RSS {rss}, at {}", duration(k.at_ns)))
            }
            None => self.line("kernel", "VSS and RSS are not in the recording"),
        }
    }
}

/// Formats bytes and blocks: `20.0 KiB in 3 blocks`, `20.0 KiB live in 3 blocks`.
fn live(how: &str, b: u64, b_error: Option<u64>, n: u64, n_error: Option<u64>) -> String {
    format!("{} {how} {}", about_bytes(b, b_error), about(n, n_error, "block", "blocks"))
}

/// Formats a frame: `  0 0x00007f.. function+0x12 (inlined) at file.c:7 (libx.so+0x1234)`. It fits into a line of the
/// terminal.
fn frame(style: Style, i: usize, f: &FrameData) -> String {
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
    if let Some(width) = style.width {
        let fixed = [&head, &offset, inlined, &module].map(chars).iter().sum::<usize>();
        let room = width.max(NARROWEST).saturating_sub(fixed);
        if chars(&function) + chars(&place) > room {
            let most = room.saturating_sub(chars(&function)).max(room / 2);
            place = shorten(&place, most);
            function = shorten(&function, room.saturating_sub(chars(&place)).max(8));
        }
    }
    let head = style.paint(DIM, &head);
    let function = style.paint(FUNCTION, &function);
    let module = style.paint(DIM, &module);
    format!("{head}{function}{offset}{inlined}{place}{module}")
}

/// Returns the message for a report without rows, given its sort key.
fn nothing(sort: SortKey) -> &'static str {
    match sort {
        SortKey::Size | SortKey::Count | SortKey::Age => {
            "nothing that was allocated while recording is live (--sort peak-size shows what was)"
        }
        SortKey::Temporary => "no temporary allocations were recorded",
        _ => "no allocations were recorded",
    }
}

/// Returns the last component of a path.
pub(super) fn base(path: &str) -> &str {
    path.rsplit('/').find(|s| !s.is_empty()).unwrap_or(path)
}

fn chars(s: &str) -> usize {
    s.chars().count()
}

/// Escapes control characters: names come from the target and the recording, and must not move the cursor or break a
/// line.
pub(super) fn printable(s: &str) -> String {
    if !s.contains(char::is_control) {
        return s.to_owned();
    }
    s.chars()
        .flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] })
        .collect()
}

/// Replaces the middle of a text that is longer than `most`.
pub(super) fn shorten(s: &str, most: usize) -> String {
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
