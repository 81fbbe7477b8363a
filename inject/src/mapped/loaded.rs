//! Makes a hook that the target's dynamic linker has loaded differ from other libraries.

use crate::mapped::image::HookImage;
use crate::stopped::remote::Caller;
use crate::{RemoteAddr, RemoteMemory, Result};
use prof_arch::native::syscall::nr;
use prof_trace::shared::Area;

/// Treats the hook's library at `base` as what prof maps itself, in the stop in which it was loaded.
///
/// A garbage collector takes the data of all libraries for roots, and reads it later without the linker's lock: Boehm's
/// would read it after the library has gone, and end the target. It asks the program headers in memory which data that
/// is, and nobody else does: the linker has read them in the file.
///
/// # Errors
/// If the program headers can't be written.
pub(crate) fn set_apart(
    c: &mut Caller<'_>,
    mem: &RemoteMemory,
    image: &HookImage,
    base: u64,
) -> Result<()> {
    for (at, flags) in image.flags_without_write() {
        mem.write(RemoteAddr(base).plus(*at as u64), &flags.to_ne_bytes())?;
    }
    // The target may lock all that is mapped. Where the call fails, the library is locked and works.
    let _ = c.call("munlock", nr::MUNLOCK, [base, image.len() as u64, 0, 0, 0, 0]);
    Ok(())
}

/// Empties the stack on which the linker was called. It has left addresses of blocks there, which a scan of the target's
/// memory would take for the program's pointers once the program is given these blocks. Where that fails, they stay.
pub(crate) fn clear(c: &mut Caller<'_>, stack: Area) {
    let args = [stack.addr, stack.len, libc::MADV_DONTNEED as u64, 0, 0, 0];
    let _ = c.call("madvise", nr::MADVISE, args);
}
