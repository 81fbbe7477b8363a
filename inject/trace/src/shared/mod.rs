//! The memory that the target and prof share: one memfd, mapped by both.
//!
//! prof creates it, seals it against shrinking, and maps it into the target. The target is not trusted: prof
//! bounds each access by its own copy of the geometry ([`Geometry`]), never by numbers in the memory.
//!
//! Fields that both sides access while the hook runs are atomics, and so are those that prof writes before the hook
//! runs its first instruction and reads later, when the target may have written to them. prof writes the others
//! before, and reads them in copies alone.

mod area;
mod control;
mod entries;
mod geometry;
mod heir;
mod hook_header;
mod kinds;
mod limits;
mod page;
mod stable;
mod tables;
mod views;

pub use area::{Area, SharedArea};
pub use control::*;
pub use entries::{Code, Entries};
pub use geometry::{Geometry, MARKS_AT, STATE_SIZE};
pub use heir::*;
pub use hook_header::*;
pub use kinds::Kind;
pub use limits::*;
pub use page::Header;
pub use stable::*;
pub use tables::*;
pub use views::*;
