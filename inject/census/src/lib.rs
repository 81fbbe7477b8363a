//! The census of a heap: all blocks of a running process, whoever allocated them and whenever, by the allocator's own
//! data.
//!
//! glibc's allocator is walked, from 2.17 to today, without symbols: its main arena is recognised by its bins, the other
//! arenas by the ring that they form, and every chunk begins behind the one before. What is in a thread's cache or in a
//! fast bin looks as if it were in use, so these lists are followed as well. jemalloc 5 is walked by its map from pages to
//! extents (`jemalloc/`), musl's allocator by its descriptions of groups of slots (`musl/`), mimalloc 2 by those of its
//! segments and mimalloc 3 by its map of pages (`mimalloc/`), tcmalloc by its tree from pages to spans (`tcmalloc/`). What no walk explains is counted by mapping.
//!
//! * [`take`] takes the census; [`Census`] is what it found;
//! * [`own_words`] finds words of an allocator's own that look as if they held blocks;
//! * [`Walk`] prepares one that somebody else stops the process for; [`Taken`] is what that found.
//!
//! The target's memory is only read, and none of its code runs. Whatever stands there may be wrong: sizes, lists and
//! arenas are bounded by what has been walked, and a walk that makes no sense ends with a count of what it lost.

mod arena;
mod bits;
mod cached;
mod census;
mod chunk;
mod data;
mod error;
#[cfg(all(test, target_pointer_width = "64", target_endian = "little"))]
mod fake;
mod jemalloc;
mod mapped;
mod mimalloc;
mod moment;
mod musl;
mod pieces;
mod sums;
mod tcmalloc;
mod view;
mod walk;

pub use census::{ArenaStats, Census, Lost, Options, Snapshot, Trim, take};
pub use error::Error;
pub use jemalloc::{JemallocArena, JemallocStats};
pub use mimalloc::MimallocStats;
pub use moment::{Placed, Taken, Walk, own_words};
pub use musl::MuslStats;
pub use sums::{Block, SizeClass, Sum};
pub use tcmalloc::TcmallocStats;
