//! Shows the progress of commands that take over a second, with an estimate, on a terminal.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use prof_analyze::progress::At;
use std::io::IsTerminal;
use std::sync::Mutex;
use std::time::Duration;

/// Operations that end within this time are not shown.
const PATIENCE: Duration = Duration::from_millis(700);

static BAR: Mutex<Option<(At, ProgressBar)>> = Mutex::new(None);

/// Shows long operations from now on, if standard error is a terminal.
pub(crate) fn install() {
    if std::io::stderr().is_terminal() {
        prof_analyze::progress::show(show);
    }
}

fn show(at: Option<At>) {
    let Ok(mut shown) = BAR.lock() else { return };
    let other = |(is, _): &mut (At, ProgressBar)| {
        at.is_none_or(|at| (is.what, is.total) != (at.what, at.total))
    };
    shown.take_if(other).iter().for_each(|(_, bar)| bar.finish_and_clear());
    let Some(at) = at else { return };
    if shown.is_none() && at.elapsed < PATIENCE {
        return;
    }
    let (_, bar) = shown.get_or_insert_with(|| (at, bar(&at)));
    bar.set_position(at.done);
    if at.total == 0 {
        bar.tick();
    }
}

fn bar(at: &At) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(at.total), ProgressDrawTarget::stderr());
    let template = match (at.total, at.done) {
        (0, 0) => "prof: {msg}, {elapsed}",
        (0, _) => "prof: {msg}, {bytes}, {elapsed}",
        _ => "prof: {msg} [{bar:30}] {percent}%, {eta} left",
    };
    let style = ProgressStyle::with_template(template);
    let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
    bar.with_style(style.progress_chars("=> ")).with_message(at.what).with_elapsed(at.elapsed)
}
