//! Finds out which process becomes the collector's parent when the prof that started it ends: the nearest ancestor that
//! adopts orphans, or the first process of its PID namespace. That may be the recorded process itself.

use nix::sys::signal::{Signal, kill};
use prof_os::Pid;
use prof_os::process::is_running;
use prof_os::status::Status;
use std::ffi::CStr;
use std::time::{Duration, Instant};

/// Longest wait for the target's threads to stop, so that the collector can be ended.
const END: Duration = Duration::from_secs(5);

/// Greatest number of ancestors that are examined.
const MOST: usize = 256;

fn parent(pid: Pid) -> Option<Pid> {
    Status::of(pid).ok()?.pid("PPid")
}

fn pid_namespace(pid: &str) -> Option<std::path::PathBuf> {
    std::fs::read_link(format!("/proc/{pid}/ns/pid")).ok()
}

/// Returns a message if the target may become the collector's parent.
pub(crate) fn adopted_by(pid: Pid) -> Option<String> {
    let why = if is_first_of_ours(pid) {
        format!("process {pid} is the first of its container")
    } else if descends_from(pid) {
        format!(
            "prof was started below process {pid}, which may adopt orphans (PR_SET_CHILD_SUBREAPER)"
        )
    } else {
        return None;
    };
    Some(format!(
        "{why}: prof's collector is a child of it while it is recorded; `prof detach {pid}` takes that away unnoticed, \
         but if the recording ends by itself, it gets SIGCHLD for a child that it did not make (`--foreground` avoids both)"
    ))
}

/// Returns whether the process is the first of this process's PID namespace.
fn is_first_of_ours(pid: Pid) -> bool {
    let ours = pid_namespace("self");
    ours.is_some()
        && ours == pid_namespace(&pid.to_string())
        && Status::of(pid).is_ok_and(|s| s.ns_pid() == Some(Pid::from_raw(1)))
}

fn descends_from(pid: Pid) -> bool {
    let mut at = Pid::this();
    for _ in 0..MOST {
        match parent(at) {
            Some(p) if p == pid => return true,
            Some(p) if p != Pid::NONE => at = p,
            _ => return false,
        }
    }
    false
}

/// Process name of a collector that has nothing left to do.
const DONE: &CStr = c"prof: done";
/// Time that it then waits for the process that has detached.
const WAITS: Duration = Duration::from_secs(10);

/// Waits for the end, in a collector whose parent is its target, after another process has detached: that process ends
/// the collector such that the target does not notice.
pub(crate) fn wait_for_the_end(target: Pid) {
    let is_child = || Pid::from_u32(std::os::unix::process::parent_id()) == target;
    if !is_child() {
        return;
    }
    // SAFETY: the kernel only reads the name, and the other argument is an integer.
    unsafe {
        libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY);
        libc::prctl(libc::PR_SET_NAME, DONE.as_ptr());
    }
    let began = Instant::now();
    while is_child() && began.elapsed() < WAITS {
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Returns whether a collector has finished its work, and waits for its end.
pub(crate) fn is_done(collector: Pid) -> bool {
    let name = std::fs::read(format!("/proc/{collector}/comm")).unwrap_or_default();
    name.strip_suffix(b"\n") == Some(DONE.to_bytes())
}

/// Ends a collector that has finished its work; returns a message if the target has to notice that.
pub(crate) fn end(pid: Pid, (collector, start): (Pid, u64)) -> Option<String> {
    if is_done(collector) && is_running(collector, start) {
        if let Err(e) = prof_inject::parting::dismiss(pid, (collector, start), END) {
            log::info!("{e}");
        }
        let began = Instant::now();
        while is_running(collector, start) && began.elapsed() < WAITS {
            let _ = kill(collector.into(), Signal::SIGKILL);
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    let status = Status::of(collector).ok()?;
    (status.is_dead() && status.pid("PPid") == Some(pid)).then(|| {
        format!(
            "prof's collector, process {collector}, has ended as a child of process {pid}, which it remains until \
             that waits for its children"
        )
    })
}
