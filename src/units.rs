//! Parses and formats sizes, times and signals.

use std::time::Duration;

/// Parses a size in bytes: `64MiB`, `64M`, `1G`, `4096`.
///
/// # Errors
/// A message that says what is wrong with it.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let (number, unit) = split(text);
    let shift = match unit.to_ascii_lowercase().trim_end_matches("ib").trim_end_matches('b') {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        _ => return Err("give a size such as 64MiB".into()),
    };
    let n: u64 = number.parse().map_err(|_| "give a size such as 64MiB".to_owned())?;
    n.checked_shl(shift).filter(|v| v >> shift == n).ok_or_else(|| "that is too much".into())
}

/// What `--sample` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sample {
    /// The distance follows the program's allocation rate.
    Auto,
    /// The distance in bytes.
    Fixed(u64),
}

/// Parses a sampling distance: `auto`, or a size that is not 0.
///
/// # Errors
/// A message that says what is wrong with it.
pub fn parse_sample(text: &str) -> Result<Sample, String> {
    if text == "auto" {
        return Ok(Sample::Auto);
    }
    match parse_size(text).map_err(|e| format!("{e}, or auto"))? {
        0 => Err("0 bytes between samples is no sampling; leave the option out".into()),
        n => Ok(Sample::Fixed(n)),
    }
}

/// Parses a duration: `30s`, `500ms`, `5m`, `1h`, `2.5s`, `30`.
///
/// # Errors
/// A message that says what is wrong with it.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = split(text);
    let factor = match unit {
        "ms" => 0.001,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return Err("give a time such as 30s or 5m".into()),
    };
    let n: f64 = number.parse().map_err(|_| "give a time such as 30s or 5m".to_owned())?;
    Duration::try_from_secs_f64(n * factor).map_err(|_| "that is too long".into())
}

fn split(text: &str) -> (&str, &str) {
    let at = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    (&text[..at], text[at..].trim())
}

/// Parses a signal: `USR1`, `SIGUSR2`, `RTMIN+3`, `none` (0).
///
/// # Errors
/// A message that says what is wrong with it.
pub fn parse_signal(text: &str) -> Result<u32, String> {
    let upper = text.to_ascii_uppercase();
    let name = upper.strip_prefix("SIG").unwrap_or(&upper);
    let real_time = |n: i32| {
        let signal = libc::SIGRTMIN() + n;
        (0..=libc::SIGRTMAX()).contains(&signal).then_some(signal as u32)
    };
    match name {
        "NONE" => Some(0),
        "USR1" => Some(libc::SIGUSR1 as u32),
        "USR2" => Some(libc::SIGUSR2 as u32),
        "RTMIN" => real_time(0),
        _ => name
            .strip_prefix("RTMIN+")
            .and_then(|n| n.parse().ok())
            .filter(|n| (0..=30).contains(n))
            .and_then(real_time),
    }
    .ok_or_else(|| "give USR1, USR2, RTMIN+N or none".into())
}

/// Returns the name of a signal in the form that [`parse_signal`] accepts.
pub fn signal_name(signal: u32) -> String {
    match signal as i32 {
        0 => "none".into(),
        libc::SIGUSR1 => "USR1".into(),
        libc::SIGUSR2 => "USR2".into(),
        s if s >= libc::SIGRTMIN() => format!("RTMIN+{}", s - libc::SIGRTMIN()),
        s => s.to_string(),
    }
}

/// Formats bytes: `22.7 MiB`.
pub fn bytes(n: u64) -> String {
    let (mut v, mut unit) = (n as f64, 0);
    while v >= 1023.95 && unit < 5 {
        v /= 1024.0;
        unit += 1;
    }
    match unit {
        0 => format!("{n} B"),
        _ => format!("{v:.1} {}iB", ["", "K", "M", "G", "T", "P"][unit]),
    }
}

/// Formats a number: `1,234,567`.
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(c);
    }
    text
}

/// Formats a duration: `0.42 ms`, `12.0 s`, `3 min 5 s`, `2 h 10 min`.
pub fn time(d: Duration) -> String {
    let s = d.as_secs();
    match s {
        0 => format!("{:.2} ms", d.as_secs_f64() * 1e3),
        1..60 => format!("{:.1} s", d.as_secs_f64()),
        60..3600 => format!("{} min {} s", s / 60, s % 60),
        _ => format!("{} h {} min", s / 3600, s / 60 % 60),
    }
}

/// Formats how long ago something was: `just now`, `12 s ago`, `2 min ago`, `3 h ago`, `5 days ago`.
pub fn ago(d: Duration) -> String {
    match d.as_secs() {
        0..2 => "just now".into(),
        s @ 2..60 => format!("{s} s ago"),
        s @ 60..3600 => format!("{} min ago", s / 60),
        s @ 3600..86_400 => format!("{} h ago", s / 3600),
        s @ 86_400..172_800 => format!("{} day ago", s / 86_400),
        s => format!("{} days ago", s / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_times_and_signals_are_understood() {
        assert_eq!(parse_size("64MiB"), Ok(64 << 20));
        assert_eq!(parse_size("1g"), Ok(1 << 30));
        assert_eq!(parse_size("4096"), Ok(4096));
        assert_eq!(parse_size("8 KB"), Ok(8192));
        for bad in ["", "x", "12x", "-1", "99999999999999999999", "99999999999999G", "1.5G"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
        assert_eq!(parse_duration("30s"), Ok(Duration::from_secs(30)));
        assert_eq!(parse_duration("1.5m"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_duration("20ms"), Ok(Duration::from_millis(20)));
        for bad in ["", "s", "1y", "-3s", "1e400h", "..s"] {
            assert!(parse_duration(bad).is_err(), "{bad}");
        }
        for s in [0, libc::SIGUSR1 as u32, libc::SIGUSR2 as u32, libc::SIGRTMIN() as u32 + 3] {
            assert_eq!(parse_signal(&signal_name(s)), Ok(s));
        }
        assert_eq!(parse_signal("sigusr2"), Ok(libc::SIGUSR2 as u32));
        for bad in ["KILL", "9", "RTMIN+99", "RTMIN-1", ""] {
            assert!(parse_signal(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn figures_are_readable() {
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(23_244), "22.7 KiB");
        assert_eq!(bytes(1 << 20), "1.0 MiB");
        assert_eq!(count(0), "0");
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!(time(Duration::from_micros(1234)), "1.23 ms");
        assert_eq!(time(Duration::from_secs(3_700)), "1 h 1 min");
        let past = [0, 1, 2, 59, 60, 179, 3600, 86_399, 86_400, 200_000];
        let words = past.map(|s| ago(Duration::from_secs(s)));
        let expected = [
            "just now",
            "just now",
            "2 s ago",
            "59 s ago",
            "1 min ago",
            "2 min ago",
            "1 h ago",
            "23 h ago",
            "1 day ago",
            "2 days ago",
        ];
        assert_eq!(words, expected);
    }
}
