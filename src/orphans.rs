//! Whose child the collector becomes when the prof that has started it ends: that of the nearest ancestor which
//! adopts orphans, or of the first process of its pid namespace. That may be the very process that is recorded.

use prof_inject::proc::Status;

/// More ancestors are not looked at.
const MOST: usize = 256;

fn parent(pid: i32) -> Option<i32> {
    i32::try_from(Status::of(pid).ok()?.number("PPid")?).ok()
}

fn pid_namespace(pid: &str) -> Option<std::path::PathBuf> {
    std::fs::read_link(format!("/proc/{pid}/ns/pid")).ok()
}

/// What to say where the target is to become the collector's parent.
pub fn adopted_by(pid: i32) -> Option<String> {
    let inside =
        pid_namespace("self").is_some_and(|ns| Some(ns) == pid_namespace(&pid.to_string()));
    if inside && Status::of(pid).ok()?.ns_pid() == Some(1) {
        return Some(format!(
            "process {pid} is the first of its container: prof's collector becomes its child, and when that ends, it \
             gets SIGCHLD and has one more child to wait for; run prof from outside of the container to avoid that"
        ));
    }
    let mut at = std::process::id() as i32;
    for _ in 0..MOST {
        at = parent(at).filter(|p| *p > 0)?;
        if at == pid {
            return Some(format!(
                "prof was started below process {pid}: if that adopts orphans (PR_SET_CHILD_SUBREAPER), prof's \
                 collector becomes its child, and when that ends, it gets SIGCHLD and has one more child to wait for"
            ));
        }
    }
    None
}

/// The same of a collector that has ended.
pub fn left_to(pid: i32, collector: u32) -> Option<String> {
    let status = Status::of(collector as i32).ok()?;
    let is_dead = status.field("State")?.starts_with('Z');
    (is_dead && status.number("PPid") == Some(i64::from(pid))).then(|| {
        format!(
            "prof's collector, process {collector}, has ended as a child of process {pid}, which it remains until \
             that waits for its children"
        )
    })
}
