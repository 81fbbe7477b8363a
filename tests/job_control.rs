//! Job control: prof stops after it has released the target, and the collector belongs to no job.

use common::build::program;
use common::{Scene, Target, until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Returns the state of a process or thread from `/proc`; `-` if it does not exist.
fn state(task: &str) -> char {
    let stat = std::fs::read_to_string(format!("/proc/{task}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").and_then(|(_, s)| s.chars().next()).unwrap_or('-')
}

/// Returns whether a tracer holds a thread of a process.
fn is_held(pid: i32) -> bool {
    let tasks = common::numbers_in(Path::new(&format!("/proc/{pid}/task")));
    tasks.iter().any(|t| state(&format!("{pid}/task/{t}")) == 't')
}

/// Sends a signal when the target is held; returns false if prof ended before that.
fn signal_while_held(prof: &mut Child, target: i32, signal: Signal) -> bool {
    while prof.try_wait().expect("wait").is_none() {
        if state(&target.to_string()) == 't' {
            kill(Pid::from_raw(prof.id().cast_signed()), signal).expect("the signal");
            return true;
        }
    }
    false
}

#[test]
fn a_prof_that_job_control_stops_holds_nothing() {
    let scene = Scene::new("job-control");
    let mut target = Target::start(&program("crowd.c"), &[]);
    // Many threads, each of which takes time to stop.
    target.ask("go 100");
    let pid = target.pid.to_string();
    let signals = [Signal::SIGTSTP, Signal::SIGTTIN, Signal::SIGTTOU];
    let (mut hits, mut stops) = (0, 0);
    for cycle in 0..20 {
        let file = format!("{cycle}.prof");
        for args in [&["attach", "-o", &file, &pid][..], &["detach", &pid]] {
            let mut command = Command::new(Scene::binary());
            // Job control does not stop orphaned process groups.
            command.args(args).current_dir(&scene.dir).process_group(0);
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            let mut prof = command.spawn().expect("prof");
            let task = prof.id().to_string();
            if signal_while_held(&mut prof, target.pid, signals[hits % 3]) {
                hits += 1;
                until("prof has stopped or ended", || matches!(state(&task), 'T' | 'Z'));
                if state(&task) == 'T' {
                    stops += 1;
                    let held = is_held(target.pid);
                    // Otherwise the target could not be ended.
                    kill(Pid::from_raw(prof.id().cast_signed()), Signal::SIGCONT).expect("CONT");
                    assert!(!held, "stopped with the target in its hands: {args:?}");
                }
            }
            assert_eq!(common::wait(&mut prof, common::DEADLINE), Some(0), "{args:?}");
        }
        if hits >= 4 && stops >= 2 {
            break;
        }
    }
    assert!(stops > 0, "never stopped while the target was held, in {hits} tries");
    target.ask("end");
    target.quit();
}

/// A process that is stopped until this is dropped, also by a test that fails.
struct Stopped(Pid);

impl Stopped {
    fn new(pid: i32) -> Self {
        let pid = Pid::from_raw(pid);
        kill(pid, Signal::SIGSTOP).expect("stop");
        Self(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = kill(self.0, Signal::SIGCONT);
    }
}

/// Returns the process group and the session of a process.
fn group_and_session(pid: i32) -> (i32, i32) {
    let pid = Some(Pid::from_raw(pid));
    let group = nix::unistd::getpgid(pid).expect("a group").as_raw();
    (group, nix::unistd::getsid(pid).expect("a session").as_raw())
}

#[test]
fn the_collector_leaves_the_job_at_once_and_the_session_when_it_is_behind() {
    let scene = Scene::new("session");
    let mut target = Target::start(&program("toggle.c"), &[]);
    let recording = scene.attach(&target);
    let &[collector] = &common::writers(&recording)[..] else { panic!("one collector") };
    let (own_group, own_session) = group_and_session(std::process::id().cast_signed());
    let (group, session) = group_and_session(collector);
    assert_eq!(session, own_session, "a share of its own would be one that some kernels starve");
    assert_ne!(group, own_group, "Ctrl-C would reach it");
    assert_ne!(group, collector, "a leader can't leave its session");
    target.ask("alloc 100");
    target.ask("free 100");
    assert_eq!(group_and_session(collector), (group, session));
    {
        let _stopped = Stopped::new(collector);
        for _ in 0..5 {
            target.ask("alloc 60000");
            target.ask("free 60000");
        }
    }
    until("the collector has a session", || group_and_session(collector) == (collector, collector));
    scene.detach(&target);
    assert_eq!(scene.finished(&recording).total("allocations"), 300_100);
    target.quit();
}
