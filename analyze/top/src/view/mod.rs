//! Draws the screen.

mod detail;
mod dialogs;
mod head;
mod style;
mod table;
mod timeline;

use crate::app::{App, Mode, ScreenAreas, Timeline};
use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::Line;
use style::Theme;

/// Least size of a terminal.
pub const LEAST: (u16, u16) = (40, 10);
/// Height of the chart, and least height of a screen that has it by itself.
const CHART: (u16, u16) = (9, 32);
/// Least height of a screen that has the line of the timeline by itself.
const LINE: u16 = 18;
/// Least height of a screen whose detail leaves room for the table.
const DETAIL: u16 = 16;

/// The areas of the parts of a screen.
struct Parts {
    head: Rect,
    timeline: Option<(Rect, bool)>,
    views: Rect,
    table: Rect,
    detail: Option<Rect>,
    foot: Rect,
}

impl Parts {
    fn new(app: &App, all: Rect) -> Self {
        let line = |y: u16, height: u16| Rect { y, height, ..all };
        let head = line(0, 3);
        let chart = match app.timeline {
            Timeline::Auto => {
                (all.height >= CHART.1).then_some(true).or((all.height >= LINE).then_some(false))
            }
            Timeline::Line => Some(false),
            Timeline::Chart => Some(all.height >= LINE),
            Timeline::Off => None,
        };
        let mut y = head.height;
        let timeline = chart.map(|chart| {
            let part = line(y, if chart { CHART.0 } else { 1 });
            y += part.height;
            (part, chart)
        });
        let views = line(y, 1);
        y += 1;
        let foot = line(all.height - 1, 1);
        let rest = foot.y - y;
        let detail = app.detail.then(|| {
            let height = if all.height < DETAIL { rest } else { (rest / 2).max(8).min(rest - 3) };
            line(foot.y - height, height)
        });
        let table = line(y, rest - detail.map_or(0, |d| d.height));
        Self { head, timeline, views, table, detail, foot }
    }
}

/// Returns how many rows a screen of this size shows.
pub fn window(app: &App, all: Rect) -> usize {
    if all.width < LEAST.0 || all.height < LEAST.1 {
        return 0;
    }
    usize::from(Parts::new(app, all).table.height.saturating_sub(1))
}

/// Draws the screen.
pub fn draw(app: &mut App, frame: &mut Frame<'_>) {
    let (all, theme) = (frame.area(), Theme::new(app.color));
    app.areas = ScreenAreas::default();
    app.wanted_source = None;
    if all.width < LEAST.0 || all.height < LEAST.1 {
        let text = format!(
            "prof top needs {} columns and {} lines; this terminal has {} and {}",
            LEAST.0, LEAST.1, all.width, all.height
        );
        let mut lines = textwrap(&text, all.width.into());
        lines.truncate(all.height.into());
        for (i, l) in lines.iter().enumerate() {
            put(frame.buffer_mut(), 0, i as u16, all.width, l.as_str().into());
        }
        return;
    }
    let parts = Parts::new(app, all);
    let buf = frame.buffer_mut();
    head::draw(app, theme, parts.head, buf);
    match parts.timeline {
        Some((area, true)) => timeline::chart(app, theme, area, buf),
        Some((area, false)) => timeline::line(app, theme, area, buf),
        None => {}
    }
    head::views(app, theme, parts.views, buf);
    table::draw(app, theme, parts.table, buf);
    if let Some(area) = parts.detail {
        detail::draw(app, theme, area, buf);
    }
    dialogs::foot(app, theme, parts.foot, buf);
    match app.mode {
        Mode::Help => dialogs::help(app, theme, all, buf),
        Mode::Export(at) => dialogs::export(app, at, theme, all, buf),
        Mode::Leave => dialogs::leave(app, theme, all, buf),
        Mode::Table | Mode::Filter(_) => {}
    }
}

/// Puts a line at a place; returns the column behind it.
fn put(buf: &mut Buffer, x: u16, y: u16, width: u16, line: Line<'_>) -> u16 {
    buf.set_line(x, y, &line, width).0
}

/// Breaks a text into lines at spaces.
fn textwrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let Some(last) = lines.last_mut() else { break };
        if !last.is_empty() && last.chars().count() + 1 + word.chars().count() > width {
            lines.push(word.to_owned());
        } else {
            if !last.is_empty() {
                last.push(' ');
            }
            last.push_str(word);
        }
    }
    lines
}
