//! `prof replay`: replays the allocator calls of a recorded program with this process's own allocator.

use super::report::{Format, print};
use crate::failure::usage;
use anyhow::Result;
use clap::{Args, ValueEnum};
use prof_analyze::export::replay::{Call, Calls, CallsError, Sums};
use prof_os::Pid;
use prof_os::files::open_regular;
use prof_os::status::Status;
use prof_trace::values::text::{bytes, duration, number};
use serde::Serialize;
use std::ffi::{CStr, c_void};
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Make a recorded program's calls to its allocator again, and measure them
///
/// FILE is the output of `prof export replay`. The calls go to the allocator of this process: with LD_PRELOAD, to any
/// other. All are made by one thread, in the order of the recording.
#[derive(Args, Clone, Debug)]
pub(crate) struct ReplayArgs {
    /// The file of calls
    #[arg(value_name = "FILE")]
    pub file: PathBuf,

    /// How much of each block to write to, as the program would have done
    #[arg(long, value_name = "WHAT", value_enum, default_value_t = Touch::Pages)]
    pub touch: Touch,

    /// How to write the outcome
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t = Format::Text)]
    pub format: Format,
}

/// The part of a block that is written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Touch {
    /// Nothing
    None,
    /// A byte of each page
    Pages,
    /// All of it
    All,
}

/// The measurements.
#[derive(Debug, Serialize)]
struct Outcome {
    version: u32,
    /// Path of the file that malloc is in.
    allocator: String,
    calls: u64,
    slots: u64,
    /// Greatest number of bytes live at any time, as requested.
    peak_bytes: u64,
    /// Number of calls that got no memory.
    failed: u64,
    /// Time of all calls in nanoseconds, including reading them.
    time_ns: u64,
    /// Time of reading them alone, in nanoseconds.
    read_ns: u64,
    /// Resident set before the first call, at its peak, and after the last call.
    rss_before_bytes: u64,
    peak_rss_bytes: u64,
    rss_after_bytes: u64,
}

/// Runs the command.
///
/// # Errors
/// If the file can't be read, or there is not enough memory.
pub(crate) fn run(args: &ReplayArgs) -> Result<ExitCode> {
    let wrong = |e: CallsError| usage(format!("{}: {e}", args.file.display()));
    let (sums, reading) = look_through(&args.file)?.map_err(wrong)?;
    if args.touch != Touch::None {
        enough_memory(sums.peak_bytes)?;
    }
    let allocator = allocator();
    let mut slots = vec![std::ptr::null_mut::<c_void>(); sums.slots as usize];
    // Make the table resident here, so that it does not count as the allocator's memory.
    slots.fill(std::ptr::without_provenance_mut(1));
    slots.fill(std::ptr::null_mut());
    std::hint::black_box(&mut slots);
    let calls = open(&args.file)?.map_err(wrong)?;
    // Reset this process's peak; where the kernel forbids that, the peak includes the reading.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
    let before = memory("VmRSS");
    let start = Instant::now();
    let mut failed = 0;
    for call in calls {
        failed += u64::from(!make(call.map_err(wrong)?, &mut slots, args.touch));
    }
    let time = start.elapsed();
    let (peak, after) = (memory("VmHWM"), memory("VmRSS"));
    let ns = |d: Duration| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX);
    let outcome = Outcome {
        version: 1,
        allocator,
        calls: sums.calls,
        slots: sums.slots,
        peak_bytes: sums.peak_bytes,
        failed,
        time_ns: ns(time),
        read_ns: ns(reading),
        rss_before_bytes: before,
        peak_rss_bytes: peak,
        rss_after_bytes: after,
    };
    print(&match args.format {
        Format::Text => text(&outcome),
        Format::Json => serde_json::to_string_pretty(&outcome)? + "\n",
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Makes a call. Returns false if it got no memory.
#[inline]
fn make(call: Call, slots: &mut [*mut c_void], touch: Touch) -> bool {
    match call {
        Call::Malloc { slot, size } => {
            // SAFETY: `malloc` takes no pointers.
            slots[slot] = unsafe { libc::malloc(size_here(size)) };
            write(slots[slot], size, touch)
        }
        Call::Free { slot } => {
            // SAFETY: the pointer is null, or what malloc or realloc returned last for this slot, and it is not used
            // again.
            unsafe { libc::free(std::mem::replace(&mut slots[slot], std::ptr::null_mut())) };
            true
        }
        Call::Realloc { slot, size } => {
            // At least one byte, as 0 would free the block on some allocators.
            // SAFETY: the pointer is null, or what malloc or realloc returned last for this slot; if the call succeeds,
            // it is not used again.
            let new = unsafe { libc::realloc(slots[slot], size_here(size).max(1)) };
            if new.is_null() {
                return false;
            }
            slots[slot] = new;
            write(new, size, touch)
        }
    }
}

/// Converts a size to this machine's type; larger ones become the maximum, for which there is no memory.
fn size_here(size: u64) -> usize {
    usize::try_from(size).unwrap_or(usize::MAX)
}

/// Writes to a block as a program would. Returns false if the block is null.
fn write(block: *mut c_void, size: u64, touch: Touch) -> bool {
    const PAGE: usize = 4096;
    if block.is_null() {
        return false;
    }
    match touch {
        Touch::None => {}
        Touch::Pages => {
            for at in (0..size_here(size)).step_by(PAGE) {
                // SAFETY: `block` is not null and has `size` bytes, and `at` is less.
                unsafe { block.cast::<u8>().add(at).write_volatile(1) };
            }
        }
        // SAFETY: `block` is not null and has `size` bytes.
        Touch::All => unsafe { block.cast::<u8>().write_bytes(1, size_here(size)) },
    }
    std::hint::black_box(block);
    true
}

type Reader = Calls<BufReader<std::fs::File>>;

fn open(path: &Path) -> Result<Result<Reader, CallsError>> {
    let file = open_regular(path)
        .map_err(|e| usage(format!("cannot open {}: {e}; check the path", path.display())))?;
    Ok(Calls::new(BufReader::with_capacity(1 << 20, file)))
}

/// Reads all calls, to make sure that the file is valid before any call is made.
fn look_through(path: &Path) -> Result<Result<(Sums, Duration), CallsError>> {
    let mut calls = match open(path)? {
        Ok(calls) => calls,
        Err(e) => return Ok(Err(e)),
    };
    let start = Instant::now();
    for call in &mut calls {
        if let Err(e) = call {
            return Ok(Err(e));
        }
    }
    Ok(Ok((calls.sums(), start.elapsed())))
}

/// Refuses a peak that does not fit into the available memory, as a file can ask for any amount.
fn enough_memory(wanted: u64) -> Result<()> {
    let Some(available) = prof_os::memory::available().filter(|available| wanted >= *available)
    else {
        return Ok(());
    };
    Err(usage(format!(
        "the program had {} live at a time, and {} are available here; --touch none asks for the blocks \
         without writing to them",
        bytes(wanted),
        bytes(available)
    )))
}

/// Returns the value of a line in this process's status, in bytes; 0 if it is not known.
fn memory(name: &str) -> u64 {
    Status::of(Pid::this()).ok().and_then(|s| s.bytes(name)).unwrap_or(0)
}

/// Returns the path of the file that malloc is in.
fn allocator() -> String {
    let mut info = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    let malloc = libc::malloc as *const c_void;
    // SAFETY: the first argument is an address of code, and the second points to a writable `Dl_info`.
    let known = unsafe { libc::dladdr(malloc, info.as_mut_ptr()) } != 0;
    // SAFETY: the struct was filled in, or is all zeroes, which are valid as its pointers may be null.
    let name = unsafe { info.assume_init() }.dli_fname;
    if !known || name.is_null() {
        return "unknown".into();
    }
    // SAFETY: the pointer is not null, and is a string of the loader's that ends with NUL.
    unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
}

fn text(o: &Outcome) -> String {
    let calls = o.time_ns.saturating_sub(o.read_ns);
    let each = calls as f64 / o.calls.max(1) as f64;
    let mut out = format!(
        "allocator  {}\ncalls      {}, {} blocks at most, {} live at most\ntime       {}, {each:.1} ns a call \
         ({} more for reading them)\nRSS        {} at most, {} before, {} after\n",
        o.allocator,
        number(o.calls),
        number(o.slots),
        bytes(o.peak_bytes),
        duration(calls),
        duration(o.read_ns),
        bytes(o.peak_rss_bytes),
        bytes(o.rss_before_bytes),
        bytes(o.rss_after_bytes),
    );
    if o.failed > 0 {
        out += &format!("warning    {} calls got no memory\n", number(o.failed));
    }
    out
}
