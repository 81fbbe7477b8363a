//! Kinds of hooked functions: one table says all that depends on the kind.

use crate::shared::{Code, Entries};

/// A property of a kind.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Trait {
    /// Calls are not recorded as such, they only inform the hook.
    Watched,
    /// The stub leads to the hook even while recording is paused: a call from before may still be inside the hook.
    AlwaysOn,
    /// The function can be any, whose callers may rely on more than malloc's callers do.
    Many,
    /// The function may return a block of glibc's, with a chunk header.
    HandsOut,
    /// The function takes a block back, and hands out none.
    Frees,
    /// The function changes mappings or the settings of the allocator, and hands out no blocks.
    Call,
}

/// Defines [`Kind`]: for each kind its documentation, its name, the entry of the hook that its stubs jump to, and its
/// traits. Its number is its place in the table.
macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident: $entry:ident $($property:ident)*;)*) => {
        /// Kind of a hooked function; it selects the entry of the hook that the stub jumps to.
        #[repr(u32)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Kind {
            $($(#[$doc])* $name),*
        }

        impl Kind {
            /// All kinds, in the order of their numbers.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// Returns the entry that stubs of this kind jump to.
            #[must_use]
            pub fn entry(self, entries: &Entries) -> Code {
                match self {
                    $(Self::$name => entries.$entry),*
                }
            }

            fn has(self, wanted: Trait) -> bool {
                let traits: &[Trait] = match self {
                    $(Self::$name => &[$(Trait::$property),*]),*
                };
                traits.contains(&wanted)
            }
        }
    };
}

// Numbers must stay: a build with the same layout reads them. A new kind goes to the end.
kinds! {
    /// Argument 0 is `size`; returns the block (malloc, valloc, pvalloc, operator new).
    Malloc: alloc HandsOut;
    /// Arguments `count` and `size` (calloc).
    Calloc: alloc HandsOut;
    /// Arguments `old` and `size` (realloc).
    Realloc: realloc HandsOut;
    /// Arguments `old`, `count` and `size` (reallocarray).
    ReallocArray: realloc HandsOut;
    /// Arguments `alignment` and `size` (memalign, aligned_alloc).
    Memalign: alloc HandsOut;
    /// Arguments `out`, `alignment` and `size`; returns 0 on success (posix_memalign).
    PosixMemalign: alloc HandsOut;
    /// Argument 0 is the block (free, cfree, free_sized, operator delete).
    Free: free Frees;
    /// As `Malloc`, but throws: the hook calls `Function::nothrow` first (operator new).
    New: alloc;
    /// As `New`, with an alignment as argument 1 (operator new for over-aligned types).
    NewAligned: alloc;
    /// As `Free`, but may itself call a hooked function (operator delete, free_sized).
    Delete: delete Frees;
    /// The dynamic linker's `_dl_debug_state`: the set of modules is about to change, or has changed.
    Loader: loader Watched;
    /// Arguments `block`, `size` and `extra`: resizes the block in place, to at least `size` and if possible
    /// `size + extra` bytes. Returns its size then, which is less than `size` if it failed (xallocx).
    Resize: resize Many;
    /// A function that the user has named: argument `Function::size_arg` is the size; returns the block.
    NamedAlloc: named_alloc Many;
    /// As `Realloc`; argument `Function::block_arg` is the block, argument `Function::size_arg` the size.
    NamedRealloc: named_realloc Many;
    /// As `Delete`; argument `Function::block_arg` is the block.
    NamedFree: named_free Many Frees;
    /// libc's `prctl` or `syscall`. The call may restrict the target's system calls: it does if argument 0 is
    /// `Function::asks` or, if that is not 0, `Function::size_arg`.
    Sandbox: sandbox Watched AlwaysOn;
    /// libc's `fork`, or the function that it creates the child with. The caller may be a signal handler that
    /// has interrupted the hook.
    Fork: fork Watched AlwaysOn;
    /// `mmap`, whose last argument has a register, or a word of the stack.
    Mmap: call Call;
    /// `mmap` whose last argument has two words of the stack (`mmap64` on 32-bit machines).
    Mmap64: call Call;
    /// `munmap`.
    Munmap: call Call;
    /// `mremap`.
    Mremap: call Call;
    /// `brk`.
    Brk: call Call;
    /// `shmat`.
    Shmat: call Call;
    /// `shmdt`.
    Shmdt: call Call;
    /// `madvise`.
    Madvise: call Call;
    /// `mprotect`.
    Mprotect: call Call;
    /// glibc's `mallopt`.
    Mallopt: call Call;
    /// glibc's `malloc_trim`.
    MallocTrim: call Call;
    /// glibc's `malloc_info`.
    MallocInfo: call Call;
    /// jemalloc's `mallctl`. Only calls are recorded that write a value, or ask for none.
    Mallctl: call Call;
    /// jemalloc's `mallctlbymib`.
    MallctlByMib: call Call;
    /// libc's `setrlimit` and `prlimit`: argument `Function::size_arg` is the resource, and the next one leads to the limit.
    Limit: limit Watched AlwaysOn;
}

impl Kind {
    /// Returns the kind with a number.
    #[must_use]
    pub fn from_u32(v: u32) -> Option<Self> {
        Self::ALL.get(v as usize).copied()
    }

    /// Returns whether calls are recorded; the other kinds only inform the hook.
    #[must_use]
    pub fn is_recorded(self) -> bool {
        !self.has(Trait::Watched)
    }

    /// Returns whether the stub leads to the hook even while recording is paused: a call from before may
    /// still be inside the hook.
    #[must_use]
    pub fn is_always_on(self) -> bool {
        self.has(Trait::AlwaysOn)
    }

    /// Returns whether this can be any function, whose callers may rely on more than malloc's callers do.
    #[must_use]
    pub fn has_many_entry(self) -> bool {
        self.has(Trait::Many)
    }

    /// Returns whether the user has named the function.
    #[must_use]
    pub fn is_of_the_user(self) -> bool {
        matches!(self, Self::NamedAlloc | Self::NamedRealloc | Self::NamedFree)
    }

    /// Returns whether what the function returns may be a block of glibc's, with a chunk header.
    #[must_use]
    pub fn hands_out_chunks(self) -> bool {
        self.has(Trait::HandsOut)
    }

    /// Returns whether the function hands out blocks.
    #[must_use]
    pub fn allocates(self) -> bool {
        self.is_recorded() && !self.has(Trait::Frees) && !self.is_call()
    }

    /// Returns whether calls are recorded as calls that change mappings or settings, and not as blocks.
    #[must_use]
    pub fn is_call(self) -> bool {
        self.has(Trait::Call)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_lead_back_and_stay() {
        for (number, kind) in Kind::ALL.iter().enumerate() {
            assert_eq!((*kind as usize, Kind::from_u32(number as u32)), (number, Some(*kind)));
        }
        assert_eq!(Kind::from_u32(Kind::ALL.len() as u32), None);
        assert_eq!((Kind::Free as u32, Kind::Fork as u32, Kind::Munmap as u32), (6, 16, 19));
    }

    #[test]
    fn every_kind_has_one_purpose() {
        for kind in Kind::ALL {
            let purposes =
                [kind.allocates(), kind.has(Trait::Frees), kind.is_call(), !kind.is_recorded()];
            assert_eq!(purposes.iter().filter(|p| **p).count(), 1, "{kind:?}");
        }
    }
}
