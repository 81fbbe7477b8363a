//! Records about the target's allocators.

use crate::ticks::Ticks;
use crate::wire::{Reader, Writer};
use std::string::String;
use std::vec::Vec;

record! {
    /// The target's allocators at one moment, as its files, its environment and its memory show them.
    Allocators {
        /// Ticks.
        ticks: ticks,
        /// Allocators: triples of name (see [`allocator`]), version (empty: unknown), path of the file that has it.
        found: texts,
        /// Settings: triples of source (see [`setting`]), name, value.
        settings: texts,
        /// Number of integers for each arena in `arenas`.
        arena_len: int,
        /// glibc's arenas, see [`Arena`].
        arenas: ints,
        /// Names of other figures: the allocator's name, a point, and the figure's.
        figure_names: texts,
        /// The figures, as many as there are names.
        figures: ints,
        /// Facts that can't be told: pairs of an allocator's name and a sentence.
        unknown: texts,
    }
}

/// Names of allocators in [`Allocators::found`].
pub mod allocator {
    #![allow(missing_docs)] // named as the allocators
    pub const GLIBC: &str = "glibc";
    pub const MUSL: &str = "musl";
    pub const JEMALLOC: &str = "jemalloc";
    pub const MIMALLOC: &str = "mimalloc";
    pub const TCMALLOC: &str = "tcmalloc";
}

/// Sources of settings in [`Allocators::settings`].
pub mod setting {
    /// A variable of the environment that the program was started with.
    pub const ENVIRONMENT: &str = "environment";
    /// A variable of the allocator, in the target's memory.
    pub const MEMORY: &str = "memory";
}

/// One of glibc's arenas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arena {
    /// Address of its `malloc_state`. That of the main arena lies in libc.
    pub address: u64,
    /// Number of heaps; 0 for the main arena, which grows by `brk`.
    pub heaps: u64,
    /// Bytes taken from the kernel.
    pub mapped: u64,
    /// The most bytes that were ever taken from the kernel.
    pub most_mapped: u64,
    /// Bytes of free chunks.
    pub free: u64,
    /// Resident bytes of free chunks.
    pub dirty: u64,
    /// Bytes of the free chunk at the end of the arena.
    pub top: u64,
    /// Bytes of the free chunks in fast bins.
    pub fast: u64,
    /// Number of free chunks, without that at the end.
    pub free_chunks: u64,
    /// Number of threads that use it.
    pub threads: u64,
}

/// Number of integers of an [`Arena`].
const ARENA: usize = 10;

impl Arena {
    fn words(&self) -> [u64; ARENA] {
        [
            self.address,
            self.heaps,
            self.mapped,
            self.most_mapped,
            self.free,
            self.dirty,
            self.top,
            self.fast,
            self.free_chunks,
            self.threads,
        ]
    }

    fn of(words: &[u64]) -> Option<Self> {
        let [address, heaps, mapped, most_mapped, free, dirty, top, fast, free_chunks, threads] =
            *words.first_chunk::<ARENA>()?;
        Some(Self {
            address,
            heaps,
            mapped,
            most_mapped,
            free,
            dirty,
            top,
            fast,
            free_chunks,
            threads,
        })
    }

    /// Returns the bytes of chunks in use. Blocks in threads' caches are among them.
    #[must_use]
    pub fn in_use(&self) -> u64 {
        self.mapped.saturating_sub(self.free)
    }
}

impl Allocators {
    /// Sets the arenas.
    pub fn set_arenas(&mut self, all: &[Arena]) {
        self.arena_len = ARENA as u64;
        self.arenas = all.iter().flat_map(Arena::words).collect();
    }

    /// Returns the arenas. A later version may have more to say of each.
    #[must_use]
    pub fn all_arenas(&self) -> Vec<Arena> {
        let len = usize::try_from(self.arena_len).unwrap_or(0);
        if len < ARENA {
            return Vec::new();
        }
        self.arenas.chunks_exact(len).filter_map(Arena::of).collect()
    }

    /// Adds a setting.
    pub fn set(&mut self, source: &str, name: &str, value: impl Into<String>) {
        self.settings.extend([source.into(), name.into(), value.into()]);
    }

    /// Adds a figure of an allocator.
    pub fn note(&mut self, allocator: &str, figure: &str, value: u64) {
        self.figure_names.push(std::format!("{allocator}.{figure}"));
        self.figures.push(value);
    }

    /// Returns the figures, with the allocators' names.
    pub fn all_figures(&self) -> impl Iterator<Item = (&str, &str, u64)> {
        let all = self.figure_names.iter().zip(&self.figures);
        all.filter_map(|(name, n)| name.split_once('.').map(|(of, name)| (of, name, *n)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec;

    #[test]
    fn what_is_known_comes_back_and_more_fields_do_no_harm() {
        let arena =
            Arena { address: 0x7f00, mapped: 100, free: 30, threads: 2, ..Arena::default() };
        let mut a =
            Allocators { ticks: Ticks(5), found: vec!["glibc".into()], ..Allocators::default() };
        a.set_arenas(&[arena, Arena::default()]);
        a.set(setting::MEMORY, "top_pad", "131072");
        a.note(allocator::GLIBC, "mapped_blocks", 3);
        let back = Allocators::decode(&a.encode()).expect("a record");
        assert_eq!(back, a);
        assert_eq!(back.all_arenas(), [arena, Arena::default()]);
        assert_eq!(arena.in_use(), 70);
        assert_eq!(back.all_figures().collect::<Vec<_>>(), [("glibc", "mapped_blocks", 3)]);
        // A later version says more of each arena.
        a.arena_len += 1;
        a.arenas = [arena.words().as_slice(), &[77], &arena.words(), &[78]].concat();
        assert_eq!(a.all_arenas(), [arena, arena]);
        a.arena_len = 3;
        assert_eq!(a.all_arenas(), []);
    }
}
