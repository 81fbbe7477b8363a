//! Formats figures as words, for every view alike.

use super::rows::RowData;
use super::{BlockStatsData, SortKey};
use prof_trace::values::text::{about, about_bytes, about_number, count, duration, number};
use std::fmt::Write;

/// Times of a row, in nanoseconds.
#[derive(Clone, Copy, Default)]
pub(super) struct Times {
    pub age: Option<u64>,
    pub first: Option<u64>,
    pub last: Option<u64>,
    pub peak: Option<u64>,
}

/// Formats the figures of a row, including its sort key.
pub(super) fn bracketed(f: &BlockStatsData, row: &RowData, sort: SortKey) -> String {
    let times = Times {
        age: row.oldest_live_age_ns,
        first: row.first_ns,
        last: row.last_ns,
        peak: row.peak_at_ns,
    };
    figures_text(f, times, sort)
}

pub(super) fn figures_text(f: &BlockStatsData, t: Times, sort: SortKey) -> String {
    let mut text = format!(
        "[count/peak: {}/{}] [size/peak: {}/{}]",
        about_number(f.live_count, f.live_count_stderr),
        about_number(f.peak_count, f.peak_count_stderr),
        about_bytes(f.live_bytes, f.live_bytes_stderr),
        about_bytes(f.peak_bytes, f.peak_bytes_stderr)
    );
    let time = |t: Option<u64>| t.map_or("-".to_owned(), duration);
    // Writing to a string can't fail.
    let more = if f.before_attach > 0 && t.age.is_some() { "more than " } else { "" };
    let _ = write!(text, " [age: {more}{}]", time(t.age));
    let _ = match sort {
        SortKey::Allocated => {
            let n = about_bytes(f.allocated_bytes, f.allocated_bytes_stderr);
            write!(text, " [allocated: {n}]")
        }
        SortKey::Allocations => {
            let n = about_number(f.allocations, f.allocations_stderr);
            let again = about_number(f.reallocations, f.reallocations_stderr);
            match f.reallocations {
                0 => write!(text, " [allocations: {n}]"),
                _ => write!(text, " [allocations: {n} + {again} by realloc]"),
            }
        }
        SortKey::Temporary => {
            let n = f.temporary.unwrap_or(0);
            write!(text, " [{}]", temporary(n, f.allocations + f.reallocations))
        }
        SortKey::First => write!(text, " [first: {}]", time(t.first)),
        SortKey::Last => write!(text, " [last: {}]", time(t.last)),
        SortKey::PeakAt => write!(text, " [peak at: {}]", time(t.peak)),
        SortKey::Interval => {
            let interval = t.first.zip(t.last).map(|(a, b)| b.saturating_sub(a));
            write!(text, " [interval: {}]", time(interval))
        }
        _ => Ok(()),
    };
    text
}

/// Formats a number of temporary blocks: `7 temporary of 9 allocations, 77.8 %`.
pub(super) fn temporary(n: u64, of: u64) -> String {
    let share = n as f64 * 100.0 / of.max(1) as f64;
    format!("{} temporary of {}, {share:.1} %", number(n), count(of, "allocation", "allocations"))
}

/// Formats the number of allocations and reallocations of a row, with its standard error.
pub(super) fn calls(f: &BlockStatsData) -> String {
    let error = f.allocations_stderr.zip(f.reallocations_stderr);
    let error = error.map(|(a, b)| (a as f64).hypot(b as f64).round() as u64);
    about_number(f.allocations + f.reallocations, error)
}

/// Formats bytes and blocks: `20.0 KiB in 3 blocks`, `20.0 KiB live in 3 blocks`.
pub(super) fn live(
    how: &str,
    b: u64,
    b_error: Option<u64>,
    n: u64,
    n_error: Option<u64>,
) -> String {
    format!("{} {how} {}", about_bytes(b, b_error), about(n, n_error, "block", "blocks"))
}
