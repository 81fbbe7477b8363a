//! Names the kind of memory that a mapping is.

use super::Perms;
use prof_trace::shared::is_ring;
use serde::Serialize;

/// Kinds of mappings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// The heap that `brk` grows.
    Heap,
    /// Private anonymous memory.
    #[default]
    Anonymous,
    /// A thread's stack.
    Stack,
    /// Code of a program or library.
    Code,
    /// Data of a program or library: private, of a file that code was mapped of, too.
    Data,
    /// Another file.
    File,
    /// Memory that may be shared between processes: memfd, `/dev/shm`, System V, shared and anonymous.
    Shared,
    /// Address space that can't be accessed: guard pages, and what is reserved.
    Reserved,
    /// The kernel's own, such as `[vdso]`.
    Kernel,
    /// prof's own.
    Prof,
}

/// Number of kinds.
pub(super) const KINDS: usize = 10;

impl Kind {
    /// All kinds.
    pub const ALL: [Self; KINDS] = [
        Self::Heap,
        Self::Anonymous,
        Self::Stack,
        Self::Code,
        Self::Data,
        Self::File,
        Self::Shared,
        Self::Reserved,
        Self::Kernel,
        Self::Prof,
    ];

    /// Returns the kind's name in reports and filters.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Heap => "heap",
            Self::Anonymous => "anonymous",
            Self::Stack => "stack",
            Self::Code => "code",
            Self::Data => "data",
            Self::File => "file",
            Self::Shared => "shared",
            Self::Reserved => "reserved",
            Self::Kernel => "kernel",
            Self::Prof => "prof",
        }
    }

    /// Returns the kind with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|k| k.name() == name)
    }

    /// Returns the kind of a mapping by its name, inode, offset and permissions. Stacks of threads, prof's own memory but for
    /// the shared one, and which files are of code can't be told by these.
    pub(super) fn of(name: &str, (inode, offset): (u64, u64), p: Perms) -> Self {
        let shared = ["/dev/zero", "/memfd:", "/SYSV", "/dev/shm/", "/run/shm/", "/anon_hugepage"];
        let accessible = p.read || p.write || p.execute;
        if name.starts_with("[heap") {
            Self::Heap
        } else if name.starts_with("[stack") {
            Self::Stack
        } else if is_ring(name.as_bytes(), offset) {
            Self::Prof
        } else if p.shared && (inode == 0 || shared.iter().any(|s| name.starts_with(s)))
            || name.starts_with("[anon_shmem")
        {
            Self::Shared
        } else if inode == 0 && (name.is_empty() || name.starts_with("[anon")) {
            if accessible { Self::Anonymous } else { Self::Reserved }
        } else if inode == 0 {
            Self::Kernel
        } else if p.execute {
            Self::Code
        } else {
            Self::File
        }
    }
}
