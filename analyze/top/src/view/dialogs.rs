//! The last line, and what lies over the table: help, exports, the question at the end.

use super::style::{Theme, fit};
use super::{put, textwrap};
use crate::app::{App, Mode};
use crate::keys::KEYS;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Widget};

pub(super) fn foot(app: &App, theme: Theme, area: Rect, buf: &mut Buffer) {
    if let Mode::Filter(_) = app.mode {
        let what = if app.filter.is_plain() { "as text" } else { "Enter keeps it, Esc drops it" };
        let n = prof_trace::values::text::number(app.rows.all.len() as u64);
        let parts = [
            Span::styled(" / ", theme.bold()),
            Span::raw(app.filter.text().to_owned()),
            Span::styled("▏", theme.bold()),
            Span::styled(format!("   {n} rows; {what}"), theme.dim()),
        ];
        put(buf, 0, area.y, area.width, Line::from_iter(parts));
        return;
    }
    if let Some(message) = app.message() {
        let text = fit(&format!(" {message}"), area.width.into());
        put(buf, 0, area.y, area.width, Span::styled(text, theme.warn()).into());
        return;
    }
    let hints = [
        ("?", "help"),
        ("q", "quit"),
        ("Tab", "view"),
        ("< >", "sort"),
        ("/", "filter"),
        ("Enter", if app.view.is_tree() { "open" } else { "detail" }),
        ("b", "baseline"),
        ("Space", if app.is_held { "go on" } else { "hold" }),
        ("p", "pause"),
        ("t", "timeline"),
        ("e", "export"),
    ];
    let (mut x, width) = (1, area.width);
    for (key, what) in hints {
        let long = (key.len() + what.len() + 3) as u16;
        if x + long > width {
            break;
        }
        x = put(buf, x, area.y, width - x, Span::styled(key, theme.bold()).into());
        x = put(buf, x, area.y, width - x, Span::styled(format!(" {what}  "), theme.dim()).into());
    }
}

/// Makes room for a dialog of this size in the middle of the screen; returns the room within its border.
fn room(title: &str, size: (usize, usize), all: Rect, buf: &mut Buffer) -> Rect {
    let width = (size.0 as u16 + 4).min(all.width);
    let height = (size.1 as u16 + 2).min(all.height);
    let (x, y) = ((all.width - width) / 2, (all.height - height) / 2);
    let area = Rect { x, y, width, height };
    Clear.render(area, buf);
    Block::bordered().title(format!(" {title} ")).render(area, buf);
    Rect { x: x + 2, y: y + 1, width: width.saturating_sub(4), height: height - 2 }
}

pub(super) fn help(app: &mut App, theme: Theme, all: Rect, buf: &mut Buffer) {
    let inner = usize::from(all.width.saturating_sub(8)).min(92);
    let wide = if inner < 60 { 0 } else { 30 };
    let mut lines: Vec<(&str, u16, String)> = Vec::new();
    for (key, what) in KEYS {
        if wide == 0 {
            lines.push((key, 0, String::new()));
        }
        for (i, text) in textwrap(what, inner - wide.max(2)).into_iter().enumerate() {
            let key = if i == 0 && wide > 0 { *key } else { "" };
            lines.push((key, wide.max(2) as u16, text));
        }
    }
    let notes = [
        "",
        "GROWTH/s and ALLOCS/s are means of the last seconds. GROWN is the growth since this view began, or since b. \
         A peak is the stack's own; functions and modules have none, as those of their stacks were at different times. \
         OLDEST is the age of the oldest live block.",
        "With the mouse: columns sort, rows and views are chosen, a second click opens a row, the wheel scrolls.",
    ];
    for note in notes {
        lines.extend(textwrap(note, inner).into_iter().map(|l| ("", 0, l)));
    }
    let area = room("Keys; any other key closes this", (inner, lines.len()), all, buf);
    app.help_offset = app.help_offset.min(lines.len().saturating_sub(area.height.into()));
    let rows = lines.into_iter().skip(app.help_offset);
    for (y, (key, indent, text)) in (area.y..area.y + area.height).zip(rows) {
        put(buf, area.x, y, area.width, Span::styled(key, theme.bold()).into());
        put(buf, area.x + indent, y, area.width.saturating_sub(indent), text.into());
    }
}

pub(super) fn export(app: &App, at: usize, theme: Theme, all: Rect, buf: &mut Buffer) {
    let wide = app.formats.iter().map(|f| f.name.len()).max().unwrap_or(0);
    let longest = app.formats.iter().map(|f| f.help.len()).max().unwrap_or(0);
    let size = (wide + 2 + longest, app.formats.len());
    let area = room("Export as; Enter writes a file, Esc goes back", size, all, buf);
    let height = usize::from(area.height);
    let first = at.saturating_sub(height.saturating_sub(1));
    for (i, f) in app.formats.iter().enumerate().skip(first).take(height) {
        let y = area.y + (i - first) as u16;
        let text = format!("{:<wide$}  {}", f.name, f.help);
        let text = fit(&text, area.width.into());
        put(buf, area.x, y, area.width, text.into());
        if i == at {
            buf.set_style(Rect { y, height: 1, ..area }, theme.chosen());
        }
    }
}

pub(super) fn leave(app: &App, theme: Theme, all: Rect, buf: &mut Buffer) {
    let own = app.processes.iter().filter(|p| p.own && !p.has_ended());
    let names: Vec<String> =
        own.map(|p| format!("process {} ({})", p.source.pid, p.source.name)).collect();
    let text = format!("Detach from {}?", names.join(", "));
    let inner = usize::from(all.width.saturating_sub(8)).min(72);
    let mut lines = textwrap(&text, inner);
    lines.push(String::new());
    let answers = [
        ("y, Enter", "detach, and finish the recording"),
        ("k", "keep recording; prof detach ends it later"),
        ("Esc", "back"),
    ];
    let n = lines.len();
    let area = room("Quit", (inner, n + answers.len()), all, buf);
    for (y, line) in (area.y..).zip(&lines) {
        put(buf, area.x, y, area.width, line.as_str().into());
    }
    for (y, (key, what)) in (area.y + n as u16..area.y + area.height).zip(answers) {
        put(buf, area.x, y, area.width, Span::styled(key, theme.bold()).into());
        put(buf, area.x + 10, y, area.width.saturating_sub(10), what.into());
    }
}
