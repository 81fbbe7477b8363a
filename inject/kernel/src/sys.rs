//! Calls of the operating system that several files need.

use std::io;

/// Returns the result of a system call, or its error.
pub fn checked(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Returns `CLOCK_MONOTONIC`, in ns: the clock of the events.
pub fn now() -> u64 {
    clock(libc::CLOCK_MONOTONIC)
}

/// Returns the processor time that this process has used, in ns.
pub fn processor_time() -> u64 {
    clock(libc::CLOCK_PROCESS_CPUTIME_ID)
}

/// Returns the processor time that this thread has used, in ns.
pub fn thread_time() -> u64 {
    clock(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// Returns the time since 1970, in ns.
pub fn wall() -> u64 {
    clock(libc::CLOCK_REALTIME)
}

fn clock(id: libc::clockid_t) -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes a `timespec`, which this is.
    unsafe { libc::clock_gettime(id, &raw mut t) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// Gives this process a priority. Without the right to do so nothing changes.
pub fn go_first(niceness: i32) {
    // SAFETY: the call takes numbers alone.
    if unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, niceness) } != 0 {
        log::info!("cannot raise the priority: {}", io::Error::last_os_error());
    }
}

/// Returns the size of a page, in bytes.
pub fn page_size() -> u64 {
    // SAFETY: the call takes a number alone.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as u64 }
}

/// Parses a list of numbers and ranges such as `0-3,5`, as the kernel writes sets of processors.
pub fn parse_list(text: &str) -> Vec<u32> {
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
pub fn processors() -> Vec<u32> {
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
        assert!(!processors().is_empty() && page_size() >= 4096);
    }
}
