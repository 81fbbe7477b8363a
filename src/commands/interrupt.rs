//! Ctrl-C while a script runs: it ends the script, and if that does not do, the process.

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, raise, sigaction};
use prof_analyze::Job;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Number of times that Ctrl-C was pressed.
static PRESSED: AtomicU32 = AtomicU32::new(0);

extern "C" fn interrupt(_: i32) {
    PRESSED.fetch_add(1, Ordering::Relaxed);
}

/// The consequence if a script does not end at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Otherwise {
    /// The process ends: it has nothing else to do.
    End,
    /// The process ends if Ctrl-C is pressed again after a second.
    EndAtNext,
}

/// Time that a script has to end by itself.
const PATIENCE: Duration = Duration::from_millis(100);

/// Cancels a job at Ctrl-C, for as long as it is there.
pub(super) struct OnInterrupt {
    before: Option<SigAction>,
    done: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl OnInterrupt {
    pub(super) fn new(job: Job, otherwise: Otherwise) -> Self {
        PRESSED.store(0, Ordering::Relaxed);
        let action =
            SigAction::new(SigHandler::Handler(interrupt), SaFlags::SA_RESTART, SigSet::empty());
        // SAFETY: the handler adds to an atomic, which any signal handler may.
        let before = unsafe { sigaction(Signal::SIGINT, &action) }.ok();
        if let Some(ignored) = before.filter(|b| matches!(b.handler(), SigHandler::SigIgn)) {
            // SIGINT stays ignored, as nohup and shells set it for processes in the background.
            // SAFETY: the action is the one that was in effect before.
            let _ = unsafe { sigaction(Signal::SIGINT, &ignored) };
            return Self { before: None, done: None, thread: None };
        }
        let (done, ended) = channel::<()>();
        let watch = move || {
            let mut first = None;
            while ended.recv_timeout(Duration::from_millis(10)) == Err(RecvTimeoutError::Timeout) {
                let pressed = PRESSED.load(Ordering::Relaxed);
                if pressed == 0 {
                    continue;
                }
                job.cancel();
                let since = first.get_or_insert_with(Instant::now).elapsed();
                let late = match otherwise {
                    Otherwise::End => since >= PATIENCE,
                    Otherwise::EndAtNext => pressed > 1 && since >= Duration::from_secs(1),
                };
                if late {
                    prof_script::remove_part();
                    crate::term::say("the script was stopped");
                    end();
                }
            }
        };
        let thread = std::thread::Builder::new().name("interrupt".into()).spawn(watch).ok();
        Self { before, done: Some(done), thread }
    }

    /// Returns whether Ctrl-C was pressed.
    pub(super) fn was_pressed(&self) -> bool {
        self.thread.is_some() && PRESSED.load(Ordering::Relaxed) > 0
    }
}

impl Drop for OnInterrupt {
    fn drop(&mut self) {
        drop(self.done.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        if let Some(before) = &self.before {
            // SAFETY: the action is the one that was in effect before.
            let _ = unsafe { sigaction(Signal::SIGINT, before) };
        }
    }
}

/// Ends the process by SIGINT, so that the shell's own loops and scripts end as well.
pub(super) fn end() {
    let action = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
    // SAFETY: the default action runs no code of this process.
    let _ = unsafe { sigaction(Signal::SIGINT, &action) };
    let _ = raise(Signal::SIGINT);
}
