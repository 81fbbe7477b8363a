//! Formats the lines at the top of every report.

use super::head::MarkData;
use super::words::live;
use super::{Head, SumData};
use crate::style::{BOLD, Style, WARN, base, printable};
use crate::unseen::workers_text;
use prof_trace::records::End;
use prof_trace::values::text::{about, about_bytes, bytes, count, duration, number};
use std::fmt::{self, Write};

/// Number of functions that could not be hooked that are listed.
const NOT_HOOKED: usize = 5;
/// Number of periods with one sampling distance each that are listed.
pub(crate) const DISTANCES: usize = 6;
/// Number of marks that are listed.
const MARKS: usize = 8;

impl Head {
    /// Returns the lines at the top of every report.
    pub fn text(&self, style: Style) -> String {
        let mut out = String::new();
        // Writing to a string can't fail.
        let _ = HeadText { head: self, style, out: &mut out }.header();
        out
    }
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
        // The processes of a family have none in common.
        let pid = if target.pid == 0 { String::new() } else { format!(", pid {}", target.pid) };
        let title = self.paint(BOLD, &format!("{}{pid}", printable(name)));
        self.line("program", &format!("{title}: {}", printable(&target.exe)))?;
        let on = rec.parts.iter().fold(0u64, |s, p| s.saturating_add(p.end_ns - p.start_ns));
        let mut time = duration(rec.duration_ns);
        // A few milliseconds pass before recording is on for the first time; they do not count as a pause.
        if rec.parts.len() != 1 || on < rec.duration_ns / 20 * 19 {
            let _ = write!(time, " ({} of it on)", duration(on));
        }
        let parts = count(rec.parts.len() as u64, "part", "parts");
        let reason = rec.end_reason.as_deref().map(|r| match r.strip_prefix(End::LIMIT) {
            Some(bound) => (true, format!("ended early, at a bound: {}", printable(bound))),
            None => (false, printable(r)),
        });
        let end = match (reason, rec.complete) {
            (Some((true, at_bound)), true) => at_bound,
            (Some((_, r)), true) => format!("complete: {r}"),
            (Some((_, r)), false) => format!("not complete ({r})"),
            _ => "not complete".to_owned(),
        };
        self.line("recording", &format!("{}: {parts}, {time}, {end}", printable(&rec.path)))?;
        self.marks()?;
        let given: Vec<_> = self
            .head
            .filter
            .iter()
            .map(|f| {
                let (name, value) = (&f.name, printable(&f.value));
                match self.style.of_script {
                    true => format!(".only(\"{name}\", {value:?})"),
                    false => format!("--{name} {value}"),
                }
            })
            .collect();
        if !given.is_empty() {
            let given = given.join(self.style.hint(" ", ""));
            let text = format!("{given}: the figures are of these blocks only");
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
        if let Some(before) = &t.before_attach {
            self.line("before", &before.text())?;
        }
        let peak = about_bytes(t.peak_bytes, t.peak_bytes_stderr);
        let is_of_all = self.head.filter.is_empty() && self.head.at_ns.is_none();
        let is_bound = is_of_all && rec.joined.is_some_and(|j| j.peaks_at_most);
        let at_most = if is_bound { "at most " } else { "" };
        self.line("peak", &format!("{at_most}{peak} at {}", duration(t.peak_at_ns)))?;
        let allocated = about_bytes(t.allocated_bytes, t.allocated_bytes_stderr);
        self.line("allocated", &format!("{allocated} ever"))?;
        self.coverage()?;
        self.unseen()?;
        self.exactness()
    }

    /// Writes the last marks, with their times.
    fn marks(&mut self) -> fmt::Result {
        let marks = &self.head.recording.marks;
        if marks.is_empty() {
            return Ok(());
        }
        let text = |m: &MarkData| {
            let name = if m.name.is_empty() { String::new() } else { format!("{} ", m.name) };
            format!("#{} {name}at {}", m.number, duration(m.at_ns))
        };
        let from = marks.len().saturating_sub(MARKS);
        let earlier = (from > 0).then(|| format!("{} before them", number(from as u64)));
        let all: Vec<_> = marks[from..].iter().map(text).chain(earlier).collect();
        self.line("marks", &all.join(", "))
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
                    "one for each {} to {} allocated, on average, as the cost of recording allows",
                    bytes(least),
                    bytes(most)
                ),
                (0, _) => format!("one in {} allocations of each thread", number(c.sample_every)),
                (n, _) => format!("one for each {} allocated, on average", bytes(n)),
            };
            let text = format!("{how}; figures are estimates, ± their standard error");
            let text = self.paint(WARN, &text);
            self.line("sampled", &text)?;
            self.distances()?;
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

    /// Writes from when to when each distance held, of the last [`DISTANCES`] that did.
    fn distances(&mut self) -> fmt::Result {
        let all = &self.head.recording.distances;
        if all.len() < 2 {
            return Ok(());
        }
        let left_out = all.len().saturating_sub(DISTANCES);
        for (i, d) in all.iter().enumerate().skip(left_out) {
            let before = match (left_out, i == left_out) {
                (0, _) | (_, false) => String::new(),
                (n, true) => format!(
                    "{} before these, which prof info lists; ",
                    count(n as u64, "period", "periods")
                ),
            };
            let (start, end) = (duration(d.start_ns), duration(d.end_ns));
            self.line("", &format!("{before}{start} to {end}: one for each {}", bytes(d.bytes)))?;
        }
        Ok(())
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
            let by = self.style.hint("--format json", "`prof report --format json`");
            self.line("", &format!("not hooked: {more}, listed by {by}"))?;
        }
        Ok(())
    }

    fn exactness(&mut self) -> fmt::Result {
        let rec = &self.head.recording;
        let frees = |n| count(n, "free", "frees");
        let mut text = format!("{} of blocks from before the attach", frees(rec.unknown_frees));
        if rec.parts.len() > 1 {
            text += " or from a pause";
        }
        if rec.lost_events > 0 {
            text += ", or whose allocations were lost";
        }
        let text = match rec.capture {
            Some(_) => "frees of blocks that are not in the recording are not counted".to_owned(),
            None => text,
        };
        self.line("unknown", &text)?;
        if rec.implied_frees > 0 {
            let text = format!(
                "{} missing (made in a pause, or lost): these blocks count as live until their address is allocated again",
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
