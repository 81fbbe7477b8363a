//! Opens perf events.

use crate::sys::checked;
use prof_os::Pid;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

pub(crate) const TYPE_SOFTWARE: u32 = 1;
pub(crate) const TYPE_TRACEPOINT: u32 = 2;
/// The software event that never happens: its ring holds what others are sent to.
pub(crate) const SW_DUMMY: u64 = 9;

const SAMPLE_TID: u64 = 1 << 1;
const SAMPLE_TIME: u64 = 1 << 2;
const SAMPLE_CALLCHAIN: u64 = 1 << 5;
const SAMPLE_RAW: u64 = 1 << 10;
const SAMPLE_IDENTIFIER: u64 = 1 << 16;

const FORMAT_LOST: u64 = 1 << 4;

const DISABLED: u64 = 1;
const INHERIT: u64 = 1 << 1;
const COMM: u64 = 1 << 9;
const TASK: u64 = 1 << 13;
const WATERMARK: u64 = 1 << 14;
const EXCLUDE_CALLCHAIN_USER: u64 = 1 << 22;
const COMM_EXEC: u64 = 1 << 24;
const USE_CLOCKID: u64 = 1 << 25;

const FLAG_FD_CLOEXEC: u64 = 1 << 3;
const FLAG_PID_CGROUP: u64 = 1 << 2;

/// A request of `ioctl` for perf events: `_IO('$', n)`, or with a direction and the size of a pointer.
const fn request(n: u64, direction: Direction) -> u64 {
    // MIPS and others number the directions in another way.
    let mips = cfg!(any(target_arch = "mips", target_arch = "mips64"));
    let (shift, none, read, write) = if mips { (29, 1, 2, 4) } else { (30, 0, 2, 1) };
    let (direction, size) = match direction {
        Direction::None => (none, 0),
        Direction::Read => (read, size_of::<usize>() as u64),
        Direction::Write => (write, size_of::<usize>() as u64),
    };
    direction << shift | size << 16 | (b'$' as u64) << 8 | n
}

enum Direction {
    None,
    Read,
    Write,
}

/// The kernel's `struct perf_event_attr` in its fifth version (Linux 4.8).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Attr {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_watermark: u32,
    bp_type: u32,
    config1: u64,
    config2: u64,
    branch_sample_type: u64,
    sample_regs_user: u64,
    sample_stack_user: u32,
    clockid: i32,
    sample_regs_intr: u64,
    aux_watermark: u32,
    sample_max_stack: u16,
    reserved: u16,
}

/// The tasks that an event is about.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Of<'a> {
    /// Every task.
    All,
    /// A thread, and the threads and children that it makes from then on.
    Thread(Pid),
    /// The tasks of a cgroup, by its folder.
    Cgroup(BorrowedFd<'a>),
}

/// An event of a tracepoint.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    /// Number of the tracepoint.
    pub id: u64,
    /// Number of events for each that is reported.
    pub period: u64,
    /// Whether each event comes with the kernel's stack.
    pub stack: bool,
}

/// An open event.
#[derive(Debug)]
pub(crate) struct Event(OwnedFd);

impl Event {
    /// Opens the event whose ring others are sent to, on one processor. `watermark` is the number of bytes in the ring
    /// from which on a reader is woken. The ring also gets the names of tasks, and their forks.
    pub(crate) fn ring(processor: u32, watermark: u32) -> io::Result<Self> {
        let attr = Attr {
            kind: TYPE_SOFTWARE,
            config: SW_DUMMY,
            sample_type: SAMPLE_IDENTIFIER | SAMPLE_TID | SAMPLE_TIME,
            flags: COMM | COMM_EXEC | TASK | WATERMARK,
            wakeup_watermark: watermark,
            ..Attr::default()
        };
        open(attr, Of::All, processor)
    }

    /// Opens a tracepoint's event on one processor, disabled.
    pub(crate) fn tracepoint(wanted: Wanted, of: Of<'_>, processor: u32) -> io::Result<Self> {
        let stack = if wanted.stack { SAMPLE_CALLCHAIN } else { 0 };
        let inherit = if matches!(of, Of::Thread(_)) { INHERIT } else { 0 };
        let attr = Attr {
            kind: TYPE_TRACEPOINT,
            config: wanted.id,
            sample_period: wanted.period,
            sample_type: SAMPLE_IDENTIFIER | SAMPLE_TID | SAMPLE_TIME | SAMPLE_RAW | stack,
            read_format: FORMAT_LOST,
            flags: DISABLED | inherit | EXCLUDE_CALLCHAIN_USER,
            ..Attr::default()
        };
        match open(attr, of, processor) {
            // Before Linux 6.0 an event does not count what is lost.
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {
                open(Attr { read_format: 0, ..attr }, of, processor)
            }
            result => result,
        }
    }

    /// Returns the number that the event's samples carry.
    pub(crate) fn number(&self) -> io::Result<u64> {
        let mut id = 0u64;
        let at = &raw mut id;
        // SAFETY: the request writes 8 bytes, which `id` has.
        let rc = unsafe { libc::ioctl(self.fd(), request(7, Direction::Read) as _, at) };
        checked(rc.into())?;
        Ok(id)
    }

    /// Lets only events through for which an expression on the tracepoint's fields holds.
    pub(crate) fn filter(&self, expression: &str) -> io::Result<()> {
        let text = std::ffi::CString::new(expression)?;
        // SAFETY: the request reads a string that ends with a zero byte.
        let rc =
            unsafe { libc::ioctl(self.fd(), request(6, Direction::Write) as _, text.as_ptr()) };
        checked(rc.into()).map(drop)
    }

    /// Sends the event's samples to the ring of another one on the same processor.
    pub(crate) fn send_to(&self, ring: &Event) -> io::Result<()> {
        self.plain(5, ring.fd())
    }

    /// Starts the event.
    pub(crate) fn enable(&self) -> io::Result<()> {
        self.plain(0, 0)
    }

    /// Stops the event.
    pub(crate) fn disable(&self) -> io::Result<()> {
        self.plain(1, 0)
    }

    fn plain(&self, number: u64, value: i32) -> io::Result<()> {
        let value = libc::c_long::from(value);
        // SAFETY: these requests take a number.
        checked(
            unsafe { libc::ioctl(self.fd(), request(number, Direction::None) as _, value) }.into(),
        )
        .map(drop)
    }

    /// Returns how often the tracepoint was passed, and how many samples were lost; `None` if the kernel does not say.
    pub(crate) fn counts(&self) -> Option<(u64, u64)> {
        let mut values = [0u64; 2];
        // SAFETY: the call writes at most 16 bytes, which the array has.
        let n = unsafe { libc::read(self.fd(), values.as_mut_ptr().cast(), 16) };
        (n == 16).then_some((values[0], values[1]))
    }

    /// Returns the descriptor.
    pub(crate) fn fd(&self) -> i32 {
        self.0.as_raw_fd()
    }
}

impl AsFd for Event {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn open(mut attr: Attr, of: Of<'_>, processor: u32) -> io::Result<Event> {
    attr.size = size_of::<Attr>() as u32;
    attr.flags |= USE_CLOCKID;
    attr.clockid = libc::CLOCK_MONOTONIC;
    if cfg!(target_endian = "big") {
        attr.flags = attr.flags.reverse_bits(); // the kernel's are bit fields
    }
    let (pid, more) = match of {
        Of::All => (-1, 0),
        Of::Thread(tid) => (tid.as_raw(), 0),
        Of::Cgroup(folder) => (folder.as_raw_fd(), FLAG_PID_CGROUP),
    };
    let flags = (FLAG_FD_CLOEXEC | more) as libc::c_ulong;
    // SAFETY: the structure is the kernel's, and `size` is its length.
    let fd = unsafe {
        libc::syscall(libc::SYS_perf_event_open, &raw const attr, pid, processor as i32, -1, flags)
    };
    let fd = checked(fd)?;
    // SAFETY: the descriptor is new, and nobody else has it.
    Ok(Event(unsafe { OwnedFd::from_raw_fd(fd as i32) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_structure_is_the_kernels() {
        assert_eq!(size_of::<Attr>(), 112);
        assert_eq!(std::mem::offset_of!(Attr, flags), 40);
        assert_eq!(std::mem::offset_of!(Attr, clockid), 92);
        if cfg!(target_arch = "x86_64") {
            assert_eq!(request(0, Direction::None), 0x2400);
            assert_eq!(request(6, Direction::Write), 0x4008_2406);
            assert_eq!(request(7, Direction::Read), 0x8008_2407);
        }
    }
}
