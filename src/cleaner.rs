//! A process that cleans the target if prof is killed while it attaches.
//!
//! For some microseconds of an attach the target has a descriptor of the ring, and of the hook's library if that is a
//! memfd. If prof is killed at that moment, nobody in the target knows of the descriptor, and a program that counts on the
//! lowest number sees that it is taken. So a second process waits until that is over. It is started right before the target
//! gets the descriptor.

use crate::commands::collect::CleanArgs;
use crate::daemon::{become_daemon, open_descriptors};
use prof_os::Pid;
use prof_os::process::has_ended;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// Time for which a cleaner tries: the target may be stopped, frozen, or held by another prof.
const TRIES: Duration = Duration::from_secs(60);
/// Time that a cleaner waits for a thread of the target to stop.
const STOP: Duration = Duration::from_secs(5);
/// Pause between two tries.
const PAUSE: Duration = Duration::from_millis(20);

/// A cleaner that waits. Dropping it tells it that there is nothing to clean, and waits for its end.
pub(crate) struct Cleaner(Option<Child>);

impl Cleaner {
    /// Starts a cleaner for the target `pid`. An attach does without if no process can be made.
    pub(crate) fn start(pid: Pid) -> Self {
        let mut command = Command::new("/proc/self/exe");
        command.arg0("prof").args(["clean", "--pid", &pid.to_string()]).current_dir("/");
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let open = open_descriptors();
        // SAFETY: between fork and exec `become_daemon` makes only system calls, and does not allocate.
        unsafe { command.pre_exec(move || become_daemon(&[], &open)) };
        let started = command.spawn();
        Self(started.inspect_err(|e| log::info!("no cleaner for process {pid}: {e}")).ok())
    }
}

impl Drop for Cleaner {
    fn drop(&mut self) {
        let Some(mut child) = self.0.take() else { return };
        let told = child.stdin.take().is_some_and(|mut pipe| pipe.write_all(b".").is_ok());
        if !told {
            log::info!("the cleaner has ended before the attach");
        }
        let _ = child.wait();
    }
}

/// `prof clean`: waits until the attach has ended or was killed, and then removes what that has left in the target.
pub(crate) fn run(args: &CleanArgs) -> ExitCode {
    let mut told = [0];
    if std::io::stdin().read(&mut told).is_ok_and(|n| n > 0) {
        return ExitCode::SUCCESS;
    }
    let deadline = Instant::now() + TRIES;
    while let Err(e) = prof_inject::clean(args.pid, STOP) {
        // The kernel may still be letting go of what the killed prof has traced, or another prof has come first.
        log::debug!("{e}");
        if has_ended(args.pid) || Instant::now() >= deadline {
            return ExitCode::FAILURE;
        }
        std::thread::sleep(PAUSE);
    }
    ExitCode::SUCCESS
}
