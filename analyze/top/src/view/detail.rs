//! The chosen row in detail: figures, the largest stack, and the line of source that asked.

use super::put;
use super::style::{Theme, age, bytes, count, fit, rate, signed};
use super::table::base;
use crate::app::{App, name_of};
use crate::rows::{Key, Row};
use prof_analyze::live::{Book, read};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

pub(super) fn draw(app: &mut App, theme: Theme, area: Rect, buf: &mut Buffer) {
    for y in area.y..area.y + area.height {
        put(buf, 0, y, area.width, " ".repeat(area.width.into()).into());
    }
    buf.set_style(Rect { height: 1, ..area }, theme.bar());
    let Some(row) = app.chosen().copied() else {
        put(buf, 0, area.y, area.width, " no row is chosen; Up and Down choose one".into());
        return;
    };
    let Some(snapshot) = app.process().shown.clone() else { return };
    let (lines, title, wanted) = {
        let book = read(app.process().figures.book());
        let title = name_of(&row, app.view, &snapshot, &book);
        let (lines, wanted) = stack(app, &row, &book, theme, area.width.into());
        (lines, title, wanted)
    };
    app.wanted_source = wanted;
    let title = fit(&format!(" {title}"), area.width.into());
    put(buf, 0, area.y, area.width, Span::styled(title, theme.bold()).into());
    put(buf, 0, area.y + 1, area.width, figures(&row, theme));
    let room = usize::from(area.height.saturating_sub(2));
    app.detail_offset = app.detail_offset.min(lines.len().saturating_sub(room));
    for (y, line) in
        (area.y + 2..area.y + area.height).zip(lines.into_iter().skip(app.detail_offset))
    {
        put(buf, 0, y, area.width, line);
    }
}

fn figures(row: &Row, theme: Theme) -> Line<'static> {
    let f = &row.figures;
    let none = |text: String| if text.is_empty() { "0".to_owned() } else { text };
    let mean =
        f.live.checked_div(f.blocks).map_or_else(String::new, |m| format!(" of {}", bytes(m)));
    let mut parts = vec![
        ("live", format!("{} in {} blocks{mean}", bytes(f.live), count(f.blocks))),
        ("grown", none(signed(row.grown))),
        ("growth/s", none(signed(f.growth.round() as i64))),
        ("allocs/s", none(rate(f.rate.into()))),
        ("allocated", format!("{} times", count(f.allocations))),
        ("oldest", none(age(f.age))),
    ];
    if f.peak > 0 {
        parts.insert(1, ("peak", bytes(f.peak)));
    }
    let spans = parts.into_iter().flat_map(|(name, value)| {
        [Span::styled(format!("  {name} "), theme.dim()), Span::raw(value)]
    });
    Line::from_iter(spans)
}

type Wanted = Option<(String, u32)>;

/// Returns the largest stack of a row, and the line of source that is wanted for it.
fn stack(
    app: &App,
    row: &Row,
    book: &Book,
    theme: Theme,
    width: usize,
) -> (Vec<Line<'static>>, Wanted) {
    let dim = theme.dim();
    if let Key::Thread(_) = row.key {
        let text = "  figures are kept by stack and by thread, not by both: prof report --thread has the stacks of one";
        return (vec![Span::styled(text, dim).into()], None);
    }
    let Some(group) = row.stack else { return (Vec::new(), None) };
    let Some(s) = book.stack(group) else {
        return (vec![Span::styled("  its names are being looked up", dim).into()], None);
    };
    let mut lines: Vec<Line<'static>> = Vec::new();
    if row.stacks > 1 {
        let n = prof_trace::values::text::number(row.stacks.into());
        lines.push(Span::styled(format!("  the largest of its {n} stacks:"), dim).into());
    }
    let mut wanted = None;
    for (i, id) in s.frames.iter().enumerate() {
        let Some(f) = book.frame(*id) else { continue };
        let asks = i == s.asker;
        let mark = if asks { "▶" } else { " " };
        let place = match (&f.file, f.line) {
            (Some(file), Some(line)) => format!(" {file}:{line}"),
            (Some(file), None) => format!(" {file}"),
            _ => String::new(),
        };
        let module = f.module.as_deref().map_or_else(String::new, |m| format!(" ({})", base(m)));
        let style = if asks { theme.bold() } else { theme.name() };
        let inlined = if f.inlined { " inlined" } else { "" };
        lines.push(Line::from_iter([
            Span::raw(format!("{mark} #{i:<3}")),
            Span::styled(fit(book.text(book.function(*id)), width), style),
            Span::styled(format!("{place}{inlined}{module}"), dim),
        ]));
        if let (true, Some(file), Some(line)) = (asks, &f.file, f.line) {
            let key = (file.to_string(), line);
            match app.sources.get(&key) {
                None => wanted = Some(key),
                Some(source) => lines.extend(source.iter().map(|(n, text)| {
                    let style = if *n == line { theme.bold() } else { dim };
                    let at = if *n == line { ">" } else { " " };
                    Span::styled(format!("      {at}{n:>6} {text}"), style).into()
                })),
            }
        }
    }
    if s.cut {
        lines.push(Span::styled("  the outer frames are missing", dim).into());
    }
    (lines, wanted)
}
