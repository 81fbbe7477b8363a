//! Formats a comparison as text.

use super::{Change, Diff, DiffData};
use crate::maps::What;
use crate::report::{Head, Style, frame_lines};
use prof_trace::values::text::{
    bytes, count, duration, number, signed_bytes as signed, signed_number,
};
use std::fmt::{self, Write};

impl Diff {
    /// Returns the comparison as text.
    pub fn text(&self, style: Style) -> String {
        let mut out = String::new();
        // Writing to a string can't fail.
        let _ = self.write(style, &mut out);
        out
    }

    fn write(&self, style: Style, out: &mut String) -> fmt::Result {
        for (name, head) in [("before", &self.before), ("after", &self.after)] {
            writeln!(out, "{name:<10} {}", side(head))?;
            for note in &head.recording.notes {
                writeln!(out, "{:<10} {note}", "")?;
            }
        }
        for f in &self.after.filter {
            writeln!(out, "filter     --{} {}", f.name, f.value)?;
        }
        for m in &self.rebuilt {
            writeln!(out, "rebuilt    {m}: its functions are compared without offsets")?;
        }
        let only = self.maps.as_ref().filter(|m| m.what == What::Maps);
        if let Some(maps) = only {
            return maps.write(style, out);
        }
        writeln!(out, "change     {}", change(&self.total))?;
        for (i, s) in self.stacks.iter().enumerate() {
            stack(i + 1, s, style, out)?;
        }
        writeln!(out)?;
        if self.rest_stacks > 0 {
            let stacks = count(self.rest_stacks, "other stack", "other stacks");
            writeln!(out, "rest       {stacks}: {} (--top 0 shows all)", change(&self.rest))?;
        }
        let same = count(self.same_stacks, "stack is", "stacks are");
        writeln!(out, "same       {same} as before")?;
        self.maps.as_ref().map_or(Ok(()), |maps| maps.write(style, out))
    }
}

fn side(h: &Head) -> String {
    let t = &h.totals;
    let at = h.at_ns.unwrap_or(h.recording.duration_ns);
    let blocks = count(t.live_count, "block", "blocks");
    let lost = match h.recording.lost_events {
        0 => String::new(),
        n => format!(", {} lost", count(n, "event", "events")),
    };
    let comm = &h.target.comm;
    let pid = if h.target.pid == 0 { String::new() } else { format!(", pid {}", h.target.pid) };
    let (live, path) = (bytes(t.live_bytes), &h.recording.path);
    format!("{comm}{pid}: {path} at {}: {live} live in {blocks}{lost}", duration(at))
}

fn change(c: &Change) -> String {
    format!(
        "{} live in {} blocks, {} allocated by {} allocations",
        signed(c.live_bytes),
        signed_number(c.live_count),
        signed(c.allocated_bytes),
        signed_number(c.allocations)
    )
}

fn stack(rank: usize, s: &DiffData, style: Style, out: &mut String) -> fmt::Result {
    let how = match (s.before.allocations, s.after.allocations) {
        (0, _) => "new",
        (_, 0) => "gone",
        _ => match s.change.live_bytes.signum() {
            1 => "grown",
            -1 => "shrunk",
            _ => "changed",
        },
    };
    let title = format!("=== {how} #{rank} ===");
    let title = if style.color { format!("\x1b[1m{title}\x1b[0m") } else { title };
    let (b, a) = (&s.before, &s.after);
    writeln!(
        out,
        "\n{title} [size: {} -> {}, {}] [count: {} -> {}] [allocations: {} -> {}]",
        bytes(b.live_bytes),
        bytes(a.live_bytes),
        signed(s.change.live_bytes),
        number(b.live_count),
        number(a.live_count),
        number(b.allocations),
        number(a.allocations)
    )?;
    frame_lines(&s.frames, s.truncated, style, out)
}
