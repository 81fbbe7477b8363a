//! Formats the verdicts as text.

use super::{Class, ClassData, Confidence, LeakData, Leaks};
use crate::objects;
use crate::report::{Style, asked_line, frame_lines};
use prof_trace::values::text::{bytes, count, duration};
use std::fmt::{self, Write};

impl Leaks {
    /// Returns the verdicts as text.
    pub fn text(&self, style: Style) -> String {
        let mut out = self.head.text(style);
        // Writing to a string can't fail.
        let _ = self.write(style, &mut out);
        out
    }

    fn write(&self, style: Style, out: &mut String) -> fmt::Result {
        writeln!(
            out,
            "\nverdicts on the blocks that were at least {} old when they were looked at:",
            duration(self.young_ns)
        )?;
        if let Some(n) = self.seen_per_hour {
            writeln!(
                out,
                "a sample this fine and this long shows what grows by {} an hour or more; for less, record \
                 longer, or finer (--sample=SIZE)",
                bytes(n)
            )?;
        }
        if self.scan_settled == Some(false) {
            writeln!(out, "proved: nothing, as the scan of the process came to no verdict")?;
        }
        for c in &self.classes {
            writeln!(out, "  {:<17} {}", c.class.name(), line(c))?;
        }
        let mut rank = 0;
        for (i, s) in self.stacks.iter().enumerate() {
            rank = if i > 0 && self.stacks[i - 1].class == s.class { rank + 1 } else { 1 };
            stack(rank, s, style, out)?;
        }
        let shown = |c: &&ClassData| {
            let n = self.stacks.iter().filter(|s| s.class == c.class).count() as u64;
            c.stacks > n
        };
        let left: Vec<_> = self.classes.iter().filter(shown).map(|c| c.class.name()).collect();
        if !left.is_empty() {
            writeln!(out, "\nmore stacks are {} (--top 0 --all shows them)", left.join(", "))?;
        }
        for m in &self.growing_mappings {
            writeln!(
                out,
                "\n=== mapping {} only grows === [resident: {}] [grown by: {} in {}] {} {}",
                m.id,
                bytes(m.rss),
                bytes(m.grown_bytes),
                duration(m.grown_ns),
                m.kind.name(),
                m.name
            )?;
            if !m.frames.is_empty() {
                frame_lines(&m.frames, false, style, out)?;
            }
        }
        Ok(())
    }
}

fn line(c: &ClassData) -> String {
    let stacks = count(c.stacks, "stack", "stacks");
    if c.stacks == 0 {
        return "none".into();
    }
    let grown = match c.class {
        Class::Proved => " to which nothing points".into(),
        Class::Growing | Class::FreedAtTheEnd => {
            format!(", {} an hour at least", bytes(c.growth_per_hour))
        }
        _ => String::new(),
    };
    format!("{stacks}, {}{grown}", bytes(c.bytes))
}

fn stack(rank: usize, s: &LeakData, style: Style, out: &mut String) -> fmt::Result {
    let title = format!("=== {} #{rank} ===", s.class.name());
    let title = if style.color { format!("\x1b[1m{title}\x1b[0m") } else { title };
    write!(out, "\n{title}")?;
    if let Some(u) = &s.unreachable {
        let blocks = count(u.unreachable_count, "block", "blocks");
        write!(out, " [unreachable: {} in {blocks}]", bytes(u.unreachable_bytes))?;
        if u.indirect_count > 0 {
            let blocks = count(u.indirect_count, "block", "blocks");
            write!(out, " [of these, others point to: {} in {blocks}]", bytes(u.indirect_bytes))?;
        }
    }
    write!(out, " [holds: {}]", bytes(s.bytes))?;
    write!(out, " [live: {} in {}]", bytes(s.live_bytes), count(s.live_count, "block", "blocks"))?;
    if let Some(trend) = s.trend {
        write!(out, " [over time: {}]", trend.name())?;
    }
    if s.trend.unwrap_or(s.class) == Class::FreedAtTheEnd {
        write!(out, " [freed at the end: {}]", bytes(s.freed_at_end_bytes))?;
    }
    if matches!(s.trend.unwrap_or(s.class), Class::Growing | Class::FreedAtTheEnd) {
        let (least, mean) = (bytes(s.growth_per_hour), bytes(s.mean_growth_per_hour));
        write!(out, " [growth: {least}/h at least, {mean}/h on average]")?;
    }
    if let Some([least, most]) = s.sizes {
        write!(out, " [sizes: {} to {}]", bytes(least), bytes(most))?;
    }
    if let Some(ns) = s.older_ns {
        write!(out, " [blocks older than {}]", duration(ns))?;
    }
    if s.replaced_count > 0 {
        let blocks = count(s.replaced_count, "block", "blocks");
        write!(out, " [given back meanwhile, from before the recording: {blocks}]")?;
    }
    let sure = match s.confidence {
        Confidence::High => "high",
        Confidence::Medium => "medium",
        Confidence::Low => "low",
    };
    writeln!(out, " [confidence: {sure}]")?;
    if let Some(line) = objects::line(&s.classes) {
        writeln!(out, "{line}")?;
    }
    asked_line(s.asked_by.as_ref(), style, out)?;
    let most = s.held.iter().copied().max().unwrap_or(0);
    // Blocks that were too young at each moment have no curve.
    if most > 0 {
        writeln!(out, "  {} {} at most", spark(&s.held), bytes(most))?;
    }
    frame_lines(&s.frames, s.truncated, style, out)
}

/// Draws a curve with one character for two moments, from zero to the greatest value.
fn spark(held: &[u64]) -> String {
    const BARS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let most = held.iter().copied().max().unwrap_or(0).max(1) as f64;
    let bar = |pair: &[u64]| {
        let v = pair.iter().copied().max().unwrap_or(0);
        BARS[(v as f64 / most * 8.0).ceil().min(8.0) as usize]
    };
    held.chunks(2).map(bar).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sparklines_span_from_nothing_to_the_most() {
        let held: Vec<u64> = (0..16).map(|i| i * 10).collect();
        assert_eq!(spark(&held), "▁▂▃▄▅▆▇█");
        assert_eq!(spark(&[0, 0, 0]), "  ");
    }
}
