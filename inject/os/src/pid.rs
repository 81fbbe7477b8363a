//! Type for the ids of processes and threads, which must not be taken for thread indices, signals or descriptors.

use std::fmt;
use std::num::ParseIntError;
use std::str::FromStr;

/// Id of a process or thread, as this process sees it. The kernel takes the ids of both from one range, and the id of a
/// process is that of its first thread.
///
/// The control page and recordings have ids as plain numbers, often of the target's own pid namespace. They become a `Pid`
/// where they are read.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(transparent))]
#[repr(transparent)]
pub struct Pid(i32);

impl Pid {
    /// No process: the parent or tracer that the kernel shows where there is none, or none that this pid namespace has,
    /// and a collector that has not begun.
    pub const NONE: Self = Self(0);

    /// Returns the id with this number, as system calls return it.
    #[must_use]
    pub const fn from_raw(raw: i32) -> Self {
        Self(raw)
    }

    /// Returns the id with this number, as the control page, recordings and [`std::process::Child::id`] have it.
    #[must_use]
    pub const fn from_u32(id: u32) -> Self {
        Self(id.cast_signed())
    }

    /// Returns the id of this process.
    #[must_use]
    pub fn this() -> Self {
        Self::from_u32(std::process::id())
    }

    /// Returns the number, as system calls take it.
    #[must_use]
    pub const fn as_raw(self) -> i32 {
        self.0
    }

    /// Returns the number, as the control page and recordings have it.
    #[must_use]
    pub const fn as_u32(self) -> u32 {
        self.0.cast_unsigned()
    }
}

impl From<nix::unistd::Pid> for Pid {
    fn from(pid: nix::unistd::Pid) -> Self {
        Self(pid.as_raw())
    }
}

impl From<Pid> for nix::unistd::Pid {
    fn from(pid: Pid) -> Self {
        Self::from_raw(pid.0)
    }
}

impl FromStr for Pid {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<Self, ParseIntError> {
        text.parse().map(Self)
    }
}

impl fmt::Display for Pid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// The number alone: debug output of a list of ids stands in messages of tests and logs.
impl fmt::Debug for Pid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_printed_and_parsed_as_numbers() {
        let pid: Pid = "4711".parse().expect("a number");
        assert_eq!((pid, pid.as_raw(), pid.as_u32()), (Pid::from_raw(4711), 4711, 4711));
        assert_eq!(
            (format!("{pid:>6}|{pid:<6}|"), format!("{pid:?}")),
            ("  4711|4711  |".into(), "4711".into())
        );
        for none in ["", "a", "1.0", "99999999999", " 1"] {
            assert!(none.parse::<Pid>().is_err(), "{none}");
        }
    }

    #[test]
    fn the_id_of_this_process_is_known_to_the_kernel() {
        let nix: nix::unistd::Pid = Pid::this().into();
        assert_eq!((nix, Pid::from(nix)), (nix::unistd::getpid(), Pid::this()));
    }
}
