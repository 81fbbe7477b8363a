//! The shared memory as the hook has it mapped.

/// The memory that the hook shares with prof. The injector maps it before any code of the hook can run, and unmaps it
/// when no thread can come back into that code.
pub type Shared = prof_trace::shared::Shared<'static>;
