//! Formats a report as text.

use super::places::PlaceData;
use super::words::{Times, figures_text, live};
use super::{AskedData, FrameData, GroupData, Report, SortKey};
use crate::style::{BOLD, DIM, FUNCTION, Style, base, chars, printable, shorten};
use prof_trace::values::text::{about_bytes, bytes, count, duration, number};
use std::fmt::{self, Write};

/// Least width that is assumed of a terminal.
const NARROWEST: usize = 60;
impl Report {
    /// Returns the report as text.
    pub fn text(&self, style: Style) -> String {
        let mut out = String::new();
        // Writing to a string can't fail.
        let _ = Text { report: self, style, out: &mut out }.all();
        out
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

struct Text<'a> {
    report: &'a Report,
    style: Style,
    out: &'a mut String,
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
                SortKey::Size | SortKey::Count | SortKey::Age if partial => self.style.hint(
                    "no block of the recording is live (--sort peak-size shows what was)",
                    "no block of the recording is live (report(\"peak-size\") shows what was)",
                ),
                sort => nothing(sort, self.style),
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
            let all = self.style.hint("--top 0", "report(0)");
            self.line("rest", &format!("{stacks}: {figure} ({all} shows all)"))?;
        }
        let (b, n) = (totals.live_bytes, totals.live_count);
        let text = live("live in", b, totals.live_bytes_stderr, n, totals.live_count_stderr);
        self.line("traced", &text)?;
        match kernel {
            Some(k) => {
                let (vss, rss) = (bytes(k.vss_bytes), bytes(k.rss_bytes));
                self.line("kernel", &format!("VSS {vss}, RSS {rss}, at {}", duration(k.at_ns)))?;
                let Some(r) = k.resident else { return Ok(()) };
                let left = match r.unexplained_bytes {
                    n if n < 0 => format!("-{}", bytes(n.unsigned_abs())),
                    n => bytes(n.unsigned_abs()),
                };
                let text = format!(
                    "{} at {}: heap and anonymous {}, stacks {}, code and files {}, prof {}, other {}, unexplained \
                     {left}; page tables {}",
                    bytes(r.rss_bytes),
                    duration(r.at_ns),
                    bytes(r.anonymous_bytes),
                    bytes(r.stacks_bytes),
                    bytes(r.files_bytes),
                    bytes(r.prof_bytes),
                    bytes(r.other_bytes),
                    bytes(r.page_tables_bytes)
                );
                self.line("resident", &text)
            }
            None => self.line("kernel", "VSS and RSS are not in the recording"),
        }
    }
}

/// Formats a frame: `  0 0x00007f.. function+0x12 (inlined) at file.c:7 (libx.so+0x1234)`. It fits into a line of the
/// terminal.
fn frame(style: Style, i: usize, f: &FrameData) -> String {
    let address = f.address.strip_prefix("0x").unwrap_or(&f.address);
    // A frame that stands for blocks from before the attach has a name and no code.
    let head = match (&f.function, &f.module) {
        (Some(_), None) => format!("{i:>3} "),
        _ => format!("{i:>3} 0x{address:0>16} "),
    };
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
fn nothing(sort: SortKey, style: Style) -> &'static str {
    match sort {
        SortKey::Size | SortKey::Count | SortKey::Age => style.hint(
            "nothing that was allocated while recording is live (--sort peak-size shows what was)",
            "nothing that was allocated while recording is live (report(\"peak-size\") shows what was)",
        ),
        SortKey::Temporary => "no temporary allocations were recorded",
        _ => "no allocations were recorded",
    }
}
