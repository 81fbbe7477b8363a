//! Work for instructions that not every processor of an architecture has. Without any of these, it is done as it is.

/// Work whose code is compiled once for every processor, and once for instructions that not every one has.
pub trait Task {
    /// Result of the work.
    type Output;

    /// Does it. An implementation is `#[inline(always)]`, and so is all that it calls often: other code is compiled for
    /// every processor.
    fn run(self) -> Self::Output;
}

/// The instructions that code may be compiled for a second time.
#[derive(Clone, Copy, Debug)]
pub struct Wide(());

impl Wide {
    /// Returns what this processor has of them.
    #[inline]
    #[must_use]
    pub fn here() -> Self {
        Self(())
    }

    /// Does the work.
    #[inline(always)]
    pub fn run<T: Task>(self, task: T) -> T::Output {
        task.run()
    }
}
