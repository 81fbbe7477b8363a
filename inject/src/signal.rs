//! The signals that prof takes: whether the target uses one, how its disposition is restored, and whether the target may
//! still call the handler that prof had installed.

use crate::stopped::memory::{WORD, words};
use crate::stopped::remote::Caller;
use crate::stopped::stack_pointer::stack_pointer;
use crate::stopped::threads::{StopTimes, stop_all};
use crate::{Error, RemoteAddr, RemoteMemory, Result};
use nix::errno::Errno;
use prof_arch::generic::stopped::StoppedRegs;
use prof_arch::native::jump::{RETURN, code_at};
use prof_arch::native::syscall::{SIGACTION_LEN, SIGSET_LEN, nr, sigaction, sigaction_handler};
use prof_os::maps::Map;
use prof_os::status::Status;
use prof_os::{Pid, process, task};
use prof_trace::shared::Area;
use std::ops::Range;
use std::time::{Duration, Instant};

/// Number of threads that suffice for the examination if they do not block the signal.
const SOME_THREADS: usize = 64;
/// Maximum number of descriptors that are examined.
const SOME_DESCRIPTORS: usize = 1 << 16;
/// Maximum number of bytes that are searched for the handler's address: of one mapping, and of all together.
const SEARCHED: (u64, u64) = (16 << 20, 64 << 20);

/// Returns what the target does with a signal, if it uses the signal.
///
/// # Errors
/// If the target is gone.
pub(crate) fn in_use(pid: Pid, mem: &RemoteMemory, signal: u32) -> Result<Option<&'static str>> {
    let bit = bit(signal);
    let status = Status::of(pid)?;
    if (status.signals("SigCgt") | status.signals("SigIgn")) & bit != 0 {
        return Ok(Some("handles or ignores"));
    }
    if let Some(how) = taken(pid, mem, signal)? {
        return Ok(Some(how));
    }
    let (mut all, mut any, mut pending) = (true, false, status.signals("ShdPnd") & bit != 0);
    for (k, tid) in process::threads(pid)?.into_iter().enumerate() {
        if !all && k >= SOME_THREADS {
            break;
        }
        let Ok(s) = Status::of_thread(pid, tid) else { continue };
        let blocks = s.signals("SigBlk") & bit != 0;
        (all, any) = (all && blocks, any || blocks);
        pending |= s.signals("SigPnd") & bit != 0;
    }
    Ok(match () {
        () if pending => Some("still has a pending"),
        () if all && any => Some("blocks (in all its threads, as for sigwait or signalfd)"),
        () => None,
    })
}

/// Returns how the target takes a signal without a handler, if it does.
pub(crate) fn taken(pid: Pid, mem: &RemoteMemory, signal: u32) -> Result<Option<&'static str>> {
    let mut blocked = false;
    for (k, tid) in process::threads(pid)?.into_iter().enumerate() {
        if !blocked && k >= SOME_THREADS {
            break;
        }
        // While a thread waits for signals, the kernel shows them as not blocked.
        if waits_for(pid, tid, mem, signal) {
            return Ok(Some("waits (sigwait) for"));
        }
        let status = Status::of_thread(pid, tid);
        blocked |= status.is_ok_and(|s| s.signals("SigBlk") & bit(signal) != 0);
    }
    let by_descriptor = blocked && has_signalfd(pid, signal);
    Ok(by_descriptor.then_some("takes (by signalfd)"))
}

fn bit(signal: u32) -> u128 {
    1u128 << (signal - 1)
}

/// Returns whether a thread sleeps in `rt_sigtimedwait` for a signal.
fn waits_for(pid: Pid, tid: Pid, mem: &RemoteMemory, signal: u32) -> bool {
    /// System call number of `rt_sigtimedwait_time64` in 32-bit kernels.
    const TIME64: i64 = 421;
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/syscall"));
    let text = text.unwrap_or_default();
    let mut fields = text.split_whitespace();
    let number: Option<i64> = fields.next().and_then(|n| n.parse().ok());
    let wide = cfg!(target_pointer_width = "32") && number == Some(TIME64);
    #[allow(clippy::unnecessary_cast)] // of 32 bits on ARM
    let wait = libc::SYS_rt_sigtimedwait as i64;
    if !wide && number != Some(wait) {
        return false;
    }
    let set = fields.next().and_then(|f| u64::from_str_radix(f.strip_prefix("0x")?, 16).ok());
    let Some(set) = set else { return false };
    let (at, bit) = place_in_set(signal, WORD);
    mem.word(RemoteAddr(set.wrapping_add(at))).is_ok_and(|w| w >> bit & 1 == 1)
}

/// Returns the offset of the word that holds a signal's bit in the kernel's set of signals, and the bit's number in
/// it. The set is an array of words of this many bytes, in the processor's byte order.
fn place_in_set(signal: u32, word: usize) -> (u64, u32) {
    let (n, bits) = (signal - 1, word as u32 * 8);
    (u64::from(n / bits) * word as u64, n % bits)
}

/// Returns whether the target has a signalfd for a signal.
fn has_signalfd(pid: Pid, signal: u32) -> bool {
    let fds = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    fds.take(SOME_DESCRIPTORS)
        .filter(|e| {
            std::fs::read_link(e.path()).is_ok_and(|l| l.ends_with("anon_inode:[signalfd]"))
        })
        .any(|e| {
            let path = format!("/proc/{pid}/fdinfo/{}", e.file_name().to_string_lossy());
            let info = std::fs::read_to_string(path).unwrap_or_default();
            let mask = info.lines().find_map(|l| l.strip_prefix("sigmask:"));
            let mask = mask.and_then(|m| u128::from_str_radix(m.trim(), 16).ok());
            mask.is_some_and(|m| m & bit(signal) != 0)
        })
}

/// The disposition that [`restore`] puts back, with the data for recognizing prof's handler.
pub(crate) struct OldAction<'a> {
    pub signal: u32,
    /// The old disposition, as the kernel's structure.
    pub old: &'a [u8],
    /// The addresses of prof's code, in which its handler lies.
    pub ours: Range<u64>,
    /// The value of `Stable::signal_ignored`, and its address in the target.
    pub ignored: (bool, RemoteAddr),
    /// Memory to which the kernel may write the present disposition: the flag page, if it is still there.
    pub scratch: Option<RemoteAddr>,
    /// Whether pending signals are the target's own, which stay.
    pub keep_pending: bool,
}

/// Returns the handler of a signal that is in force. The kernel writes it to `scratch` where the frame of the remote
/// call is in read-only memory.
pub(crate) fn handler_of(
    c: &mut Caller<'_>,
    mem: &RemoteMemory,
    signal: u32,
    scratch: Option<RemoteAddr>,
) -> Result<u64> {
    let at = c.put(&[0; SIGACTION_LEN])?;
    let mut ask = |at: RemoteAddr| {
        let args = [u64::from(signal), 0, at.0, SIGSET_LEN as u64, 0, 0];
        c.call("rt_sigaction", nr::RT_SIGACTION, args).map(|_| at)
    };
    let at = match (ask(at), scratch) {
        (Err(Error::Remote { errno: Errno::EFAULT, .. }), Some(scratch)) => ask(scratch)?,
        (asked, _) => asked?,
    };
    let mut now = [0u8; SIGACTION_LEN];
    mem.read(at, &mut now)?;
    Ok(sigaction_handler(&now))
}

/// Puts a signal's old disposition back, after discarding pending signals, which were meant for prof's handler.
///
/// This happens only if the handler in force is prof's. If the target has installed its own since, that stays, and
/// the result is `false`.
pub(crate) fn restore(
    c: &mut Caller<'_>,
    mem: &RemoteMemory,
    action: &OldAction<'_>,
) -> Result<bool> {
    let OldAction { signal, old, ref ours, ignored, scratch, keep_pending } = *action;
    let set = SIGSET_LEN as u64;
    let now = match handler_of(c, mem, signal, scratch) {
        // The flag page is unmapped after the disposition has been restored.
        Err(Error::Remote { errno: Errno::EFAULT, .. }) if scratch.is_none() => return Ok(true),
        now => now?,
    };
    let half_way = ignored.0 && now == libc::SIG_IGN as u64;
    if !ours.contains(&now) && !half_way {
        // An earlier detach may have come this far.
        return Ok(old.len() == SIGACTION_LEN && sigaction_handler(old) == now);
    }
    let ignore = sigaction(libc::SIG_IGN as u64, 0, 0);
    let mut steps = vec![old];
    if !keep_pending {
        mem.write(ignored.1, &1u32.to_ne_bytes())?;
        steps.insert(0, &ignore);
    }
    for action in steps {
        let at = c.put(action)?;
        let args = [u64::from(signal), at.0, 0, set, 0, 0];
        c.call("rt_sigaction", nr::RT_SIGACTION, args)?;
    }
    Ok(true)
}

/// Returns whether an address is stored in memory where programs keep pointers: the data of their modules, the heap
/// behind the program's data, and the stacks. The mappings that overlap `except`, which are prof's, are skipped. The first
/// thread is waited for up to `timeout`.
pub(crate) fn is_remembered(
    pid: Pid,
    mem: &RemoteMemory,
    maps: &[Map],
    addr: u64,
    except: &[Range<u64>],
    timeout: Duration,
) -> bool {
    let mut left = SEARCHED.1;
    // A thread that a killed prof has left in a call runs only for a moment, so it is waited for. One that runs on is stopped.
    let asleep = |tries: u32| {
        std::thread::sleep(Duration::from_millis(u64::from(tries != 0) * 2));
        task::asleep(pid, pid)
    };
    let stopped = || stack_pointer(pid, pid, Instant::now() + timeout).ok().flatten();
    let sp = (0..10).find_map(asleep).map(|a| a.sp).or_else(stopped);
    let mut end_of_file = RemoteAddr(0);
    for m in maps {
        // Memory that is mapped right behind prof's own pages of a file is no module's data.
        let ours = except.iter().any(|r| r.start < m.end.0 && m.start.0 < r.end);
        let data = !ours && (m.inode != 0 || m.start == end_of_file);
        if data {
            end_of_file = m.end;
        }
        let known = data || m.name == b"[heap]" || m.name.starts_with(b"[stack");
        if !known || !m.read || !m.write || m.shared || ours {
            continue;
        }
        // The part of a stack that is in use is at its end. Below the stack pointer are remains of earlier calls,
        // also of those that prof has had the thread make.
        let stack = m.name.starts_with(b"[stack");
        let sp = sp.filter(|sp| stack && m.holds(*sp)).map_or(m.start.0, |sp| sp.0);
        let len = (m.end.0 - sp).min(SEARCHED.0).min(left);
        left -= len;
        let from = if stack { m.end.0 - len } else { m.start.0 };
        let bytes = mem.read_some(RemoteAddr(from), len as usize);
        if let Some(index) = words(&bytes).position(|w| w == addr) {
            let at = from + (index * WORD) as u64;
            log::debug!("{addr:#x} stands at {at:#x}, in {}", String::from_utf8_lossy(&m.name));
            return true;
        }
    }
    false
}

/// Returns the page that contains an address.
pub(crate) fn page_of(addr: u64) -> Area {
    let len = prof_os::page_size();
    Area { addr: code_at(addr) & !(len - 1), len }
}

/// Makes a handler return at once, whoever calls it. Returns `false` if a thread was inside the bytes to change at
/// every attempt.
///
/// # Errors
/// If the target can't be stopped.
pub(crate) fn silence(
    pid: Pid,
    mem: &RemoteMemory,
    handler: u64,
    timeout: Duration,
    stops: &mut StopTimes,
) -> Result<bool> {
    let at = code_at(handler);
    let inside = at + 1..at + RETURN.len() as u64;
    let deadline = Instant::now() + timeout;
    loop {
        let mut stopped = stop_all(pid, timeout)?;
        let stands = |t: &mut crate::stopped::tracee::Tracee| {
            t.regs().is_ok_and(|r| inside.contains(&r.pc()))
        };
        let clear = !stopped.threads.iter_mut().any(stands);
        let written = if clear { mem.write(RemoteAddr(at), RETURN) } else { Ok(()) };
        stopped.resume(stops);
        written?;
        if clear || Instant::now() >= deadline {
            return Ok(clear);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Clears the page of a handler except for a return instruction at the handler's address.
pub(crate) fn clear_page(mem: &RemoteMemory, handler: u64) -> Result<()> {
    let page = page_of(handler);
    let mut bytes = vec![0; page.len as usize];
    let at = (code_at(handler) - page.addr) as usize;
    let Some(to) = bytes.get_mut(at..at + RETURN.len()) else {
        return Err(Error::Broken("the handler of the toggle signal lies at the end of its page, so prof can't leave a return there".into()));
    };
    to.copy_from_slice(RETURN);
    mem.write(RemoteAddr(page.addr), &bytes)
}

/// Returns the name of a signal, such as `SIGUSR1` or `SIGRTMIN+3`.
#[must_use]
pub fn signal_name(signal: i32) -> String {
    match nix::sys::signal::Signal::try_from(signal) {
        Ok(s) => s.as_str().into(),
        Err(_) => format!("SIGRTMIN+{}", signal - libc::SIGRTMIN()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_found_in_the_kernels_set() {
        let places = |word| [1, 12, 32, 33, 64].map(|signal| place_in_set(signal, word));
        assert_eq!(places(8), [(0, 0), (0, 11), (0, 31), (0, 32), (0, 63)]);
        assert_eq!(places(4), [(0, 0), (0, 11), (0, 31), (4, 0), (4, 31)]);
        let mem = RemoteMemory::open(Pid::this()).expect("own memory");
        for signal in [libc::SIGHUP, libc::SIGUSR2, libc::SIGRTMIN(), libc::SIGRTMAX()] {
            // SAFETY: all zeros are a valid set, which the calls then only write to.
            let set = unsafe {
                let mut set: libc::sigset_t = std::mem::zeroed();
                libc::sigemptyset(&mut set);
                libc::sigaddset(&mut set, signal);
                set
            };
            let is_in = |signal: i32| {
                let (at, bit) = place_in_set(signal as u32, WORD);
                let word = mem.word(RemoteAddr((&raw const set).addr() as u64 + at));
                word.expect("a word") >> bit & 1 == 1
            };
            let found: Vec<i32> = (1..=64).filter(|n| is_in(*n)).collect();
            assert_eq!(found, [signal]);
        }
    }
}
