//! A process to attach to. It exchanges lines over its stdin and stdout, so that a test knows exactly what it has done,
//! and it never outlives its test.

use super::{DEADLINE, wait};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// A process that a test has started; it is killed at the end.
pub struct Target {
    /// The target's process ID.
    pub pid: i32,
    name: String,
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    ended: bool,
}

impl Target {
    /// Starts a test program and waits until it is ready.
    #[track_caller]
    pub fn start(program: &Path, args: &[&str]) -> Self {
        let mut command = Command::new(program);
        command.args(args);
        let mut target = Self::spawn(command);
        target.expect("ready");
        target
    }

    /// Starts a command.
    #[track_caller]
    pub fn spawn(mut command: Command) -> Self {
        let name = format!("{command:?}");
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = begin(&mut command).unwrap_or_else(|e| panic!("{name}: {e}"));
        let out = BufReader::new(child.stdout.take().expect("piped"));
        let (tx, lines) = channel();
        std::thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                if tx.send(line).is_err() {
                    break;
                }
            }
        });
        let stdin = child.stdin.take();
        Self { pid: child.id().cast_signed(), name, child, stdin, lines, ended: false }
    }

    /// Returns the next line of its output.
    #[track_caller]
    pub fn line(&mut self) -> String {
        match self.lines.recv_timeout(DEADLINE) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => {
                panic!("{} said nothing for {DEADLINE:?}; {}", self.name, self.state())
            }
            Err(RecvTimeoutError::Disconnected) => {
                let code = wait(&mut self.child, DEADLINE);
                self.ended = true;
                panic!("{} ended: {code:?} (128 + N: by signal N)", self.name)
            }
        }
    }

    /// Returns the next line that is already there or arrives within the time.
    pub fn line_within(&mut self, limit: Duration) -> Option<String> {
        self.lines.recv_timeout(limit).ok()
    }

    /// Reads lines until one begins with `word`; any line with FAILED is a failure.
    #[track_caller]
    pub fn expect(&mut self, word: &str) -> String {
        loop {
            let line = self.line();
            assert!(!line.contains("FAILED"), "{}: {line}", self.name);
            if line.starts_with(word) {
                return line;
            }
        }
    }

    /// Sends a command without waiting for its answer.
    #[track_caller]
    pub fn send(&mut self, command: &str) {
        let stdin = self.stdin.as_mut().expect("stdin was closed before");
        let sent = stdin.write_all(format!("{command}\n").as_bytes());
        sent.unwrap_or_else(|e| panic!("{} takes no commands: {e}", self.name));
    }

    /// Sends a command and returns the line that says it is done.
    #[track_caller]
    pub fn ask(&mut self, command: &str) -> String {
        self.send(command);
        self.expect("done")
    }

    /// Returns the blocks that tests/programs/variety.c says it has: addresses and usable sizes.
    #[track_caller]
    pub fn listed(&mut self) -> HashMap<u64, u64> {
        self.send("list");
        let mut all = HashMap::new();
        loop {
            let line = self.line();
            let words: Vec<&str> = line.split_whitespace().collect();
            match words[..] {
                ["block", at, size] => {
                    let at = u64::from_str_radix(at, 16).expect("an address");
                    let size = size.parse().expect("a size");
                    assert_eq!(all.insert(at, size), None, "{line}");
                }
                ["done"] => return all,
                _ => panic!("{line}"),
            }
        }
    }

    /// Sends a signal.
    #[track_caller]
    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid), signal).unwrap_or_else(|e| panic!("{}: {e}", self.name));
    }

    /// Returns whether the process has a descriptor of prof's ring.
    pub fn has_ring(&self) -> bool {
        self.has_memfd("prof-ring")
    }

    /// Returns whether the process has a descriptor of a memfd whose name begins so.
    pub fn has_memfd(&self, name: &str) -> bool {
        let dir = std::fs::read_dir(format!("/proc/{}/fd", self.pid)).expect("the descriptors");
        let links = dir.flatten().filter_map(|e| std::fs::read_link(e.path()).ok());
        let begin = format!("/memfd:{name}");
        links.into_iter().any(|link| link.to_string_lossy().starts_with(&begin))
    }

    /// Ends the program as it is meant to end, which must work.
    #[track_caller]
    pub fn quit(&mut self) {
        self.send("quit");
        self.expect("bye");
        let code = wait(&mut self.child, DEADLINE);
        self.ended = true;
        assert_eq!(code, Some(0), "{} did not end well", self.name);
    }

    /// Waits for its end; returns the exit code, or 128 + signal.
    #[track_caller]
    pub fn wait(&mut self) -> i32 {
        self.stdin = None;
        let code = wait(&mut self.child, DEADLINE);
        self.ended = true;
        code.unwrap_or_else(|| panic!("{} does not end", self.name))
    }

    /// Kills it by SIGKILL, and waits for its end.
    pub fn kill(&mut self) {
        if !self.ended {
            let _ = self.child.kill();
            let _ = self.child.wait();
            self.ended = true;
        }
    }

    /// Returns the contents of a file in its /proc folder.
    #[track_caller]
    pub fn proc(&self, file: &str) -> String {
        let path = format!("/proc/{}/{file}", self.pid);
        let bytes = std::fs::read(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Returns a field of /proc/PID/status.
    #[track_caller]
    pub fn status(&self, field: &str) -> String {
        let status = self.proc("status");
        let line = status.lines().find(|l| l.split(':').next() == Some(field));
        let value = line.and_then(|l| l.split_once(':')).map(|(_, v)| v.trim().to_owned());
        value.unwrap_or_else(|| panic!("no {field} in status"))
    }

    /// Returns whether it still runs or is stopped, and is not a zombie.
    pub fn alive(&mut self) -> bool {
        !self.ended && matches!(self.child.try_wait(), Ok(None))
    }

    fn state(&self) -> String {
        let tasks = super::numbers_in(Path::new(&format!("/proc/{}/task", self.pid)));
        let of = |tid: &i32| {
            let file = |name: &str| {
                let path = format!("/proc/{}/task/{tid}/{name}", self.pid);
                std::fs::read_to_string(path).unwrap_or_default().trim().to_owned()
            };
            let state = file("status");
            let state = state.lines().find(|l| l.starts_with("State")).unwrap_or("").to_owned();
            format!("thread {tid}: {state}, in {}, syscall {}", file("wchan"), file("syscall"))
        };
        tasks.iter().take(20).map(of).collect::<Vec<_>>().join("\n")
    }

    /// Opens its memory for reading.
    #[track_caller]
    pub fn memory(&self) -> File {
        File::open(format!("/proc/{}/mem", self.pid)).expect("memory of the target")
    }
}

/// Starts a command. A program that the test has just written can't be started while a child that another test has
/// forked has its file open.
fn begin(command: &mut Command) -> std::io::Result<Child> {
    let deadline = Instant::now() + DEADLINE;
    loop {
        match command.spawn() {
            Err(e) if e.kind() == ErrorKind::ExecutableFileBusy && Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(10));
            }
            result => return result,
        }
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        self.kill();
    }
}
