//! Properties of the running kernel.

use nix::sys::utsname::uname;
use nix::unistd::{SysconfVar, sysconf};

/// Returns the size of a page in bytes: at least 4096.
#[must_use]
pub fn page_size() -> u64 {
    setting(SysconfVar::PAGE_SIZE).max(4096)
}

/// Returns the number of clock ticks per second, in which `/proc` counts times; at least 1.
#[must_use]
pub fn clock_ticks() -> u64 {
    setting(SysconfVar::CLK_TCK).max(1)
}

/// Returns whether this is a program of 32-bit ARM under a kernel of AArch64; such a kernel calls the machine armv8l where it is
/// asked to pass for a 32-bit one (personality(2)).
#[must_use]
pub fn is_wider_than_arm() -> bool {
    let is_64_bit = |name: &str| ["aarch64", "armv8"].iter().any(|n| name.starts_with(n));
    cfg!(target_arch = "arm") && uname().is_ok_and(|u| u.machine().to_str().is_some_and(is_64_bit))
}

/// Returns a setting of the kernel; 0 if it is not known.
fn setting(what: SysconfVar) -> u64 {
    sysconf(what).ok().flatten().and_then(|n| u64::try_from(n).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_settings_of_this_kernel() {
        assert!(page_size().is_power_of_two() && page_size() >= 4096);
        assert!(clock_ticks() > 0);
    }
}
