//! Explains errors by the state of the process: a limit that it has reached, a frozen cgroup, or its end.

use crate::process::frozen;
use crate::{Error, Refusal};
use nix::errno::Errno;
use prof_os::{Pid, limits, process};

/// Upper bound of the number of mappings that prof makes.
const OURS: u64 = 64;

impl Error {
    /// Replaces the error by its cause, if that can be found out: a limit of the target, or that the process has
    /// ended or runs another program. Either of the latter makes any step of an attach or a detach fail.
    #[must_use]
    pub fn explained(self, pid: Pid) -> Self {
        use Refusal::{NoSuchProcess, Zombie};
        match self {
            Self::Refused(NoSuchProcess(_) | Zombie(..)) => self,
            _ if process::has_ended(pid) => Self::Gone(pid),
            Self::Gone(_) => Self::Replaced(pid),
            Self::NotStopping { .. } | Self::Late { .. } => {
                frozen::thawed(pid).err().unwrap_or(self)
            }
            Self::Remote { what: "mmap", errno: Errno::ENOMEM, .. } => {
                match (limits::mappings_used_up(pid, OURS), limits::address_space(pid)) {
                    (Some((count, most)), _) => Self::Mappings { pid, count, most },
                    (None, Some(limit)) => Self::AddressSpace { pid, limit },
                    (None, None) => self,
                }
            }
            // These calls may split a mapping, and so need one more.
            Self::Remote {
                what: "mprotect" | "munmap" | "mremap" | "madvise",
                errno: Errno::ENOMEM,
                ..
            } => match limits::mappings_used_up(pid, OURS) {
                Some((count, most)) => Self::Mappings { pid, count, most },
                None => self,
            },
            Self::Remote { what: "mmap", errno: Errno::EAGAIN, .. } => {
                match limits::soft_limit(pid, "Max locked memory") {
                    Some(limit) => Self::LockedMemory { pid, limit },
                    None => self,
                }
            }
            Self::Remote { what: "memfd_create", errno: Errno::EMFILE, .. } => {
                let limit = limits::soft_limit(pid, "Max open files");
                let limit = limit.unwrap_or(0);
                // The process may have closed one since.
                let needed = process::lowest_descriptor(pid).max(limit) + 1;
                Self::Descriptors { pid, limit, needed }
            }
            e => e,
        }
    }

    /// Logs the error as a warning, or as information if the process has ended: then nothing of prof is left.
    pub(crate) fn warn(&self, pid: Pid, what: &str) {
        self.warn_by(pid, &format!("{what}: {self}"));
    }

    /// Logs a text that contains the error, at the level of [`Self::warn`].
    pub(crate) fn warn_by(&self, pid: Pid, text: &str) {
        if matches!(self, Self::Gone(_)) || process::has_ended(pid) {
            log::info!("{text}");
        } else {
            log::warn!("{text}");
        }
    }
}
