//! `-v`: what prof does, to standard error.

use crate::term;
use log::{Level, LevelFilter, Log, Metadata, Record};
use std::sync::OnceLock;
use std::time::Instant;

struct Stderr {
    began: Instant,
}

impl Log for Stderr {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, r: &Record<'_>) {
        let at = self.began.elapsed().as_secs_f64() * 1e3;
        let place = r.target().trim_start_matches("prof_");
        match r.level() {
            Level::Error | Level::Warn => term::line(&format!("prof: {}", r.args())),
            _ => term::line(&format!("prof: [{at:9.3} ms] {place}: {}", r.args())),
        }
    }

    fn flush(&self) {}
}

/// Warnings are always shown; more with each `-v`.
pub fn init(verbose: u8) {
    let level = match verbose {
        0 => LevelFilter::Warn,
        1 => LevelFilter::Info,
        2 => LevelFilter::Debug,
        _ => LevelFilter::Trace,
    };
    static LOGGER: OnceLock<Stderr> = OnceLock::new();
    let logger = LOGGER.get_or_init(|| Stderr { began: Instant::now() });
    if log::set_logger(logger).is_ok() {
        log::set_max_level(level);
    }
}
