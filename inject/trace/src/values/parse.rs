//! Parses sizes, durations, moments and counts of options and filters.

use super::text::duration as duration_text;
use std::format;
use std::string::String;

/// A moment or a duration, absolute or as a part of the runtime.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Time {
    /// Nanoseconds.
    Ns(u64),
    /// Part of the runtime: 0.1 is 10 %.
    Part(f64),
}

impl Time {
    /// Returns nanoseconds, given the runtime.
    pub fn ns(self, runtime: u64) -> u64 {
        match self {
            Time::Ns(ns) => ns,
            Time::Part(p) => (runtime as f64 * p).round() as u64,
        }
    }

    /// Returns the moment in nanoseconds. It must not be after the end of the runtime: no block could match such a
    /// filter, and any limit would hold. A moment that is a little later, because of rounding, is taken as the end.
    ///
    /// # Errors
    /// A message that names the option and the end of the recording.
    pub fn within(self, runtime: u64, option: &str) -> Result<u64, String> {
        let ns = self.ns(runtime);
        // Accept the times that reports show, which are rounded.
        if ns - ns.min(runtime) > runtime / 16 {
            let (at, end) = (duration_text(ns), duration_text(runtime));
            return Err(format!(
                "{option}: {at} is after the end of the recording, which is at {end}"
            ));
        }
        Ok(ns.min(runtime))
    }
}

/// A number of items, or a part of all of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Amount {
    /// The number.
    Count(u64),
    /// Part of all items: 0.1 is 10 %.
    Part(f64),
}

fn percent(text: &str) -> Option<Result<f64, String>> {
    let number = text.strip_suffix('%')?.trim();
    let part = number.parse::<f64>().ok().filter(|p| p.is_finite() && *p >= 0.0);
    Some(part.map(|p| p / 100.0).ok_or_else(|| format!("{text} is no percentage")))
}

/// Parses a time: a duration as [`duration`] takes it, or a part of the runtime such as `10%`.
///
/// # Errors
/// A message that says what is wrong with it.
pub fn time(text: &str) -> Result<Time, String> {
    match percent(text) {
        Some(p) => p.map(Time::Part),
        None => duration(text).map(Time::Ns),
    }
}

/// Parses a duration and returns nanoseconds: `30` and `2.5` (seconds), `100ms`, `20us`, `4h3m2s`, `1h 30m`. Units are
/// ns, us, ms, s, m or min, h and d.
///
/// # Errors
/// A message that says what is wrong with it.
pub fn duration(text: &str) -> Result<u64, String> {
    let wrong =
        || format!("{text:?} is no time; give one such as 30 (seconds), 100ms, 2.5s or 4h3m2s");
    let (mut rest, mut ns) = (text.trim(), 0f64);
    if rest.is_empty() {
        return Err(wrong());
    }
    while !rest.is_empty() {
        let (number, more) = split(rest);
        let letters = more.find(|c: char| !c.is_alphabetic()).unwrap_or(more.len());
        let (unit, more) = more.split_at(letters);
        let factor = match unit {
            "ns" => 1.0,
            "us" | "µs" => 1e3,
            "ms" => 1e6,
            "" if text.trim() == number => 1e9,
            "s" => 1e9,
            "m" | "min" => 60e9,
            "h" => 3600e9,
            "d" => 86400e9,
            _ => return Err(wrong()),
        };
        ns += decimal(number).ok_or_else(wrong)? * factor;
        rest = more.trim_start();
    }
    if ns < u64::MAX as f64 { Ok(ns.round() as u64) } else { Err(format!("{text} is too long")) }
}

/// Checks the form of two marks: `A,B`.
///
/// # Errors
/// A message that says what is wrong with it.
pub fn marks(text: &str) -> Result<String, String> {
    match text.split_once(',') {
        Some((a, b)) if !a.trim().is_empty() && !b.trim().is_empty() => Ok(text.into()),
        _ => Err(format!("{text:?} is not two marks; give them as A,B")),
    }
}

/// Parses a size and returns bytes: `4096`, `64KiB`, `64k`, `1.5M`, `2 GB`. All units are binary, in upper or lower
/// case: K, M, G, T, P and E, alone or with B or iB.
///
/// # Errors
/// A message that says what is wrong with it.
pub fn size(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is no size; give one such as 4096, 64KiB or 1.5M");
    let (number, unit) = split(text.trim());
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        "p" | "pb" | "pib" => 50,
        "e" | "eb" | "eib" => 60,
        _ => return Err(wrong()),
    };
    let too_large = || format!("{text} is too large");
    if let Some(n) = integer(number) {
        return n.checked_mul(1 << shift).ok_or_else(too_large);
    }
    let bytes = decimal(number).ok_or_else(wrong)? * (1u64 << shift) as f64;
    if bytes < u64::MAX as f64 { Ok(bytes.round() as u64) } else { Err(too_large()) }
}

/// Parses a percentage, `5%` or `0.5 %`. Returns millionths.
///
/// # Errors
/// A message that says what is wrong with it.
pub fn millionths(text: &str) -> Result<u64, String> {
    let part = percent(text.trim()).and_then(Result::ok).map(|p| (p * 1e6).round());
    let part = part.filter(|p| *p <= 1e12).map(|p| p as u64);
    part.ok_or_else(|| format!("{text:?} is no percentage such as 5% or 0.5%"))
}

/// Splits a text into its number and its unit.
fn split(text: &str) -> (&str, &str) {
    let of_number = |c: char| c.is_ascii_digit() || c == '.' || c == ',';
    let at = text.find(|c: char| !of_number(c)).unwrap_or(text.len());
    (&text[..at], text[at..].trim_start())
}

/// Parses digits, with or without a comma before every third from the end; `None` if the text has others, or the number
/// does not fit.
fn integer(text: &str) -> Option<u64> {
    let digits = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
    let mut groups = text.split(',');
    let first = groups.next().filter(|g| digits(g))?;
    let separated = text.len() > first.len();
    if separated && (first.len() > 3 || !groups.all(|g| g.len() == 3 && digits(g))) {
        return None;
    }
    text.replace(',', "").parse().ok()
}

/// Parses digits with or without a decimal point: `12`, `1.5`, `.5`, `1,234.5`; `None` if it is no such number.
fn decimal(text: &str) -> Option<f64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let has_fraction = fraction.bytes().all(|b| b.is_ascii_digit());
    let starts = whole.is_empty() && !fraction.is_empty();
    // A number of seconds or bytes beyond 64 bits is a number, if one that is too large.
    let is_number = starts || integer(whole).is_some() || whole.parse::<u128>().is_ok();
    (has_fraction && is_number).then(|| text.replace(',', "").parse().ok())?
}

/// Parses an address: `4096`, `0x7f00dead`.
///
/// # Errors
/// A message that says what is wrong with it.
pub fn address(text: &str) -> Result<u64, String> {
    let hex = text.strip_prefix("0x").or(text.strip_prefix("0X"));
    let parsed = hex.map_or_else(|| text.parse(), |h| u64::from_str_radix(h, 16));
    parsed.map_err(|_| format!("{text:?} is no address; give one such as 0x7f0012345678"))
}

/// Parses a count: `12`, `124,496`.
///
/// # Errors
/// A message that says what is wrong with it.
pub fn number(text: &str) -> Result<u64, String> {
    integer(text.trim()).ok_or_else(|| format!("{text:?} is no number; give one such as 1000"))
}

/// Parses a number or a part: `12`, `50%`.
///
/// # Errors
/// A message that says what is wrong with it.
pub fn amount(text: &str) -> Result<Amount, String> {
    match percent(text) {
        Some(p) => p.map(Amount::Part),
        None => number(text).map(Amount::Count),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_understood() {
        let cases = [
            ("30", 30_000_000_000),
            ("2.5", 2_500_000_000),
            (".5", 500_000_000),
            ("0", 0),
            ("100ms", 100_000_000),
            ("100 ms", 100_000_000),
            ("4h3m2s", 14_582_000_000_000),
            ("1h 30m", 5_400_000_000_000),
            ("1.5min", 90_000_000_000),
            ("2.5s", 2_500_000_000),
            ("20us", 20_000),
            ("20µs", 20_000),
            ("7ns", 7),
            ("1d", 86_400_000_000_000),
        ];
        for (text, ns) in cases {
            assert_eq!(duration(text), Ok(ns), "{text}");
        }
        for bad in ["", "x", "5y", "1s2", "-5", "..s", ".", "1e9", "ms", "5%", "1e400h", "1,0s"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
        assert!(duration("99999999999999999999h").is_err_and(|e| e.contains("too long")));
        assert_eq!(time("10%").map(|t| t.ns(5000)), Ok(500));
        assert_eq!(time("150%").map(|t| t.ns(1000)), Ok(1500));
        assert_eq!(time("2").map(|t| t.ns(0)), Ok(2_000_000_000));
        assert!(time("x%").is_err() && time("-1%").is_err() && time("inf%").is_err());
    }

    #[test]
    fn sizes_are_understood() {
        let cases = [
            ("4096", 4096),
            ("4096B", 4096),
            ("64KiB", 65536),
            ("64k", 65536),
            ("8 KB", 8192),
            ("1.5M", 3 << 19),
            ("1.5m", 3 << 19),
            ("0.1K", 102),
            ("2 GB", 2 << 30),
            ("1T", 1 << 40),
            ("3PiB", 3 << 50),
            ("1.5E", 3 << 59),
            ("18446744073709551615", u64::MAX),
        ];
        for (text, bytes) in cases {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for bad in ["", "x", "12x", "-1", "1.5.2M", "M", "1e9", "inf", "5%", "8 bb", "1KiBB"] {
            assert!(size(bad).is_err(), "{bad}");
        }
        for large in ["99999999999999999999", "99999999999T", "16E", "17.5E"] {
            assert!(size(large).is_err_and(|e| e.contains("too large")), "{large}");
        }
    }

    #[test]
    fn addresses_and_counts_are_understood() {
        assert_eq!((address("0x10"), address("16")), (Ok(16), Ok(16)));
        assert!(address("0xg").is_err() && address("").is_err());
        assert_eq!((number("12"), number("1,234,567")), (Ok(12), Ok(1_234_567)));
        for bad in ["", "1.5", "1,23", "1234,567", ",123", "12,", "+1", "-1", "1k"] {
            assert!(number(bad).is_err(), "{bad}");
        }
        assert_eq!((amount("5"), amount("50%")), (Ok(Amount::Count(5)), Ok(Amount::Part(0.5))));
    }

    #[test]
    fn what_is_written_is_understood() {
        use crate::values::text;
        for n in [0, 1, 999, 1000, 1023, 1024, 23_244, 124_496, 1 << 20, 5 << 40, u64::MAX / 2] {
            assert_eq!(number(&text::number(n)), Ok(n));
            let near = |value: u64, part: f64| value.abs_diff(n) as f64 <= n as f64 * part;
            assert!(size(&text::bytes(n)).is_ok_and(|v| near(v, 0.05)), "{}", text::bytes(n));
            let shown = text::duration(n);
            assert!(duration(&shown).is_ok_and(|v| near(v, 0.05)), "{shown}");
        }
    }
}
