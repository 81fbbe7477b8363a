//! The table.

use super::put;
use super::style::{Theme, age, bytes, count, fit, rate, signed};
use crate::app::{App, name_of};
use crate::rows::{Column, Key, Row, View};
use crate::snapshot::Snapshot;
use prof_analyze::live::{Book, read};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};

/// Least width of the names.
const NAME: u16 = 28;

impl Column {
    /// Returns the header.
    fn header(self, view: View) -> &'static str {
        match self {
            Self::Live => "LIVE",
            Self::Grown => "GROWN",
            Self::Growth => "GROWTH/s",
            Self::Rate => "ALLOCS/s",
            Self::Blocks => "BLOCKS",
            Self::Peak => "PEAK",
            Self::Age => "OLDEST",
            Self::Name => match view {
                View::Stacks => "ASKED BY",
                View::Functions => "FUNCTION",
                View::Modules => "MODULE",
                View::Threads => "THREAD",
                View::Tree => "CALLS, OUTERMOST FIRST",
                View::Callers => "CALLERS, FROM WHO ASKED",
            },
        }
    }

    /// Returns the width, with a space in front.
    fn width(self) -> u16 {
        match self {
            Self::Live | Self::Peak | Self::Age => 8,
            Self::Grown => 9,
            Self::Growth | Self::Rate | Self::Blocks => 10,
            Self::Name => 0,
        }
    }
}

/// Returns the columns that there is room for: the one that is sorted by is among them.
fn columns(width: u16, sorted: Column) -> Vec<Column> {
    let by_weight = [
        Column::Live,
        Column::Growth,
        Column::Rate,
        Column::Peak,
        Column::Age,
        Column::Blocks,
        Column::Grown,
    ];
    let mut left = width.saturating_sub(NAME);
    let mut chosen = Vec::new();
    let first = [sorted].into_iter().filter(|c| *c != Column::Name);
    for c in first.chain(by_weight) {
        if !chosen.contains(&c) && c.width() <= left {
            left -= c.width();
            chosen.push(c);
        }
    }
    Column::ALL.into_iter().filter(|c| chosen.contains(c)).collect()
}

pub(super) fn draw(app: &mut App, theme: Theme, area: Rect, buf: &mut Buffer) {
    if area.height < 2 {
        return;
    }
    let columns = columns(area.width, app.order.column);
    header(app, &columns, theme, area, buf);
    let rows = Rect { y: area.y + 1, height: area.height - 1, ..area };
    app.areas.rows = (rows.y, rows.height);
    let p = app.process();
    let Some(snapshot) = p.shown.clone() else { return };
    let book = read(p.figures.book());
    if app.rows.all.is_empty() {
        let text = match (app.filter.is_all(), snapshot.is_on) {
            (false, _) => " nothing matches; Esc drops the filter",
            (true, true) => " nothing has been allocated since the attach",
            (true, false) => " the recording is off; p switches it on",
        };
        put(buf, 0, rows.y, area.width, Span::styled(text, theme.dim()).into());
        return;
    }
    let shown = app.rows.all.iter().skip(app.offset).take(rows.height.into());
    for (y, row) in (rows.y..).zip(shown) {
        let painter = Painter { app, snapshot: &snapshot, book: &book, theme };
        painter.row(row, &columns, Rect { y, height: 1, ..rows }, buf);
    }
}

fn header(app: &mut App, columns: &[Column], theme: Theme, area: Rect, buf: &mut Buffer) {
    buf.set_style(Rect { height: 1, ..area }, theme.bar());
    let (mut x, mut spans) = (0, Vec::new());
    let mark = if app.order.reversed { "▲" } else { "▼" };
    for c in columns.iter().copied().chain([Column::Name]) {
        let sorted = c == app.order.column;
        let title = c.header(app.view);
        let text = if sorted { format!("{mark}{title}") } else { title.to_owned() };
        let text = match c {
            Column::Name => format!("  {text}"),
            c => format!("{text:>0$}", usize::from(c.width())),
        };
        let style = if sorted { theme.bold() } else { Style::new() };
        let from = x;
        x = put(buf, x, area.y, area.width.saturating_sub(x), Span::styled(text, style).into());
        spans.push((from, if c == Column::Name { area.width } else { x }, c));
    }
    app.areas.header = (area.y, spans);
}

struct Painter<'a> {
    app: &'a App,
    snapshot: &'a Snapshot,
    book: &'a Book,
    theme: Theme,
}

impl Painter<'_> {
    fn row(&self, row: &Row, columns: &[Column], area: Rect, buf: &mut Buffer) {
        let mut x = 0;
        for c in columns {
            let (text, style) = self.cell(row, *c);
            let text = format!("{text:>0$}", usize::from(c.width()));
            x = put(buf, x, area.y, area.width - x, Span::styled(text, style).into());
        }
        let room = area.width.saturating_sub(x + 2);
        put(buf, x + 2, area.y, room, self.name(row, room.into()));
        if self.app.selected == Some(row.key) {
            buf.set_style(area, self.theme.chosen());
        }
    }

    fn cell(&self, row: &Row, column: Column) -> (String, Style) {
        let f = &row.figures;
        let sign = |n: i64| match n {
            0 => Style::new(),
            n if n < 0 => self.theme.down(),
            _ => self.theme.up(),
        };
        let plain = Style::new();
        match column {
            Column::Live => (bytes(f.live), self.theme.bold()),
            Column::Grown => (signed(row.grown), sign(row.grown)),
            Column::Growth => {
                let n = f.growth.round() as i64;
                (signed(n), sign(n))
            }
            Column::Rate => (rate(f.rate.into()), plain),
            Column::Blocks => (count(f.blocks), plain),
            Column::Peak if f.peak == 0 => ("-".into(), self.theme.dim()),
            Column::Peak => (bytes(f.peak), plain),
            Column::Age => (age(f.age), plain),
            Column::Name => (String::new(), plain),
        }
    }

    fn name(&self, row: &Row, width: usize) -> Line<'static> {
        let name = name_of(row, self.app.view, self.snapshot, self.book);
        let (name_style, dim) = (self.theme.name(), self.theme.dim());
        match row.key {
            Key::Stack(i) if self.book.stack(i).is_none() => {
                Span::styled("... looking its names up", dim).into()
            }
            Key::Stack(i) => self.stack(i, &name, width),
            Key::Node(_) => {
                let mark = row.open.map_or("  ", |open| if open { "▾ " } else { "▸ " });
                // Deep rows keep half of the room for the name.
                let deep = (usize::from(row.depth) * 2).min(width / 2);
                let name = fit(&name, width.saturating_sub(deep + 2));
                Line::from_iter([
                    Span::raw(" ".repeat(deep)),
                    Span::styled(mark, dim),
                    Span::styled(name, name_style),
                    Span::styled(row.frame.map_or_else(String::new, |f| self.place(f)), dim),
                ])
            }
            Key::Text(_) if self.app.view == View::Modules => {
                let path = if row.text == u32::MAX { "" } else { self.book.text(row.text) };
                let path = if path == name { "" } else { path };
                Line::from_iter([
                    Span::styled(name, name_style),
                    Span::styled(format!("  {path}"), dim),
                ])
            }
            Key::Text(_) => {
                let n = prof_trace::values::text::count(row.stacks.into(), "stack", "stacks");
                let place = row.frame.map_or_else(String::new, |f| self.file(f));
                let name = fit(&name, width);
                let rest = format!("{place}  {n}");
                Line::from_iter([Span::styled(name, name_style), Span::styled(rest, dim)])
            }
            Key::Thread(_) => Span::styled(name, name_style).into(),
        }
    }

    /// Returns who asked, where, and as many callers as there is room for.
    fn stack(&self, group: u32, name: &str, width: usize) -> Line<'static> {
        let (name_style, dim) = (self.theme.name(), self.theme.dim());
        let mut spans = vec![Span::styled(fit(name, width), name_style)];
        let Some(s) = self.book.stack(group) else { return Line::from(spans) };
        let mut left = width.saturating_sub(spans[0].width());
        if let Some(frame) = s.frames.get(s.asker) {
            let place = self.place(*frame);
            left = left.saturating_sub(Span::raw(&place).width());
            spans.push(Span::styled(place, dim));
        }
        let mut before = self.book.function(s.frames.get(s.asker).copied().unwrap_or(0));
        for f in s.frames.iter().skip(s.asker + 1) {
            let function = self.book.function(*f);
            if function == before {
                continue;
            }
            before = function;
            let text = format!(" < {}", self.book.text(function));
            if left < 8 {
                break;
            }
            let text = fit(&text, left);
            left = left.saturating_sub(Span::raw(&text).width());
            spans.push(Span::styled(text, dim));
        }
        Line::from(spans)
    }

    /// Returns the file's name and line of a frame, with a space in front.
    fn place(&self, frame: u32) -> String {
        let Some(f) = self.book.frame(frame) else { return String::new() };
        match (&f.file, f.line) {
            (Some(file), Some(line)) => format!(" {}:{line}", base(file)),
            _ => String::new(),
        }
    }

    fn file(&self, frame: u32) -> String {
        let file = self.book.frame(frame).and_then(|f| f.file.as_deref());
        file.map_or_else(String::new, |f| format!(" {}", base(f)))
    }
}

/// Returns the last component of a path.
pub(super) fn base(path: &str) -> &str {
    path.rsplit('/').find(|s| !s.is_empty()).unwrap_or(path)
}
