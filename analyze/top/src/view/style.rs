//! Colours, widths, and short forms of figures.

use ratatui::style::{Color, Modifier, Style};

/// The styles of a screen.
#[derive(Clone, Copy, Debug)]
pub(super) struct Theme {
    color: bool,
}

impl Theme {
    pub(super) fn new(color: bool) -> Self {
        Self { color }
    }

    fn of(self, color: Color) -> Style {
        if self.color { Style::new().fg(color) } else { Style::new() }
    }

    /// Titles.
    pub(super) fn bold(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    /// Returns the style of text of less interest.
    pub(super) fn dim(self) -> Style {
        if self.color { self.of(Color::DarkGray) } else { Style::new().add_modifier(Modifier::DIM) }
    }

    /// Names of functions.
    pub(super) fn name(self) -> Style {
        self.of(Color::Cyan)
    }

    /// Returns the style of figures that grow.
    pub(super) fn up(self) -> Style {
        self.of(Color::Red)
    }

    /// Returns the style of figures that shrink.
    pub(super) fn down(self) -> Style {
        self.of(Color::Green)
    }

    /// Restrictions of the figures.
    pub(super) fn warn(self) -> Style {
        self.of(Color::Yellow).add_modifier(Modifier::BOLD)
    }

    /// The live bytes of the timeline.
    pub(super) fn live(self) -> Style {
        self.of(Color::Cyan)
    }

    /// The resident memory of the timeline.
    pub(super) fn rss(self) -> Style {
        self.of(Color::Magenta)
    }

    /// Returns the style of the selected row.
    pub(super) fn chosen(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }

    /// The first and the last line, and column headers.
    pub(super) fn bar(self) -> Style {
        match self.color {
            true => Style::new().fg(Color::Black).bg(Color::Gray),
            false => Style::new().add_modifier(Modifier::REVERSED),
        }
    }
}

/// Units of a number of bytes, each 1,024 of the one before.
const UNITS: [&str; 7] = ["", "K", "M", "G", "T", "P", "E"];

/// Returns bytes in at most six characters, in the form that options take: `812.3M`, `1023`.
pub(super) fn bytes(n: u64) -> String {
    let (mut v, mut unit) = (n as f64, 0);
    while v >= if unit == 0 { 1024.0 } else { 999.95 } && unit + 1 < UNITS.len() {
        v /= 1024.0;
        unit += 1;
    }
    if unit == 0 { n.to_string() } else { format!("{v:.1}{}", UNITS[unit]) }
}

/// Returns a difference in bytes: `+1.2M`, `-3`; nothing for 0.
pub(super) fn signed(n: i64) -> String {
    match n {
        0 => String::new(),
        n if n < 0 => format!("-{}", bytes(n.unsigned_abs())),
        n => format!("+{}", bytes(n.unsigned_abs())),
    }
}

/// Returns a rate: `1,234`, `0.4`, `1.2M`; nothing for 0.
pub(super) fn rate(v: f64) -> String {
    match v {
        v if v <= 0.0 => String::new(),
        v if v < 9.95 => format!("{v:.1}"),
        v if v < 99_999.5 => prof_trace::values::text::number(v.round() as u64),
        v if v < 9_999_500.0 => format!("{:.0}k", v / 1e3),
        v => format!("{:.1}M", v / 1e6),
    }
}

/// Returns a count in at most eight characters.
pub(super) fn count(n: u64) -> String {
    match n {
        0..1_000_000 => prof_trace::values::text::number(n),
        1_000_000..1_000_000_000 => format!("{:.2}M", n as f64 / 1e6),
        _ => format!("{:.2}G", n as f64 / 1e9),
    }
}

/// Returns an age in at most seven characters: `850ms`, `12.3s`, `4m05s`, `3h07m`, `2d04h`.
pub(super) fn age(ns: u64) -> String {
    let s = ns / 1_000_000_000;
    match s {
        _ if ns == 0 => String::new(),
        0 => format!("{}ms", (ns / 1_000_000).max(1)),
        1..60 => format!("{:.1}s", (ns / 100_000_000) as f64 / 10.0),
        60..3600 => format!("{}m{:02}s", s / 60, s % 60),
        3600..86_400 => format!("{}h{:02}m", s / 3600, s / 60 % 60),
        86_400..86_400_000 => format!("{}d{:02}h", s / 86_400, s / 3600 % 24),
        _ => format!("{}d", s / 86_400),
    }
}

/// Shortens a text to a width in columns, with a mark.
pub(super) fn fit(text: &str, width: usize) -> String {
    if ratatui::text::Span::raw(text).width() <= width {
        return text.to_owned();
    }
    let (mut out, mut used) = (String::new(), 0);
    for c in text.chars() {
        let w = ratatui::text::Span::raw(c.to_string()).width();
        if used + w + 1 > width {
            break;
        }
        out.push(c);
        used += w;
    }
    if width > 0 {
        out.push('…');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_short() {
        assert_eq!(bytes(1023), "1023");
        assert_eq!(bytes(1024), "1.0K");
        assert_eq!(bytes(1_023_948), "999.9K");
        assert_eq!(bytes(1_023_949), "1.0M");
        assert_eq!(bytes(851_764_838), "812.3M");
        assert_eq!(signed(-3), "-3");
        assert_eq!(rate(0.04), "0.0");
        assert_eq!(rate(99_999.4), "99,999");
        assert_eq!(rate(812_345.0), "812k");
        assert_eq!(age(61_000_000_000), "1m01s");
        assert_eq!(age(59_999_999_999), "59.9s");
        for e in 0..64 {
            assert!(bytes(1 << e).len() <= 6 && bytes(u64::MAX >> e).len() <= 6, "{e}");
            assert!(age(1 << e).len() <= 7, "{e}");
        }
        assert_eq!(fit("dictExpand", 6), "dictE…");
        assert_eq!(fit("漢字漢字", 5), "漢字…");
    }
}
