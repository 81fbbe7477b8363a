//! Live bytes and resident memory over time.

use super::put;
use super::style::{Theme, age, bytes};
use crate::app::App;
use crate::snapshot::Moment;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::symbols::Marker;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Axis, Chart, Dataset, GraphType, Widget};

/// Heights of an eighth to eight eighths of a line.
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Returns the greatest live bytes in each of `n` columns of the time.
fn columns(course: &[Moment], n: usize) -> Vec<u64> {
    let (Some(first), Some(last)) = (course.first(), course.last()) else { return Vec::new() };
    let long = last.at_ns.saturating_sub(first.at_ns).max(1);
    let mut out: Vec<Option<u64>> = vec![None; n];
    for m in course {
        let at = u128::from(m.at_ns - first.at_ns) * n as u128 / u128::from(long);
        let at = (at as usize).min(n.saturating_sub(1));
        out[at] = Some(out[at].map_or(m.live, |l| l.max(m.live)));
    }
    // Where nothing was seen it was as before.
    let mut before = first.live;
    out.into_iter().map(|l| *before_or(&mut before, l)).collect()
}

fn before_or(before: &mut u64, now: Option<u64>) -> &u64 {
    if let Some(now) = now {
        *before = now;
    }
    before
}

pub(super) fn line(app: &App, theme: Theme, area: Rect, buf: &mut Buffer) {
    let course = &app.process().course;
    let room = usize::from(area.width.saturating_sub(24));
    let live = columns(course, room);
    let (Some(most), Some(least)) = (live.iter().max(), live.iter().min()) else { return };
    let long = match (course.first(), course.last()) {
        (Some(first), Some(last)) => last.at_ns - first.at_ns,
        _ => 0,
    };
    // From 0 on, unless that would hide all that happens.
    let base = if *least > most / 2 { least - (most - least) / 2 } else { 0 };
    let high = (most - base).max(1);
    let bar = |v: u64| {
        let eighths = u128::from(v.saturating_sub(base)) * 8 / u128::from(high);
        BARS[(eighths as usize).clamp(1, 8) - 1]
    };
    let bars: String = live.iter().map(|v| bar(*v)).collect();
    let parts = [
        Span::styled(format!(" live {:>6} ", bytes(*most)), theme.dim()),
        Span::styled(bars, theme.live()),
        Span::styled(format!(" {}", age(long.max(1))), theme.dim()),
    ];
    put(buf, 0, area.y, area.width, Line::from_iter(parts));
}

pub(super) fn chart(app: &App, theme: Theme, area: Rect, buf: &mut Buffer) {
    let course = &app.process().course;
    let (Some(first), Some(last)) = (course.first(), course.last()) else { return };
    let second = |ns: u64| ns as f64 / 1e9;
    let points = |of: fn(&Moment) -> u64| -> Vec<(f64, f64)> {
        let seen = course.iter().filter(|m| of(m) > 0);
        seen.map(|m| (second(m.at_ns), of(m) as f64)).collect()
    };
    let (live, rss) = (points(|m| m.live), points(|m| m.rss));
    let most = course.iter().map(|m| m.live.max(m.rss)).max().unwrap_or(1).max(1);
    let line = |name: &'static str, points, style| {
        Dataset::default()
            .name(Span::styled(name, style))
            .marker(Marker::Braille)
            .graph_type(GraphType::Line)
            .style(style)
            .data(points)
    };
    let sets = vec![line("RSS", &rss[..], theme.rss()), line("live", &live[..], theme.live())];
    let long = last.at_ns - first.at_ns;
    let label = |text: String| Span::styled(text, theme.dim());
    let x = Axis::default()
        .bounds([second(first.at_ns), second(last.at_ns.max(first.at_ns + 1))])
        .labels([label(format!("{} ago", age(long.max(1)))), label("now".into())])
        .style(theme.dim());
    let y = Axis::default()
        .bounds([0.0, most as f64 * 1.02])
        .labels([label("0".into()), label(bytes(most / 2)), label(bytes(most))])
        .style(theme.dim());
    Chart::new(sets).x_axis(x).y_axis(y).render(area, buf);
}
