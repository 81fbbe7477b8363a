//! Parses what options of recordings take, and formats durations.

use prof_trace::values::{parse, text};
use std::time::Duration;

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
    match parse::size(text).map_err(|e| format!("{e}, or auto"))? {
        0 => Err("0 bytes between samples is no sampling; leave the option out".into()),
        n => Ok(Sample::Fixed(n)),
    }
}

/// Parses a duration, as [`parse::duration`] does.
///
/// # Errors
/// A message that says what is wrong with it.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    parse::duration(text).map(Duration::from_nanos)
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

/// Formats a duration, as [`text::duration`] does.
pub fn time(d: Duration) -> String {
    text::duration(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_times_and_signals_are_understood() {
        assert_eq!(parse_sample("auto"), Ok(Sample::Auto));
        assert_eq!(parse_sample("1.5M"), Ok(Sample::Fixed(3 << 19)));
        assert!(parse_sample("0").is_err() && parse_sample("often").is_err());
        assert_eq!(parse_duration("1.5m"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_duration("30"), Ok(Duration::from_secs(30)));
        for s in [0, libc::SIGUSR1 as u32, libc::SIGUSR2 as u32, libc::SIGRTMIN() as u32 + 3] {
            assert_eq!(parse_signal(&signal_name(s)), Ok(s));
        }
        assert_eq!(parse_signal("sigusr2"), Ok(libc::SIGUSR2 as u32));
        for bad in ["KILL", "9", "RTMIN+99", "RTMIN-1", ""] {
            assert!(parse_signal(bad).is_err(), "{bad}");
        }
    }
}
