//! The memory that prof maps into the target: the hook, its stubs, the ring, the thread states; and how to find it
//! again.

pub(crate) mod bits;
pub(crate) mod bridge;
pub(crate) mod code;
mod copies;
mod dlerror;
pub(crate) mod fit;
pub(crate) mod image;
pub(crate) mod library;
pub(crate) mod library_file;
pub(crate) mod listed;
pub(crate) mod loaded;
pub(crate) mod mapping;
pub(crate) mod memfd;
pub(crate) mod ours;
pub(crate) mod remains;
pub(crate) mod ring;
pub(crate) mod ring_file;
pub(crate) mod room;
pub(crate) mod setup;
pub(crate) mod thread_id;
