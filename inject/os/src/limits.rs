//! Reads `/proc/PID/limits`, and the limits of the kernel that hold for every process.

use crate::process::folder;
use crate::{Pid, maps};
use std::fs;

/// Returns a soft limit by its name in `/proc/PID/limits`; `None` if there is no limit, or it can't be read.
#[must_use]
pub fn soft_limit(pid: Pid, name: &str) -> Option<u64> {
    parse(&fs::read_to_string(folder(pid) + "/limits").ok()?, name)
}

/// Returns the soft limit with this name from the text of a `limits` file.
fn parse(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(' '))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Returns the soft limit of a process's address space (`RLIMIT_AS`) in bytes, if there is one.
#[must_use]
pub fn address_space(pid: Pid) -> Option<u64> {
    soft_limit(pid, "Max address space")
}

/// Returns the size in bytes up to which the first thread's stack may grow (the soft limit `RLIMIT_STACK`); `None` if
/// there is no limit, or it can't be read.
#[must_use]
pub fn stack(pid: Pid) -> Option<u64> {
    soft_limit(pid, "Max stack size")
}

/// Returns the number of a process's mappings and its maximum, if `more` mappings would exceed it.
#[must_use]
pub fn mappings_used_up(pid: Pid, more: u64) -> Option<(u64, u64)> {
    let count = maps::of(pid).ok()?.len() as u64;
    mappings_exceeded(count, more).map(|most| (count, most))
}

/// Returns the greatest number of mappings that a process may have, if `more` beside `count` mappings would exceed it.
#[must_use]
pub fn mappings_exceeded(count: u64, more: u64) -> Option<u64> {
    let most: u64 = fs::read_to_string("/proc/sys/vm/max_map_count").ok()?.trim().parse().ok()?;
    (count.saturating_add(more) > most).then_some(most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_found_by_their_whole_name() {
        let of = |soft| {
            let text = format!(
                "Limit                     Soft Limit           Hard Limit           Units     \n\
                 Max data size             1                    unlimited            bytes     \n\
                 Max stack size            {soft:20} unlimited            bytes     \n"
            );
            (parse(&text, "Max stack size"), parse(&text, "Max stack"))
        };
        assert_eq!(of("8388608"), (Some(8 << 20), None));
        assert_eq!(of("unlimited"), (None, None));
        assert_eq!(of("99999999999999999999"), (None, None));
        assert_eq!(
            (parse("", "Max stack size"), parse("Max stack size ", "Max stack size")),
            (None, None)
        );
        let own = fs::read_to_string("/proc/self/limits").expect("our limits");
        assert_eq!(stack(Pid::this()), parse(&own, "Max stack size"));
    }

    #[test]
    fn more_mappings_than_the_kernel_allows_are_noticed() {
        let me = Pid::this();
        assert_eq!(mappings_used_up(me, 0), None);
        assert!(
            mappings_used_up(me, u64::MAX).is_some_and(|(count, most)| count > 0 && most > count)
        );
    }
}
