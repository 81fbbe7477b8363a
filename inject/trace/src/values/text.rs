//! Formats sizes, counts and durations for people.

use std::format;
use std::string::{String, ToString};
use std::time::Duration;

const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

/// Returns the index of the unit for a number of bytes.
fn unit(n: u64) -> usize {
    if n < 1024 {
        return 0;
    }
    let mut v = n as f64 / 1024.0;
    let mut unit = 1;
    // 1023.95 would be printed as 1024.0.
    while v >= 1023.95 && unit + 1 < UNITS.len() {
        v /= 1024.0;
        unit += 1;
    }
    unit
}

fn in_unit(n: u64, unit: usize) -> String {
    if unit == 0 { n.to_string() } else { format!("{:.1}", n as f64 / 1024f64.powi(unit as i32)) }
}

/// Formats bytes in binary units: `512 B`, `22.7 KiB`.
pub fn bytes(n: u64) -> String {
    about_bytes(n, None)
}

/// Formats a difference in bytes: `+22.7 KiB`, `-1 B`.
pub fn signed_bytes(n: i64) -> String {
    let sign = if n < 0 { '-' } else { '+' };
    format!("{sign}{}", bytes(n.unsigned_abs()))
}

/// Formats bytes with their standard error, if there is one: `22.7 KiB ±1.3`. An error that is too small for the unit
/// has its own.
pub fn about_bytes(n: u64, error: Option<u64>) -> String {
    let unit = unit(n);
    let text = format!("{} {}", in_unit(n, unit), UNITS[unit]);
    let Some(e) = error.filter(|e| *e > 0) else { return text };
    match in_unit(e, unit) {
        zero if zero == "0.0" => format!("{text} ±{}", bytes(e)),
        error => format!("{text} ±{error}"),
    }
}

/// Formats a number with thousands separators: `1,234,567`.
pub fn number(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a difference of counts: `+1,234`, `-1`, `+0`.
pub fn signed_number(n: i64) -> String {
    let sign = if n < 0 { '-' } else { '+' };
    format!("{sign}{}", number(n.unsigned_abs()))
}

/// Formats a number with its standard error: `1,234 ±11`.
pub fn about_number(n: u64, error: Option<u64>) -> String {
    let text = number(n);
    error.filter(|e| *e > 0).map_or(text.clone(), |e| format!("{text} ±{}", number(e)))
}

/// Formats a count with its standard error: `1,234 ±11 blocks`.
pub fn about(n: u64, error: Option<u64>, one: &str, many: &str) -> String {
    format!("{} {}", about_number(n, error), if n == 1 { one } else { many })
}

/// Formats a duration: `850 ns`, `6.2 ms`, `12.3 s`, `4m 05s`, `3h 07m`, `2d 04h`.
pub fn duration(ns: u64) -> String {
    let f = ns as f64;
    let s = ns / 1_000_000_000;
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..999_950 => format!("{:.1} us", f / 1e3),
        999_950..999_950_000 => format!("{:.1} ms", f / 1e6),
        999_950_000..59_950_000_000 => format!("{:.1} s", f / 1e9),
        _ if s < 3600 => format!("{}m {:02}s", s.max(60) / 60, if s < 60 { 0 } else { s % 60 }),
        _ if s < 86400 => format!("{}h {:02}m", s / 3600, s / 60 % 60),
        _ => format!("{}d {:02}h", s / 86400, s / 3600 % 24),
    }
}

/// Formats a duration, as [`duration`] does.
pub fn time(d: Duration) -> String {
    duration(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX))
}

/// Formats how long ago something was: `just now`, `12 s ago`, `2 min ago`, `3 h ago`, `5 days ago`.
pub fn ago(d: Duration) -> String {
    match d.as_secs() {
        0..2 => "just now".into(),
        s @ 2..60 => format!("{s} s ago"),
        s @ 60..3600 => format!("{} min ago", s / 60),
        s @ 3600..86_400 => format!("{} h ago", s / 3600),
        s @ 86_400..172_800 => format!("{} day ago", s / 86_400),
        s => format!("{} days ago", number(s / 86_400)),
    }
}

/// Formats a count: `1 thread`, `1,234 threads`.
pub fn count(n: u64, one: &str, many: &str) -> String {
    format!("{} {}", number(n), if n == 1 { one } else { many })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_one_decimal() {
        let cases = [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (23_245, "22.7 KiB"),
            (1024 * 1024 - 1, "1.0 MiB"),
            (3 << 30, "3.0 GiB"),
            (u64::MAX, "16.0 EiB"),
        ];
        for (n, text) in cases {
            assert_eq!(bytes(n), text);
        }
    }

    #[test]
    fn errors_have_the_unit_of_the_figure() {
        assert_eq!(about_bytes(23_245, Some(1300)), "22.7 KiB ±1.3");
        assert_eq!(about_bytes(100, Some(7)), "100 B ±7");
        assert_eq!(about_bytes(3 << 30, Some(5 << 20)), "3.0 GiB ±5.0 MiB");
        assert_eq!(about_bytes(3 << 30, Some(0)), "3.0 GiB");
        assert_eq!(about(1, Some(1), "block", "blocks"), "1 ±1 block");
        assert_eq!(about(20, None, "block", "blocks"), "20 blocks");
    }

    #[test]
    fn durations_have_a_fitting_unit() {
        let cases = [
            (0, "0 ns"),
            (850, "850 ns"),
            (6_200_000, "6.2 ms"),
            (999_960, "1.0 ms"),
            (999_999_999, "1.0 s"),
            (12_340_000_000, "12.3 s"),
            (59_999_000_000, "1m 00s"),
            (245_000_000_000, "4m 05s"),
            (11_220_000_000_000, "3h 07m"),
            (187_200_000_000_000, "2d 04h"),
        ];
        for (ns, text) in cases {
            assert_eq!(duration(ns), text);
        }
        duration(u64::MAX);
    }

    #[test]
    fn counts_have_separators() {
        let cases = [
            (0, "0"),
            (999, "999"),
            (1000, "1,000"),
            (124_496, "124,496"),
            (u64::MAX, "18,446,744,073,709,551,615"),
        ];
        for (n, text) in cases {
            assert_eq!(number(n), text);
        }
        assert_eq!((signed_number(-1000), signed_number(0)), ("-1,000".into(), "+0".into()));
        assert_eq!(count(1234, "block", "blocks"), "1,234 blocks");
        assert_eq!(about_number(12_345, Some(1000)), "12,345 ±1,000");
    }

    #[test]
    fn ages_have_a_fitting_unit() {
        let cases = [
            (0, "just now"),
            (1, "just now"),
            (2, "2 s ago"),
            (59, "59 s ago"),
            (60, "1 min ago"),
            (179, "2 min ago"),
            (3600, "1 h ago"),
            (86_399, "23 h ago"),
            (86_400, "1 day ago"),
            (200_000, "2 days ago"),
        ];
        for (seconds, text) in cases {
            assert_eq!(ago(Duration::from_secs(seconds)), text);
        }
    }
}
