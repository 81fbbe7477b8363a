//! Maps keys and the mouse to actions.

use crate::app::{Action, App, Leave, Mode, Timeline};
use crate::rows::{Column, Key, View};
use ratatui::crossterm::event::{
    Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers, MouseButton, MouseEvent, MouseEventKind,
};
use std::time::{Duration, Instant};

/// The keys, as the help lists them.
pub const KEYS: &[(&str, &str)] = &[
    ("Up Down PgUp PgDn Home End", "choose a row (also k j, Ctrl-B Ctrl-F, g)"),
    ("Enter, d", "the chosen row in detail: its largest stack, with source lines"),
    ("Left Right, + -", "in trees: close and open a row; elsewhere: sort by another column"),
    ("Tab, Shift-Tab", "next view: stacks, functions, modules, threads, tree, bottom-up"),
    ("< >", "sort by the column to the left, to the right"),
    ("L D G A B P O N", "sort by live, grown, growth/s, allocs/s, blocks, peak, oldest, name"),
    ("r", "the other direction"),
    ("/", "filter by a regular expression on functions, files and modules; Esc drops it"),
    ("b", "count growth from now on"),
    ("t", "timeline: a line, a chart, none"),
    ("Space", "hold the display; the recording goes on"),
    ("p", "switch the recording off or on, as prof pause and prof resume do"),
    ("e", "export the recording, or write a report"),
    ("1 ... 9, [ ]", "another process"),
    ("Ctrl-L", "draw the screen anew"),
    ("Ctrl-Z", "suspend this view; fg resumes it"),
    ("q, Ctrl-C", "quit"),
];

/// Time within which a second click opens a row.
const DOUBLE: Duration = Duration::from_millis(400);

/// Takes an event; `window` rows are shown.
pub fn handle(app: &mut App, event: &Event, window: usize) -> Action {
    match event {
        Event::Key(key) if key.kind != KeyEventKind::Release => on_key(app, *key, window),
        Event::Mouse(mouse) => {
            on_mouse(app, *mouse, window);
            Action::None
        }
        Event::Paste(text) => {
            if let Mode::Filter(_) = app.mode {
                let text = app.filter.text().to_owned() + text.trim();
                app.filter(&text);
            }
            Action::None
        }
        _ => Action::None,
    }
}

fn on_key(app: &mut App, key: KeyEvent, window: usize) -> Action {
    if key.modifiers.contains(KeyModifiers::CONTROL) {
        match key.code {
            KeyCode::Char('z') => return Action::Suspend,
            // Once more: end without an answer.
            KeyCode::Char('c') if app.mode == Mode::Leave => return Action::Quit(None),
            KeyCode::Char('c') => return leave(app),
            _ => {}
        }
    }
    match &app.mode {
        Mode::Table => in_table(app, key, window),
        Mode::Filter(before) => {
            let before = before.clone();
            in_filter(app, key, &before)
        }
        Mode::Help => in_help(app, key),
        Mode::Export(at) => {
            let at = *at;
            in_export(app, key, at)
        }
        Mode::Leave => in_leave(app, key),
    }
}

/// Ends, or asks first.
fn leave(app: &mut App) -> Action {
    let asks = app.processes.iter().any(|p| p.own && !p.has_ended());
    if asks && app.leave.is_none() {
        app.mode = Mode::Leave;
        return Action::None;
    }
    Action::Quit(None)
}

fn in_leave(app: &mut App, key: KeyEvent) -> Action {
    match key.code {
        KeyCode::Char('y' | 'Y' | 'd') | KeyCode::Enter => Action::Quit(Some(Leave::Detach)),
        KeyCode::Char('k' | 'K' | 'n' | 'N') => Action::Quit(Some(Leave::Keep)),
        KeyCode::Esc => {
            app.mode = Mode::Table;
            Action::None
        }
        _ => Action::None,
    }
}

fn in_help(app: &mut App, key: KeyEvent) -> Action {
    match key.code {
        KeyCode::Down | KeyCode::Char('j') => app.help_offset += 1,
        KeyCode::Up | KeyCode::Char('k') => app.help_offset = app.help_offset.saturating_sub(1),
        _ => (app.mode, app.help_offset) = (Mode::Table, 0),
    }
    Action::None
}

fn in_export(app: &mut App, key: KeyEvent, at: usize) -> Action {
    let last = app.formats.len().saturating_sub(1);
    match key.code {
        KeyCode::Down | KeyCode::Char('j') => app.mode = Mode::Export((at + 1).min(last)),
        KeyCode::Up | KeyCode::Char('k') => app.mode = Mode::Export(at.saturating_sub(1)),
        KeyCode::Home => app.mode = Mode::Export(0),
        KeyCode::End => app.mode = Mode::Export(last),
        KeyCode::Enter => {
            app.mode = Mode::Table;
            return Action::Export(at);
        }
        KeyCode::Esc | KeyCode::Char('q') => app.mode = Mode::Table,
        _ => {}
    }
    Action::None
}

fn in_filter(app: &mut App, key: KeyEvent, before: &str) -> Action {
    let mut text = app.filter.text().to_owned();
    match key.code {
        KeyCode::Enter => app.mode = Mode::Table,
        KeyCode::Esc => {
            app.mode = Mode::Table;
            app.filter(before);
        }
        KeyCode::Backspace => {
            text.pop();
            app.filter(&text);
        }
        KeyCode::Char('u') if key.modifiers.contains(KeyModifiers::CONTROL) => app.filter(""),
        KeyCode::Char(c) if !key.modifiers.contains(KeyModifiers::CONTROL) => {
            text.push(c);
            app.filter(&text);
        }
        _ => {}
    }
    Action::None
}

fn in_table(app: &mut App, key: KeyEvent, window: usize) -> Action {
    if key.modifiers.contains(KeyModifiers::CONTROL) {
        match key.code {
            KeyCode::Char('f') => walk(app, window as isize, window),
            KeyCode::Char('b') => walk(app, -(window as isize), window),
            _ => {}
        }
        return Action::None;
    }
    match key.code {
        KeyCode::Char('q') => return leave(app),
        KeyCode::Char('?' | 'h') | KeyCode::F(1) => app.mode = Mode::Help,
        KeyCode::Char('/') => app.mode = Mode::Filter(app.filter.text().to_owned()),
        KeyCode::Esc if app.detail => app.detail = false,
        KeyCode::Esc if !app.filter.is_all() => app.filter(""),
        KeyCode::Esc => app.forget(),
        KeyCode::Char(' ') => app.is_held = !app.is_held,
        KeyCode::Char('p') => return toggle(app),
        KeyCode::Char('b') => app.rebase(),
        KeyCode::Char('e') if !app.formats.is_empty() => app.mode = Mode::Export(0),
        KeyCode::Char('t') => {
            app.timeline = match app.timeline {
                Timeline::Auto | Timeline::Off => Timeline::Line,
                Timeline::Line => Timeline::Chart,
                Timeline::Chart => Timeline::Off,
            }
        }
        KeyCode::Char(c @ '1'..='9') => app.switch(c as usize - '1' as usize),
        KeyCode::Char('[') => app.switch(app.current.wrapping_sub(1)),
        KeyCode::Char(']') => app.switch(app.current + 1),
        KeyCode::Tab => step_view(app, 1),
        KeyCode::BackTab => step_view(app, View::ALL.len() - 1),
        _ => moves(app, key.code, window),
    }
    Action::None
}

fn moves(app: &mut App, code: KeyCode, window: usize) {
    let page = window.max(2) as isize - 1;
    match code {
        KeyCode::Down | KeyCode::Char('j') => walk(app, 1, window),
        KeyCode::Up | KeyCode::Char('k') => walk(app, -1, window),
        KeyCode::PageDown => walk(app, page, window),
        KeyCode::PageUp => walk(app, -page, window),
        KeyCode::Home | KeyCode::Char('g') => app.choose(0, window),
        KeyCode::End => app.choose(usize::MAX, window),
        KeyCode::Enter if app.view.is_tree() => open(app, None),
        KeyCode::Right | KeyCode::Char('+') if app.view.is_tree() => open(app, Some(true)),
        KeyCode::Left | KeyCode::Char('-') if app.view.is_tree() => open(app, Some(false)),
        KeyCode::Enter | KeyCode::Char('d') => detail(app, window),
        KeyCode::Char('<') | KeyCode::Left => step_column(app, Column::ALL.len() - 1),
        KeyCode::Char('>') | KeyCode::Right => step_column(app, 1),
        KeyCode::Char('r') => app.order.reversed = !app.order.reversed,
        KeyCode::Char(c) => {
            let column = match c {
                'L' => Column::Live,
                'B' => Column::Blocks,
                'A' => Column::Rate,
                'P' => Column::Peak,
                'G' => Column::Growth,
                'D' => Column::Grown,
                'O' => Column::Age,
                'N' => Column::Name,
                _ => return,
            };
            app.sort(column);
        }
        _ => {}
    }
}

fn toggle(app: &mut App) -> Action {
    let process = app.process();
    if process.has_ended() {
        app.say("the recording has ended");
        return Action::None;
    }
    match process.figures.latest() {
        Some(latest) => Action::Toggle(!latest.is_on),
        None => Action::None,
    }
}

/// Moves the choice; the first step only shows it.
fn walk(app: &mut App, by: isize, window: usize) {
    if app.detail && app.selected.is_none() {
        return;
    }
    let to = match app.selected {
        None if by.unsigned_abs() == 1 => app.offset,
        _ => app.place.saturating_add_signed(by),
    };
    app.choose(to, window);
}

fn step_view(app: &mut App, by: usize) {
    let at = View::ALL.iter().position(|v| *v == app.view).unwrap_or(0);
    app.show(View::ALL[(at + by) % View::ALL.len()]);
}

fn step_column(app: &mut App, by: usize) {
    let all = Column::ALL;
    let at = all.iter().position(|c| *c == app.order.column).unwrap_or(0);
    app.order = crate::rows::Order { column: all[(at + by) % all.len()], reversed: false };
    app.offset = 0;
}

fn detail(app: &mut App, window: usize) {
    if app.selected.is_none() {
        app.choose(app.offset, window);
    }
    app.detail = !app.detail && app.selected.is_some();
    app.detail_offset = 0;
}

/// Opens or closes the chosen row of a tree.
fn open(app: &mut App, to: Option<bool>) {
    let Some(row) = app.chosen().copied() else { return };
    match (row.open, to) {
        (Some(is), None) => app.open(row.key, !is),
        (Some(is), Some(to)) if is != to => app.open(row.key, to),
        // To the row that it is part of.
        (_, Some(false)) => {
            let above = app.rows.all[..app.place].iter().rposition(|r| r.depth < row.depth);
            if let Some(at) = above {
                app.choose(at, 1);
            }
        }
        _ => {}
    }
}

impl App {
    fn open(&mut self, key: Key, to: bool) {
        let current = self.current;
        self.processes[current].tree.set(key, to);
    }
}

fn on_mouse(app: &mut App, mouse: MouseEvent, window: usize) {
    let (x, y) = (mouse.column, mouse.row);
    match mouse.kind {
        MouseEventKind::ScrollDown if app.mode == Mode::Help => app.help_offset += 1,
        MouseEventKind::ScrollUp if app.mode == Mode::Help => {
            app.help_offset = app.help_offset.saturating_sub(1);
        }
        _ if app.mode != Mode::Table => {}
        MouseEventKind::ScrollDown => scroll(app, 3, window),
        MouseEventKind::ScrollUp => scroll(app, -3, window),
        MouseEventKind::Down(MouseButton::Left) => click(app, x, y, window),
        _ => {}
    }
}

/// Scrolls; the choice stays within what is shown.
fn scroll(app: &mut App, by: isize, window: usize) {
    let most = app.rows.all.len().saturating_sub(window);
    app.offset = app.offset.saturating_add_signed(by).min(most);
    if app.selected.is_some() {
        let last = (app.offset + window).saturating_sub(1);
        let to = app.place.clamp(app.offset, last);
        if to != app.place {
            app.choose(to, window);
        }
    }
}

fn click(app: &mut App, x: u16, y: u16, window: usize) {
    fn at<T: Copy>(all: &[(u16, u16, T)], x: u16) -> Option<T> {
        all.iter().find(|(from, to, _)| (*from..*to).contains(&x)).map(|p| p.2)
    }
    let areas = &app.areas;
    if y == areas.processes.0
        && let Some(i) = at(&areas.processes.1, x)
    {
        return app.switch(i);
    }
    if y == areas.views.0
        && let Some(view) = at(&areas.views.1, x)
    {
        return app.show(view);
    }
    if y == areas.header.0
        && let Some(column) = at(&areas.header.1, x)
    {
        return app.sort(column);
    }
    let (first, n) = areas.rows;
    if y < first || y >= first + n {
        return;
    }
    let place = app.offset + usize::from(y - first);
    if place >= app.rows.all.len() {
        return;
    }
    app.choose(place, window);
    let Some(key) = app.selected else { return };
    let again = app.clicked.is_some_and(|(k, when)| k == key && when.elapsed() < DOUBLE);
    if again {
        app.clicked = None;
        if app.view.is_tree() { open(app, None) } else { detail(app, window) }
    } else {
        app.clicked = Some((key, Instant::now()));
    }
}
