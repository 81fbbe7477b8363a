//! Calls of the operating system that several files need.

use std::io;

/// Returns the result of a system call, or its error.
pub(crate) fn checked(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Gives this process a priority. Without the right to do so nothing changes.
pub(crate) fn go_first(niceness: i32) {
    // SAFETY: the call takes numbers alone.
    if unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, niceness) } != 0 {
        log::info!("cannot raise the priority: {}", io::Error::last_os_error());
    }
}

/// Parses a list of numbers and ranges such as `0-3,5`, as the kernel writes sets of processors.
pub(crate) fn parse_list(text: &str) -> Vec<u32> {
    let mut all = Vec::new();
    for part in text.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(first), Ok(last)) = (first.parse::<u32>(), last.parse::<u32>()) {
            all.extend(first..=last.min(first.saturating_add(1 << 16)));
        }
    }
    all
}

/// Returns the numbers of the processors that are on.
pub(crate) fn processors() -> Vec<u32> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    let all = parse_list(&text);
    if all.is_empty() { vec![0] } else { all }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_of_processors_are_read() {
        assert_eq!(parse_list("0-3,5\n"), [0, 1, 2, 3, 5]);
        assert_eq!(parse_list("7"), [7]);
        assert!(parse_list("x,3-1").is_empty());
        assert!(!processors().is_empty());
    }
}
