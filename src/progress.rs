//! Shows the progress of commands that take over a second, with an estimate, on a terminal.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use prof_analyze::progress::At;
use std::io::IsTerminal;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Time after which a series of operations is shown.
const PATIENCE: Duration = Duration::from_millis(700);
/// Longest pause between two operations of one series.
const PAUSE: Duration = Duration::from_millis(500);

static STATE: Mutex<State> = Mutex::new(State { series: Series::NONE, bar: None });

struct State {
    series: Series,
    bar: Option<(At, ProgressBar)>,
}

/// Operations that follow each other. An export goes through the index several times, and each time may be too short to
/// be shown alone.
struct Series {
    began: Option<Instant>,
    /// End of the last operation.
    ended: Option<Instant>,
}

impl Series {
    const NONE: Self = Self { began: None, ended: None };

    /// Returns whether an operation that has run for `elapsed` is to be shown.
    fn is_due(&mut self, now: Instant, elapsed: Duration) -> bool {
        let is_first = self.ended.is_none_or(|e| now.duration_since(e) > elapsed + PAUSE);
        if is_first || self.began.is_none() {
            self.began = now.checked_sub(elapsed);
        }
        self.began.is_none_or(|b| now.duration_since(b) >= PATIENCE)
    }
}

/// Shows long operations from now on, if standard error is a terminal.
pub(crate) fn install() {
    if std::io::stderr().is_terminal() {
        prof_analyze::progress::show(show);
    }
}

fn show(at: Option<At>) {
    let Ok(mut state) = STATE.lock() else { return };
    let other = |(is, _): &mut (At, ProgressBar)| {
        at.is_none_or(|at| (is.what, is.total) != (at.what, at.total))
    };
    state.bar.take_if(other).iter().for_each(|(_, bar)| bar.finish_and_clear());
    let Some(at) = at else {
        state.series.ended = Some(Instant::now());
        return;
    };
    if !state.series.is_due(Instant::now(), at.elapsed) {
        return;
    }
    let (_, bar) = state.bar.get_or_insert_with(|| (at, bar(&at)));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_operations_are_shown_where_many_follow_each_other() {
        let (mut series, start) = (Series::NONE, Instant::now());
        let at = |ms: u64| start + Duration::from_millis(ms);
        let ran = |ms: u64| Duration::from_millis(ms);
        assert!(!series.is_due(at(400), ran(400)) && series.is_due(at(700), ran(700)));
        let mut series = Series::NONE;
        assert!(!series.is_due(at(300), ran(300)));
        series.ended = Some(at(400));
        assert!(!series.is_due(at(600), ran(100)), "600 ms in all");
        series.ended = Some(at(650));
        assert!(series.is_due(at(800), ran(100)), "800 ms in all");
        series.ended = Some(at(850));
        assert!(!series.is_due(at(1500), ran(100)), "a pause of 550 ms");
        assert!(!series.is_due(at(2050), ran(650)) && series.is_due(at(2100), ran(700)));
    }
}
