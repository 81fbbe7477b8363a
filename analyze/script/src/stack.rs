//! Room for scripts: values that are nested deeply are printed, compared and dropped by functions that call themselves.

use std::cell::Cell;
use std::io;

/// Size of a script's stack: for the deepest values and calls that scripts with limits can make. It is address space,
/// of which a script that nests nothing uses some pages.
const STACK: usize = if cfg!(target_pointer_width = "64") { 512 << 20 } else { 96 << 20 };

/// Bytes at the end of the stack that a script without other limits leaves to functions that do not check the stack.
const SPARE: usize = STACK / 8;

thread_local! {
    /// The address below which calls must not go, on a thread of `on_stack`; 0 on others.
    static LOWEST: Cell<usize> = const { Cell::new(0) };
}

/// Returns whether this thread is one of `on_stack`.
pub(crate) fn is_large() -> bool {
    LOWEST.get() != 0
}

/// Returns whether calls have used up the stack, but for what is left to functions that do not ask.
pub(crate) fn is_full() -> bool {
    let here = 0u8;
    (&raw const here).addr() < LOWEST.get()
}

/// Runs an operation on a thread of its own, whose stack has room for all that scripts with limits can do. Scripts
/// without limits may call themselves there for as long as there is room.
///
/// # Errors
/// If there is no such thread: the system has too little memory, or too many threads.
pub fn on_stack<T: Send>(work: impl FnOnce() -> T + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("script".into()).stack_size(STACK);
        let run = || {
            let here = 0u8;
            LOWEST.set((&raw const here).addr().saturating_sub(STACK - SPARE));
            work()
        };
        let result = thread.spawn_scoped(scope, run)?.join();
        Ok(result.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}
