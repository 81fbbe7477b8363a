//! Parses times, sizes and counts of filters.

use crate::report::units::duration as duration_text;

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
    /// filter,
    /// and any limit would hold. A moment that is a little later, because of rounding, is taken as the end.
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

/// Parses a time: `1500` (milliseconds), `100ms`, `4h3m2s`, `2.5s`, `20us`, `10%`.
///
/// # Errors
/// A message that says what is wrong with it.
pub fn time(text: &str) -> Result<Time, String> {
    match percent(text) {
        Some(p) => p.map(Time::Part),
        None => duration(text).map(Time::Ns),
    }
}

/// Parses a time as [`time`], but not a part of the runtime; returns nanoseconds.
///
/// # Errors
/// A message that says what is wrong with it.
pub fn duration(text: &str) -> Result<u64, String> {
    let wrong =
        || format!("{text:?} is no time; give one such as 1500 (ms), 100ms, 4h3m2s or 2.5s");
    let (mut rest, mut ns) = (text.trim(), 0f64);
    if rest.is_empty() {
        return Err(wrong());
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, more) = rest.split_at(digits);
        let letters = more.find(|c: char| !c.is_alphabetic()).unwrap_or(more.len());
        let (unit, more) = more.split_at(letters);
        let factor = match unit {
            "ns" => 1.0,
            "us" | "µs" => 1e3,
            "" if text.trim() == number => 1e6,
            "ms" => 1e6,
            "s" => 1e9,
            "m" | "min" => 60e9,
            "h" => 3600e9,
            "d" => 86400e9,
            _ => return Err(wrong()),
        };
        ns += number.parse::<f64>().map_err(|_| wrong())? * factor;
        rest = more.trim_start();
    }
    if ns < u64::MAX as f64 { Ok(ns.round() as u64) } else { Err(format!("{text} is too long")) }
}

/// Parses a size in bytes: `4096`, `64KiB`, `64k`, `1.5M`, `2GB` (all units are binary).
///
/// # Errors
/// A message that says what is wrong with it.
pub fn size(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is no size; give one such as 4096, 64KiB or 1.5M");
    let text = text.trim();
    let at = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let unit = text[at..].trim().to_ascii_lowercase();
    let shift = match unit.trim_end_matches("ib").trim_end_matches('b') {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        _ => return Err(wrong()),
    };
    if let Ok(n) = text[..at].parse::<u64>() {
        return n.checked_shl(shift).filter(|v| v >> shift == n).ok_or_else(wrong);
    }
    let bytes = text[..at].parse::<f64>().map_err(|_| wrong())? * (1u64 << shift) as f64;
    if bytes < u64::MAX as f64 { Ok(bytes.round() as u64) } else { Err(wrong()) }
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

/// Parses a decimal number: `12`.
///
/// # Errors
/// A message that says what is wrong with it.
pub fn number(text: &str) -> Result<u64, String> {
    text.trim().parse().map_err(|_| format!("{text:?} is no number"))
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
            ("1500", 1_500_000_000),
            ("0", 0),
            ("100ms", 100_000_000),
            ("4h3m2s", 14_582_000_000_000),
            ("1h 30m", 5_400_000_000_000),
            ("2.5s", 2_500_000_000),
            ("20us", 20_000),
            ("7ns", 7),
            ("1d", 86_400_000_000_000),
        ];
        for (text, ns) in cases {
            assert_eq!(duration(text), Ok(ns), "{text}");
        }
        for bad in ["", "x", "5y", "1s2", "-5", "..s", "1e9", "99999999999999999999h", "ms", "5%"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
        assert_eq!(time("10%").map(|t| t.ns(5000)), Ok(500));
        assert_eq!(time("150%").map(|t| t.ns(1000)), Ok(1500));
        assert!(time("x%").is_err() && time("-1%").is_err() && time("inf%").is_err());
    }

    #[test]
    fn sizes_addresses_and_amounts_are_understood() {
        let cases = [("4096", 4096), ("64KiB", 65536), ("64k", 65536), ("1.5M", 3 << 19)];
        for (text, bytes) in cases {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        assert_eq!((size("2 GB"), size("1T")), (Ok(2 << 30), Ok(1 << 40)));
        for bad in ["", "x", "12x", "-1", "99999999999999999999999T", "99999999999T"] {
            assert!(size(bad).is_err(), "{bad}");
        }
        assert_eq!((address("0x10"), address("16")), (Ok(16), Ok(16)));
        assert!(address("0xg").is_err() && address("").is_err());
        assert_eq!((amount("5"), amount("50%")), (Ok(Amount::Count(5)), Ok(Amount::Part(0.5))));
    }
}
