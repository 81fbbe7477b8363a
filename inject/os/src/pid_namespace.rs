//! Pid namespaces: a process has a number of its own in each that it is in. `/proc` shows the numbers of the one that it was
//! mounted in, while system calls take those of the caller's.

use crate::Pid;
use crate::process::{all, start_time};
use crate::status::Status;
use std::fs::{self, File};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::MetadataExt;

/// A pid namespace, by the inode of `/proc/PID/ns/pid`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PidNamespace(u64);

impl PidNamespace {
    /// The namespace of a process that does not tell, or of a kernel that has none.
    pub const UNKNOWN: Self = Self(0);

    /// Returns the namespace with this number, as the control page and recordings have it.
    #[must_use]
    pub const fn from_raw(inode: u64) -> Self {
        Self(inode)
    }

    /// Returns the number, as the control page and recordings have it.
    #[must_use]
    pub const fn as_raw(self) -> u64 {
        self.0
    }

    /// Returns this process's.
    #[must_use]
    pub fn own() -> Self {
        Self::at("/proc/self/ns/pid")
    }

    /// Returns that of a process; [`Self::UNKNOWN`] also if this process may not look at it.
    #[must_use]
    pub fn of(pid: Pid) -> Self {
        Self::at(&format!("/proc/{pid}/ns/pid"))
    }

    /// Returns the one whose numbers `/proc` shows; `None` if that is not this process's, and does not tell.
    fn shown() -> Option<Self> {
        match Proc::of_this_process() {
            Proc::Own => Some(Self::own()),
            // The first process of a namespace has this number in it.
            _ => Some(Self::of(Pid::from_raw(1))).filter(|shown| *shown != Self::UNKNOWN),
        }
    }

    fn at(path: &str) -> Self {
        fs::metadata(path).map_or(Self::UNKNOWN, |m| Self(m.ino()))
    }
}

/// Relation between `/proc` and this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proc {
    /// It shows the numbers that this process's system calls take.
    Own,
    /// It shows those of a namespace above, in which this process has this number.
    Above(Pid),
    /// It does not show this process.
    Other,
}

impl Proc {
    /// Finds the relation out.
    #[must_use]
    pub fn of_this_process() -> Self {
        fs::read("/proc/self/status").map_or(Self::Other, |text| Self::by(&text, Pid::this()))
    }

    /// Finds it out by this process's `status` and its number. Kernels before 4.1 have one number in there.
    fn by(status: &[u8], me: Pid) -> Self {
        match *Status::parse(status).pids() {
            [shown] if shown == me => Self::Own,
            [shown, ..] => Self::Above(shown),
            [] => Self::Other,
        }
    }
}

/// Whereabouts of a process that another one has named by its own number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// If it lives, `/proc` shows it by this number.
    Here(Pid),
    /// It has ended: `/proc` shows all processes of its namespace, and not this one.
    Gone,
    /// `/proc` does not show the processes of its namespace.
    OutOfSight,
}

/// Finds the process that has the number `id` in the namespace `space` and began at `start`. The process `inside` is in that
/// namespace, or in one below.
#[must_use]
pub fn find(id: Pid, start: u64, space: PidNamespace, inside: Pid) -> Place {
    if PidNamespace::shown() == Some(space) {
        return Place::Here(id);
    }
    // The processes of a namespace below are shown, but for a user from whom those of others are hidden (`hidepid`).
    if number_in(inside, space).is_none() || fs::read("/proc/1/status").is_err() {
        return Place::OutOfSight;
    }
    let is_it = |pid: &Pid| {
        Status::of(*pid).is_ok_and(|s| s.ns_pid() == Some(id))
            && match PidNamespace::of(*pid) {
                // It is another user's.
                PidNamespace::UNKNOWN => start_time(*pid) == Some(start),
                its => its == space,
            }
    };
    all().into_iter().find(is_it).map_or(Place::Gone, Place::Here)
}

/// Returns the number that a process has in a pid namespace. `None`: it has none there, or the namespace is not this process's
/// or one below, or this process may not look.
#[must_use]
pub fn number_in(pid: Pid, space: PidNamespace) -> Option<Pid> {
    let ids = Status::of(pid).ok()?.pids();
    let mut at = File::open(format!("/proc/{pid}/ns/pid")).ok()?;
    for id in ids.into_iter().rev() {
        if PidNamespace(at.metadata().ok()?.ino()) == space {
            return Some(id);
        }
        at = parent(&at)?;
    }
    None
}

/// Returns the namespace above. The kernel does not show one above this process's own (EPERM).
fn parent(namespace: &File) -> Option<File> {
    // SAFETY: the request takes no argument (ioctl_nsfs(2)).
    let fd = unsafe { libc::ioctl(namespace.as_raw_fd(), libc::NS_GET_PARENT) };
    // SAFETY: the kernel has just made the descriptor, and nothing else owns it.
    (fd >= 0).then(|| unsafe { File::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_is_told_from_that_of_another_namespace() {
        let by = |text: &str| Proc::by(text.as_bytes(), Pid::from_raw(12));
        assert_eq!(by("Name:\tx\nPid:\t12\nNSpid:\t12\n"), Proc::Own);
        assert_eq!(by("Pid:\t12\n"), Proc::Own);
        assert_eq!(by("Pid:\t4711\n"), Proc::Above(Pid::from_raw(4711)));
        // A process may have the same number in two namespaces.
        assert_eq!(by("Pid:\t12\nNSpid:\t12\t12\n"), Proc::Above(Pid::from_raw(12)));
        assert_eq!(by("Pid:\t4711\nNSpid:\t4711\t3\t12\n"), Proc::Above(Pid::from_raw(4711)));
        assert_eq!((by(""), by("NSpid:\tx\n")), (Proc::Other, Proc::Other));
    }

    #[test]
    fn this_process_is_found_by_its_own_number() {
        let (me, own) = (Pid::this(), PidNamespace::own());
        assert_eq!(Proc::of_this_process(), Proc::Own);
        assert_eq!((PidNamespace::of(me), PidNamespace::from_raw(own.as_raw())), (own, own));
        assert_eq!(find(me, 0, own, me), Place::Here(me));
        // There is no namespace with this number.
        let none = PidNamespace::from_raw(3);
        assert_eq!(find(me, 0, none, me), Place::OutOfSight);
        assert_eq!(number_in(me, none), None);
        assert!(own == PidNamespace::UNKNOWN || number_in(me, own) == Some(me));
    }
}
