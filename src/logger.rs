//! Logs to standard error, as `-v` asks for.

use crate::term;
use log::{Level, LevelFilter, Log, Metadata, Record};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Instant;

struct Stderr {
    began: Instant,
    /// Hashes of the last warnings: repeated attempts may fail many times for the same reason.
    warned: Mutex<[u64; 16]>,
}

impl Stderr {
    /// Returns whether this warning differs from the last ones.
    fn is_new(&self, text: &str) -> bool {
        let mut hasher = DefaultHasher::new();
        text.hash(&mut hasher);
        let hash = hasher.finish();
        let mut warned = self.warned.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = !warned.contains(&hash);
        if is_new {
            warned.rotate_right(1);
            warned[0] = hash;
        }
        is_new
    }
}

impl Log for Stderr {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, r: &Record<'_>) {
        let at = self.began.elapsed().as_secs_f64() * 1e3;
        let place = r.target().trim_start_matches("prof_");
        match r.level() {
            Level::Error | Level::Warn => {
                let text = r.args().to_string();
                if self.is_new(&text) {
                    term::say(&text);
                }
            }
            _ => term::say(&format!("[{at:9.3} ms] {place}: {}", r.args())),
        }
    }

    fn flush(&self) {}
}

/// Sets up the log: warnings are always shown, and more with each `-v`.
pub(crate) fn init(verbose: u8) {
    let level = match verbose {
        0 => LevelFilter::Warn,
        1 => LevelFilter::Info,
        2 => LevelFilter::Debug,
        _ => LevelFilter::Trace,
    };
    static LOGGER: OnceLock<Stderr> = OnceLock::new();
    let logger =
        LOGGER.get_or_init(|| Stderr { began: Instant::now(), warned: Mutex::new([0; 16]) });
    if log::set_logger(logger).is_ok() {
        log::set_max_level(level);
    }
}
