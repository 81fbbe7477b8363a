//! What prof maps into the target: the hook, its stubs, the ring, the thread states; and how to find it again.

pub(crate) mod bridge;
pub(crate) mod image;
pub(crate) mod mapping;
pub(crate) mod remains;
pub(crate) mod ring;
pub(crate) mod room;
pub(crate) mod setup;
