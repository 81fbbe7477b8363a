//! Names of the signals that prof may take in a process.

/// Parses a signal: `USR1`, `SIGUSR2`, `RTMIN+3`, `none` (0).
///
/// # Errors
/// A message that says what is wrong with it.
pub(crate) fn parse_signal(text: &str) -> Result<u32, String> {
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
    .ok_or_else(|| match name {
        "KILL" | "STOP" => format!("no process can catch {name}; give USR1, USR2, RTMIN+N or none"),
        _ => "give USR1, USR2, RTMIN+N or none".into(),
    })
}

/// Returns the name of a signal in the form that [`parse_signal`] accepts.
pub(crate) fn signal_name(signal: u32) -> String {
    match signal as i32 {
        0 => "none".into(),
        libc::SIGUSR1 => "USR1".into(),
        libc::SIGUSR2 => "USR2".into(),
        s if s >= libc::SIGRTMIN() => format!("RTMIN+{}", s - libc::SIGRTMIN()),
        s => s.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_understood() {
        for s in [0, libc::SIGUSR1 as u32, libc::SIGUSR2 as u32, libc::SIGRTMIN() as u32 + 3] {
            assert_eq!(parse_signal(&signal_name(s)), Ok(s));
        }
        assert_eq!(parse_signal("sigusr2"), Ok(libc::SIGUSR2 as u32));
        for bad in ["KILL", "STOP", "9", "RTMIN+99", "RTMIN-1", ""] {
            assert!(parse_signal(bad).is_err(), "{bad}");
        }
    }
}
