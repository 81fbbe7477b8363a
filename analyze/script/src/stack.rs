//! Room for scripts: values that are nested deeply are printed, compared and dropped by functions that call themselves.

use std::io;

/// Size of a script's stack: for the deepest values and calls that scripts with limits can make. It is address space,
/// of which a script that nests nothing uses some pages.
const STACK: usize = if cfg!(target_pointer_width = "64") { 512 << 20 } else { 96 << 20 };

/// Runs an operation on a thread of its own, whose stack has room for all that scripts with limits can do.
///
/// # Errors
/// If there is no such thread: the system has too little memory, or too many threads.
pub fn on_stack<T: Send>(work: impl FnOnce() -> T + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("script".into()).stack_size(STACK);
        let result = thread.spawn_scoped(scope, work)?.join();
        Ok(result.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}
