//! Starts a program under recording: attaches to it before its first allocation.
//!
//! The program is held where the dynamic linker has relocated everything and no constructor has run: at
//! `_dl_debug_state`, which the linker calls then. A program without such a linker is held at its entry point. It is
//! then left stopped by SIGSTOP, and prof attaches to it as to any other process. The caller of
//! [`Installed::activate`] lets it run by [`Launched::go`].

use crate::permission::may_name_processes;
use crate::process::elf::{self, Module};
use crate::process::link_map::{R_STATE, RT_ADD, RT_CONSISTENT};
use crate::stopped::tracee::{Stop, Tracee};
use crate::{Error, Installed, Options, RemoteAddr, RemoteMemory, Result, install, preflight};
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::waitpid;
use nix::unistd::pipe2;
use prof_arch::generic::stopped::StoppedRegs;
use prof_arch::native::FullRegs;
use prof_arch::native::jump::{breakpoint, code_at};
use prof_arch::unwind::RegisterSet;
use prof_os::status::Status;
use prof_os::{Pid, maps};
use std::cell::Cell;
use std::ffi::{CString, OsString};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Time within which a program must start; it may have to be read from a slow disk.
const PATIENCE: Duration = Duration::from_secs(60);

/// A program that was started, and is stopped before the first instruction of its own.
#[derive(Debug)]
pub struct Launched {
    /// Process id. The program is a child of this process.
    pub pid: Pid,
    /// The attach to the program.
    pub installed: Installed,
}

impl Launched {
    /// Continues the stopped program.
    pub fn go(pid: Pid) {
        let _ = kill(pid.into(), Signal::SIGCONT);
    }
}

/// Starts a program, stops it before its first allocation after dynamic linking, and installs prof in it.
///
/// # Errors
/// If the program can't be started, or can't be recorded. It is then killed.
pub fn launch(command: &[OsString], options: &Options) -> Result<Launched> {
    may_name_processes()?;
    let pid = start(command)?;
    let held = hold(pid).and_then(|()| {
        let target = preflight(pid)?;
        install(&target, options)
    });
    match held {
        Ok(installed) => Ok(Launched { pid, installed }),
        Err(e) => {
            end(pid);
            Err(e)
        }
    }
}

/// Kills a child of prof's that has not been reaped, and reaps it.
fn end(pid: Pid) {
    let _ = kill(pid.into(), Signal::SIGKILL);
    let _ = waitpid(Some(pid.into()), None);
}

fn pipe() -> Result<(OwnedFd, OwnedFd)> {
    pipe2(OFlag::O_CLOEXEC).map_err(|errno| Error::Own { what: "make a pipe", errno })
}

/// Whether SIGPIPE was ignored when prof was started, so that a command starts with what prof's caller has set.
static PIPE_IGNORED: AtomicBool = AtomicBool::new(false);

/// The loader calls this before Rust's runtime, which ignores SIGPIPE.
#[used]
#[unsafe(link_section = ".init_array")]
static REMEMBER_PIPE: extern "C" fn() = remember_pipe;

extern "C" fn remember_pipe() {
    PIPE_IGNORED.store(prof_os::signals::is_ignored(libc::SIGPIPE), Relaxed);
}

/// Forks a child that executes the command once it is traced. Runs it to where everything is linked, and leaves it
/// stopped.
pub(crate) fn start(command: &[OsString]) -> Result<Pid> {
    let args: Vec<CString> = command
        .iter()
        .map(|a| CString::new(a.as_bytes()).map_err(|e| Error::Start { errno: e.into() }))
        .collect::<Result<_>>()?;
    let mut argv: Vec<*const libc::c_char> = args.iter().map(|a| a.as_ptr()).collect();
    argv.push(std::ptr::null());
    // The command may be what serves the file system that prof runs from.
    crate::resident::fault_in();
    let (go_read, go_write) = pipe()?;
    let (failed_read, failed_write) = pipe()?;
    // SAFETY: the child only makes system calls, on memory that was allocated before the fork.
    let pid = unsafe { libc::fork() };
    match pid {
        -1 => return Err(Error::Own { what: "make a process", errno: Errno::last() }),
        0 => {
            let mut byte = 0u8;
            // SAFETY: as above; the arguments live until exec or `_exit`.
            unsafe {
                // Rust's runtime ignores SIGPIPE, and exec keeps that.
                if !PIPE_IGNORED.load(Relaxed) {
                    libc::signal(libc::SIGPIPE, libc::SIG_DFL);
                }
                libc::read(go_read.as_raw_fd(), (&raw mut byte).cast(), 1);
                libc::execvp(argv[0], argv.as_ptr());
                let errno = *libc::__errno_location();
                libc::write(failed_write.as_raw_fd(), (&raw const errno).cast(), 4);
                libc::_exit(127);
            }
        }
        _ => {}
    }
    let pid = Pid::from_raw(pid);
    drop((go_read, failed_write));
    let failed = |e: Error| {
        end(pid);
        e
    };
    let mut t = match Tracee::seize(pid, pid) {
        Ok(Some(t)) => t,
        Ok(None) => return Err(failed(Error::Gone(pid))),
        Err(e) => return Err(failed(e)),
    };
    t.trace_exec().map_err(failed)?;
    // SAFETY: the call reads one byte of a live array.
    unsafe { libc::write(go_write.as_raw_fd(), [1u8].as_ptr().cast(), 1) };
    let deadline = Instant::now() + PATIENCE;
    loop {
        match t.wait(deadline).map_err(failed)? {
            Some(Stop::Other) => break, // the exec
            Some(Stop::Signal(s)) => t.resume(libc::PTRACE_CONT, s)?,
            Some(_) => t.resume(libc::PTRACE_CONT, 0)?,
            None => {
                let mut errno = 0i32;
                // SAFETY: the call writes at most four bytes, to an integer of four.
                unsafe { libc::read(failed_read.as_raw_fd(), (&raw mut errno).cast(), 4) };
                return Err(Error::Start { errno: std::io::Error::from_raw_os_error(errno) });
            }
        }
    }
    run_to_start(&mut t).map_err(failed)?;
    // The child stays stopped after the detach, by an ordinary SIGSTOP.
    let _ = kill(pid.into(), Signal::SIGSTOP);
    t.detach();
    Ok(pid)
}

/// Waits until the child is stopped.
pub(crate) fn hold(pid: Pid) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let s = Status::of(pid)?;
        match s.field("State").and_then(|f| f.chars().next()) {
            Some('T') => return Ok(()),
            Some('Z' | 'X') | None => return Err(Error::Gone(pid)),
            _ if Instant::now() >= deadline => {
                return Err(Error::NotStopping { pid, tid: pid, waited: PATIENCE });
            }
            _ => std::thread::sleep(Duration::from_micros(200)),
        }
    }
}

/// Runs a program from its exec to where everything is linked.
pub(crate) fn run_to_start(t: &mut Tracee) -> Result<()> {
    let mem = RemoteMemory::open(t.pid)?;
    let modules = elf::modules(&mem, &maps::of(t.pid)?);
    let linker = modules.iter().find_map(|m| linker_symbols(t.pid, &mem, m));
    let Some((stop_at, debug)) = linker else {
        run_to(t, &mem, entry_point(t.pid, &mem, &modules)?, || true)?;
        let has_libc = |m: &Module| !m.symbols(t.pid, &mem, |n| n == LIBC_START).is_empty();
        return if modules.iter().any(has_libc) { run_to_thread_pointer(t) } else { Ok(()) };
    };
    // glibc links audit libraries first, with lists of their own; the program's list is consistent then, as it is empty.
    let began = Cell::new(!debug.tells_of_additions());
    run_to(t, &mem, stop_at, || match debug.state(&mem) {
        Some(RT_CONSISTENT) => began.get(),
        Some(state) => {
            began.set(began.get() || state == RT_ADD);
            false
        }
        None => true,
    })
}

/// Function of glibc and musl that a program's entry code calls. It sets up the thread pointer first.
const LIBC_START: &str = "__libc_start_main";
/// Number of stops at system calls after which a program has its thread pointer, or none is awaited: libc makes a few
/// before, for the program's own relocations and its memory.
const CALLS_BEFORE: usize = 64;

/// Runs a static program until libc has set up its thread pointer, by which the hook knows threads. libc makes system
/// calls right before and behind that, so the thread is looked at when it enters or leaves one.
fn run_to_thread_pointer(t: &mut Tracee) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    let mut signal = 0;
    for _ in 0..CALLS_BEFORE {
        // A dynamic linker has set it up before.
        if t.regs()?.thread_pointer() != 0 {
            break;
        }
        t.resume(libc::PTRACE_SYSCALL, signal)?;
        signal = match t.wait(deadline)? {
            Some(Stop::Signal(s)) => s,
            Some(_) => 0,
            None => return Err(Error::Gone(t.pid)),
        };
    }
    Ok(())
}

/// Place of the dynamic linker's `r_debug`.
#[derive(Clone, Copy, Debug)]
enum DebugData {
    /// At the address of glibc's symbol `_r_debug`.
    Glibc(RemoteAddr),
    /// At the address of musl's local symbol `debug`.
    At(RemoteAddr),
    /// The target of the pointer at this address, once the linker has relocated itself: musl's `_dl_debug_addr`.
    PointedTo(RemoteAddr),
    /// Unknown.
    Nowhere,
}

impl DebugData {
    fn of(pid: Pid, mem: &RemoteMemory, linker: &Module) -> Self {
        let find = |name| linker.data_symbol(pid, mem, name);
        // Stripping removes musl's `debug`, but not `_dl_debug_addr`, which is exported.
        let places = [
            find("_r_debug").map(Self::Glibc),
            find("debug").map(Self::At),
            find("_dl_debug_addr").map(Self::PointedTo),
        ];
        places.into_iter().flatten().next().unwrap_or(Self::Nowhere)
    }

    /// Returns whether the linker calls `_dl_debug_state` also before it adds the program's modules to the list. musl makes
    /// no other call than that with the complete list in a program without dlopen.
    fn tells_of_additions(self) -> bool {
        matches!(self, Self::Glibc(_))
    }

    /// Returns the state of the linker's list of modules, if it is known.
    fn state(self, mem: &RemoteMemory) -> Option<u32> {
        let at = match self {
            Self::Glibc(at) | Self::At(at) => at,
            Self::PointedTo(at) => RemoteAddr(mem.word(at).ok().filter(|at| *at != 0)?),
            Self::Nowhere => return None,
        };
        let mut state = [0u8; 4];
        // Memory that can't be read is that of no consistent list.
        let read = mem.read(at.plus(R_STATE), &mut state);
        Some(if read.is_ok() { u32::from_ne_bytes(state) } else { u32::MAX })
    }
}

/// Returns the address of the dynamic linker's `_dl_debug_state`, and where its `r_debug` is.
fn linker_symbols(pid: Pid, mem: &RemoteMemory, m: &Module) -> Option<(RemoteAddr, DebugData)> {
    let name = m.file_name();
    // On Debian musl's linker is a link to its libc, so the mapping has the libc's name.
    let is_musl = name.starts_with("libc.musl") || name == "libc.so";
    if !(name.starts_with("ld-") || name.starts_with("ld.so") || is_musl) {
        return None;
    }
    let stop = m.symbols(pid, mem, |n| n == crate::hooked::functions::LOADER).first()?.addr;
    Some((stop, DebugData::of(pid, mem, m)))
}

fn entry_point(pid: Pid, mem: &RemoteMemory, modules: &[Module]) -> Result<RemoteAddr> {
    let first = modules.iter().find(|m| m.path.as_os_str() != "[vdso]");
    first.and_then(|m| m.entry(mem)).ok_or_else(|| Error::Nonsense { pid, what: "its executable has no ELF header any more, so prof can't tell where it begins: was the file replaced meanwhile? Start it again".into() })
}

/// Runs the only thread of a new process until it reaches `at` and `ready` returns true.
fn run_to(
    t: &mut Tracee,
    mem: &RemoteMemory,
    at: RemoteAddr,
    ready: impl Fn() -> bool,
) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        run_to_next(t, mem, at, deadline)?;
        if ready() {
            return Ok(());
        }
        // Leaves the breakpoint's place. Not every kernel can execute a single instruction; but where calls put their
        // return address into a register, the thread can be run to that address, as it is at a function's entry.
        if FullRegs::LINK {
            let regs = FullRegs::from(&t.regs()?);
            let back = RemoteAddr(regs.get(FullRegs::RA).unwrap_or(0));
            run_to_next(t, mem, back, deadline)?;
            continue;
        }
        t.resume(libc::PTRACE_SINGLESTEP, 0)?;
        if t.wait(deadline)?.is_none() {
            return Err(Error::Gone(t.pid));
        }
    }
}

/// Runs the thread until it reaches `at`, by a breakpoint there.
fn run_to_next(
    t: &mut Tracee,
    mem: &RemoteMemory,
    at: RemoteAddr,
    deadline: Instant,
) -> Result<()> {
    let (breakpoint, place) = (breakpoint(at.0), RemoteAddr(code_at(at.0)));
    let mut code = vec![0; breakpoint.len()];
    mem.read(place, &mut code)?;
    mem.write(place, breakpoint)?;
    let mut signal = 0;
    loop {
        t.resume(libc::PTRACE_CONT, signal)?;
        match t.wait(deadline)? {
            Some(Stop::Signal(libc::SIGTRAP)) => break,
            Some(Stop::Signal(s)) => signal = s,
            Some(_) => signal = 0,
            None => return Err(Error::Gone(t.pid)),
        }
    }
    mem.write(place, &code)?;
    let mut regs = t.regs()?;
    regs.set_pc(at.0);
    t.set_regs(&regs)
}
