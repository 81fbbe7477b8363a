//! The message of a thread's last failed call of the dynamic linker's, which glibc keeps for `dlerror`.
//!
//! The thread's next call frees it, whoever makes that: a message would be lost that the program has not fetched yet, and
//! one that it has fetched would be freed while the program may read it. So it is set aside while a thread calls the linker for
//! prof: the thread's variable for it is empty meanwhile, and a call that succeeds leaves it so. Where prof is killed in the
//! midst, the message is lost, and nothing is freed.

use crate::process::elf::Module;
use crate::stopped::memory::WORD;
use crate::stopped::remote::Caller;
use crate::{RemoteAddr, RemoteMemory, Result};

/// glibc's variable in the thread-local storage (since 2.34), the address of what is kept.
const VARIABLE: &str = "__libc_dlerror_result";
/// Maximum distance of the variable from the thread pointer.
const MOST: u64 = 1 << 20;

/// Returns the place at which libc has the variable's distance from the thread pointer, if it has one.
pub(super) fn place(mem: &RemoteMemory, libc: &Module) -> Option<RemoteAddr> {
    libc.relocated_place(mem, VARIABLE)
}

/// Sets aside what is kept for the thread `c`, and returns the variable's address and value; `None`: nothing is kept, or prof
/// does not know the variable.
fn set_aside(c: &Caller<'_>, mem: &RemoteMemory, place: RemoteAddr) -> Option<(RemoteAddr, u64)> {
    let distance = mem.word(place).ok()? as usize as isize;
    if distance.unsigned_abs() as u64 > MOST {
        return None;
    }
    let at = RemoteAddr((c.thread_pointer() as usize).wrapping_add_signed(distance) as u64);
    let kept = mem.word(at).ok().filter(|kept| *kept != 0)?;
    mem.write_data(at, &[0; WORD]).ok().map(|()| (at, kept))
}

/// Calls `f`, in which the thread `c` calls the linker, with what is kept for `dlerror` set aside. `place` is what [`place`]
/// returns.
///
/// # Errors
/// If `f` fails, in which case the thread may still be inside the linker, and what was kept stays aside; or if it can't be put
/// back.
pub(super) fn keep<T>(
    c: &mut Caller<'_>,
    mem: &RemoteMemory,
    place: Option<RemoteAddr>,
    f: impl FnOnce(&mut Caller<'_>) -> Result<T>,
) -> Result<T> {
    let kept = place.and_then(|place| set_aside(c, mem, place));
    let done = f(c)?;
    if let Some((at, kept)) = kept {
        mem.write_data(at, &(kept as usize).to_ne_bytes())?;
    }
    Ok(done)
}
