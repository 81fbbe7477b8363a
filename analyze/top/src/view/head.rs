//! The first lines: the process, its figures, what the recording costs; and the list of views.

use super::put;
use super::style::{Theme, bytes, count, fit, rate, signed};
use crate::app::{App, Mode, Process};
use crate::rows::View;
use crate::snapshot::Snapshot;
use prof_trace::values::text;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};

/// A part of a line, and whether it may be left out where there is little room.
type Piece = (Span<'static>, u8);

pub(super) fn draw(app: &mut App, theme: Theme, area: Rect, buf: &mut Buffer) {
    title(app, theme, area, buf);
    let p = app.process();
    let Some(s) = p.shown.clone() else {
        let what = match p.figures.progress() {
            done if done > 0.0 => format!(" reading the recording: {:.0} %", done * 100.0),
            _ => " reading the recording".to_owned(),
        };
        put(buf, 0, 1, area.width, what.into());
        return;
    };
    line(buf, 1, area.width, memory(&s, theme));
    if let Some(ended) = &s.ended {
        let text = fit(&format!(" {}: these are its last figures", ended.why), area.width.into());
        put(buf, 0, 2, area.width, Span::styled(text, theme.warn()).into());
        return;
    }
    line(buf, 2, area.width, events(&s, theme));
}

/// Puts a line whose less important pieces are left out if there is no room.
fn line(buf: &mut Buffer, y: u16, width: u16, mut pieces: Vec<Piece>) {
    let wide = |pieces: &[Piece]| pieces.iter().map(|p| p.0.width()).sum::<usize>();
    while wide(&pieces) > width.into() {
        let Some(least) = pieces.iter().map(|p| p.1).max().filter(|w| *w > 0) else { break };
        if let Some(at) = pieces.iter().rposition(|p| p.1 == least) {
            pieces.remove(at);
        }
    }
    put(buf, 0, y, width, Line::from_iter(pieces.into_iter().map(|p| p.0)));
}

fn title(app: &mut App, theme: Theme, area: Rect, buf: &mut Buffer) {
    buf.set_style(Rect { height: 1, ..area }, theme.bar());
    let mut x = put(buf, 0, 0, area.width, Span::styled(" prof top ", theme.bold()).into());
    let several = app.processes.len() > 1;
    let mut spans = Vec::new();
    for (i, p) in app.processes.iter().enumerate() {
        let (name, pid) = (&p.source.name, p.source.pid);
        let name: String = name.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
        let text = match several {
            true => format!(" {}:{name} {pid} ", i + 1),
            false => format!(" {name} {pid} "),
        };
        let style = if several && i == app.current { theme.chosen() } else { Style::new() };
        let from = x;
        x = put(buf, x, 0, area.width.saturating_sub(x), Span::styled(text, style).into());
        spans.push((from, x, i));
    }
    app.areas.processes = (0, spans);
    let state = state(app, app.process());
    let wide = state.chars().count() as u16 + 1;
    if x + wide <= area.width {
        put(buf, area.width - wide, 0, wide, state.into());
    }
}

/// Returns how the recording is doing.
fn state(app: &App, p: &Process) -> String {
    let Some(s) = &p.shown else { return String::new() };
    let since = text::duration(s.at_ns / 1_000_000_000 * 1_000_000_000);
    let held = if app.is_held { "display held, " } else { "" };
    let state = match (&s.ended, s.is_on) {
        (Some(_), _) => "ended after",
        (None, true) => "recording",
        (None, false) => "recording is OFF,",
    };
    let since = if s.at_ns < 1_000_000_000 { "0 s".into() } else { since };
    let figures = s
        .figures_since_ns
        .map_or_else(String::new, |ns| format!("figures alone from {} on, ", text::duration(ns)));
    format!("{held}{figures}{state} {since}")
}

fn memory(s: &Snapshot, theme: Theme) -> Vec<Piece> {
    let t = &s.total;
    let about = if s.is_sample { "about " } else { "" };
    let old = match s.culled_ns {
        0 => String::new(),
        ns => format!("over {} ", text::duration(ns)),
    };
    let mut pieces: Vec<Piece> = vec![
        (Span::styled(format!(" live {old}"), theme.dim()), 0),
        (Span::styled(format!("{about}{}", bytes(t.live)), theme.bold()), 0),
    ];
    let growth = t.growth.round() as i64;
    let style = if growth > 0 { theme.up() } else { theme.down() };
    let growth = if growth == 0 { "  +0/s".into() } else { format!("  {}/s", signed(growth)) };
    pieces.push((Span::styled(growth, style), 1));
    pieces.push((format!("  {} blocks", count(t.blocks)).into(), 2));
    pieces.push((Span::styled("  peak ", theme.dim()), 3));
    pieces.push((bytes(t.peak).into(), 3));
    if let Some(rss) = s.rss {
        pieces.push((Span::styled("  RSS ", theme.dim()), 0));
        pieces.push((Span::styled(bytes(rss), theme.bold()), 0));
    }
    pieces.push((Span::styled("  stacks ", theme.dim()), 4));
    pieces.push((text::number(s.stacks.len() as u64).into(), 4));
    pieces.push((Span::styled("  threads ", theme.dim()), 5));
    pieces.push((text::number(s.threads.len() as u64).into(), 5));
    pieces
}

fn events(s: &Snapshot, theme: Theme) -> Vec<Piece> {
    let per_second = if s.events < 0.05 { "0".to_owned() } else { rate(s.events) };
    let mut pieces: Vec<Piece> = vec![
        (Span::styled(" events ", theme.dim()), 0),
        (Span::styled(format!("{per_second}/s"), theme.bold()), 0),
        (Span::styled("  lost ", theme.dim()), 0),
    ];
    let style = if s.lost > 0 { theme.warn() } else { Style::new() };
    pieces.push((Span::styled(text::number(s.lost), style), 0));
    let c = &s.cost;
    let cpu = |part: Option<f32>| part.map(|p| format!("{:.0}%", p * 100.0));
    pieces.push((Span::styled("  CPU target ", theme.dim()), 1));
    pieces.push((cpu(c.target).unwrap_or_else(|| "?".into()).into(), 1));
    pieces.push((Span::styled("  collector ", theme.dim()), 1));
    pieces.push((cpu(c.collector).unwrap_or_else(|| "?".into()).into(), 1));
    if let Some(rss) = c.collector_rss {
        pieces.push((format!(" {}", bytes(rss)).into(), 4));
    }
    pieces.push((Span::styled("  top ", theme.dim()), 2));
    pieces.push((cpu(c.own).unwrap_or_else(|| "?".into()).into(), 2));
    if let Some(rss) = c.own_rss {
        pieces.push((format!(" {}", bytes(rss)).into(), 3));
    }
    pieces.push((Span::styled("  file ", theme.dim()), 5));
    pieces.push((bytes(s.written).into(), 5));
    pieces
}

/// Draws the list of views, and the filter.
pub(super) fn views(app: &mut App, theme: Theme, area: Rect, buf: &mut Buffer) {
    let mut x = 1;
    let mut spans = Vec::new();
    for view in View::ALL {
        let style = if view == app.view { theme.chosen() } else { Style::new() };
        let from = x;
        let text = Span::styled(format!(" {} ", view.name()), style);
        x = put(buf, x, area.y, area.width.saturating_sub(x), text.into());
        spans.push((from, x, view));
    }
    app.areas.views = (area.y, spans);
    let filter = match (&app.mode, app.filter.is_all()) {
        (Mode::Filter(_), _) | (_, true) => base(app),
        (_, false) => {
            let n = text::number(app.rows.all.len() as u64);
            let unnamed = match app.rows.unnamed {
                0 => String::new(),
                n => format!(", {} not named yet", text::number(n as u64)),
            };
            format!("/{}/ {n} rows{unnamed}", app.filter.text())
        }
    };
    let room = area.width.saturating_sub(x + 2);
    let filter = fit(&filter, room.into());
    let wide = Span::raw(filter.as_str()).width() as u16;
    if wide > 3 {
        let span = Span::styled(filter, theme.warn());
        put(buf, area.width - wide - 1, area.y, wide, span.into());
    }
}

/// Returns since when growth is counted, if that was set by hand.
fn base(app: &App) -> String {
    let p = app.process();
    match (&p.shown, p.is_set) {
        (Some(s), true) => {
            let ns = s.at_ns.saturating_sub(p.baseline.at_ns);
            let grown = signed(s.total.live.wrapping_sub(p.baseline.total).cast_signed());
            let grown = if grown.is_empty() { "+0".into() } else { grown };
            format!("{grown} since b, {} ago", super::style::age(ns.max(1)))
        }
        _ => String::new(),
    }
}
