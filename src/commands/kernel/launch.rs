//! Starts a command that waits until it is recorded.

use anyhow::{Context, Result};
use prof_os::Pid;
use std::io::{PipeReader, PipeWriter, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitCode};
use std::thread::JoinHandle;

/// A command that was started.
#[derive(Debug)]
pub(super) struct Launched {
    pid: Pid,
    go: Option<PipeWriter>,
    starting: Option<JoinHandle<std::io::Result<Child>>>,
    child: Option<Child>,
    command: String,
}

/// Starts a shell with the command, which waits for [`Launched::go`].
///
/// # Errors
/// If it can't be started.
pub(super) fn start(command: &str) -> Result<Launched> {
    let (mut told, tell) = std::io::pipe().context("no pipe")?;
    let (wait, go) = std::io::pipe().context("no pipe")?;
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", command]);
    let (mut tell, mut wait): (PipeWriter, PipeReader) = (tell, wait);
    let ours = go.as_raw_fd();
    let hold = move || {
        // With its copy of this end, the child would wait for ever if prof ended.
        // SAFETY: the child does not use the descriptor, and drops no value that owns it.
        unsafe { libc::close(ours) };
        tell.write_all(&std::process::id().to_ne_bytes())?;
        // The end of prof ends the wait, too, and then nothing is run.
        wait.read_exact(&mut [0])
    };
    // SAFETY: between fork and exec it makes only system calls, and does not allocate.
    unsafe { shell.pre_exec(hold) };
    // Starting returns only when the shell runs. The pipes' ends in this process are closed with the closure.
    let starting = std::thread::spawn(move || shell.spawn());
    let mut pid = [0; 4];
    told.read_exact(&mut pid).with_context(|| format!("cannot start {command:?}"))?;
    let (pid, command) = (Pid::from_u32(u32::from_ne_bytes(pid)), command.to_owned());
    Ok(Launched { pid, go: Some(go), starting: Some(starting), child: None, command })
}

impl Launched {
    /// Returns the process ID.
    pub(super) fn pid(&self) -> Pid {
        self.pid
    }

    /// Lets the command run.
    ///
    /// # Errors
    /// If it can't be started.
    pub(super) fn go(&mut self) -> Result<()> {
        let cannot = || format!("cannot start {:?}", self.command);
        if let Some(mut go) = self.go.take() {
            go.write_all(&[1]).with_context(cannot)?;
        }
        if let Some(starting) = self.starting.take() {
            let child = starting.join().map_err(|_| anyhow::anyhow!(cannot()))?;
            self.child = Some(child.with_context(cannot)?);
        }
        Ok(())
    }

    /// Returns the command's exit code if it has ended.
    ///
    /// # Errors
    /// If that can't be found out.
    pub(super) fn ended(&mut self) -> Result<Option<ExitCode>> {
        let Some(child) = &mut self.child else { return Ok(None) };
        let status = child.try_wait().context("cannot wait for the command")?;
        Ok(status.map(|s| {
            let signal = s.signal().map_or(1, |n| 128 + n);
            ExitCode::from(s.code().unwrap_or(signal) as u8)
        }))
    }
}

impl Drop for Launched {
    /// Ends a command that never ran, and collects it.
    fn drop(&mut self) {
        drop(self.go.take());
        if let Some(starting) = self.starting.take() {
            let _ = starting.join();
        }
    }
}
