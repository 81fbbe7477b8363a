//! The style of text: colours, widths, and what keeps names from disturbing a terminal.

use std::fmt::{self, Write};

/// The style of a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Style {
    /// Use colours.
    pub color: bool,
    /// Width of the terminal in columns; `None`: nothing is shortened.
    pub width: Option<usize>,
    /// Hints name methods of scripts, and not options of the command line.
    pub of_script: bool,
}

/// Titles.
pub(crate) const BOLD: &str = "1";
/// Names of lines, and what is of less interest.
pub(crate) const DIM: &str = "2";
/// Restrictions of the figures.
pub(crate) const WARN: &str = "33";
/// Functions.
pub(crate) const FUNCTION: &str = "36";

impl Style {
    /// Returns the style of texts that scripts print.
    #[must_use]
    pub fn of_script() -> Self {
        Self { of_script: true, ..Self::default() }
    }

    /// Returns the words of a hint: options of the command line, or methods of scripts.
    pub(crate) fn hint(self, options: &'static str, methods: &'static str) -> &'static str {
        if self.of_script { methods } else { options }
    }

    /// Returns a text in a colour.
    pub(crate) fn paint(self, code: &str, s: &str) -> String {
        if self.color { format!("\x1b[{code}m{s}\x1b[0m") } else { s.to_owned() }
    }

    /// Writes a line with a name in front.
    pub(crate) fn line(self, out: &mut String, name: &str, text: &str) -> fmt::Result {
        let name = self.paint(DIM, &format!("{name:<10}"));
        writeln!(out, "{name} {text}")
    }
}

/// Returns the last component of a path.
pub(crate) fn base(path: &str) -> &str {
    path.rsplit('/').find(|s| !s.is_empty()).unwrap_or(path)
}

/// Returns the number of characters.
pub(crate) fn chars(s: &str) -> usize {
    s.chars().count()
}

/// Escapes control characters: names come from the target and the recording, and must not move the cursor or break a
/// line.
pub(crate) fn printable(s: &str) -> String {
    if !s.contains(char::is_control) {
        return s.to_owned();
    }
    s.chars()
        .flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] })
        .collect()
}

/// Returns a text whose characters stand for themselves in HTML.
pub(crate) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c => out.push(c),
        }
    }
    out
}

/// Replaces the middle of a text that is longer than `most`.
pub(crate) fn shorten(s: &str, most: usize) -> String {
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

    #[test]
    fn names_can_not_end_an_element() {
        assert_eq!(escaped("a<b>&\"c\""), "a&lt;b&gt;&amp;&quot;c&quot;");
    }
}
