//! Shows the progress of commands that take over a second, with an estimate, on a terminal.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use prof_analyze::progress::At;
use std::io::IsTerminal;
use std::sync::Mutex;
use std::time::Duration;

/// Operations that end within this time are not shown.
const PATIENCE: Duration = Duration::from_millis(700);

static BAR: Mutex<Option<ProgressBar>> = Mutex::new(None);

/// Shows long operations from now on, if standard error is a terminal.
pub fn install() {
    if std::io::stderr().is_terminal() {
        prof_analyze::progress::show(show);
    }
}

fn show(at: Option<At>) {
    let Ok(mut shown) = BAR.lock() else { return };
    let Some(at) = at else {
        shown.take().iter().for_each(ProgressBar::finish_and_clear);
        return;
    };
    if shown.is_none() && at.elapsed < PATIENCE {
        return;
    }
    let bar = shown.get_or_insert_with(|| bar(&at));
    bar.set_position(at.done);
}

fn bar(at: &At) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(at.total), ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template("prof: {msg} [{bar:30}] {percent}%, {eta} left");
    let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
    bar.with_style(style.progress_chars("=> ")).with_message(at.what).with_elapsed(at.elapsed)
}
