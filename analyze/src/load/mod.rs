//! Reads a recording: whole chunks from the front, its records about the target, and the events of all threads in one
//! order of time.

mod before;
mod calls;
mod clock;
mod distances;
mod file;
mod folded;
mod held;
mod ids;
mod marks;
mod merge;
mod meta;
mod pc;
mod process;
mod replaced;
mod resident;
mod scans;
mod stream;
mod stripped;

pub use before::{BEFORE, CensusSeen, LABEL, is_before};
pub(crate) use before::{BEFORE_PC, BEFORE_THREAD, class_of, stack_of};
pub(crate) use calls::CallReader;
pub use calls::{MapEvent, calls};
pub use clock::Clock;
pub use file::is_recording;
pub(crate) use file::{ChunkFile, Item, open_file};
pub use ids::IdMap;
pub(crate) use merge::Merge;
pub use merge::{Op, OpKind};
pub use meta::{Memories, Meta, Part, SymbolsAt};
pub use pc::Pc;
pub use process::{ProcessSeen, Sample, WorkerSeen};
pub use resident::{Kernel, Reading, Resident};
pub use scans::ScanAt;
pub(crate) use stream::{BATCH, EVENT_UNIT};
pub use stream::{LoadOptions, Sink, Stream, Tail};
pub(crate) use stripped::StepAt;
