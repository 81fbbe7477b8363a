//! The harness of the end-to-end tests: a scratch folder per test, `prof` run with a deadline, test programs compiled
//! once, and target processes that are always killed and reaped.
//!
//! It is a crate, as each of the many test binaries would otherwise compile it anew.

pub mod build;
pub mod disk;
pub mod family;
pub mod heap;
pub mod hprof;
pub mod killer;
pub mod library;
pub mod report;
pub mod snapshot;
pub mod target;

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{LazyLock, mpsc};
use std::time::{Duration, Instant};

pub use report::Report;
pub use target::Target;

/// Time that any single step may take before it counts as hung. Other architectures are mostly emulated. Where the
/// kernel gives each session the same share of the processors, a prof beside dozens of busy threads of its own session
/// may take a minute to begin.
pub const DEADLINE: Duration = Duration::from_secs(300);

/// Name of the entry function in a program's start files.
pub const START: &str = if cfg!(target_arch = "mips64") { "__start" } else { "_start" };

/// Reports that a test can't run here; a failure if the caller insists on every test.
pub fn skip(test: &str, reason: &str) {
    assert!(
        std::env::var_os("PROF_TESTS_NO_SKIP").is_none(),
        "{test} can't run here ({reason}), and PROF_TESTS_NO_SKIP is set"
    );
    eprintln!("skipped: {test}: {reason}");
}

/// Returns whether a command of this name is on the PATH, and supports what the tests need.
pub fn installed(command: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|d| d.join(command)).find(|p| p.is_file());
    // busybox's version lacks most of the options of util-linux's.
    let is_busybox = |p: PathBuf| p.canonicalize().is_ok_and(|p| p.ends_with("busybox"));
    found.is_some_and(|p| command != "setpriv" || !is_busybox(p))
}

/// The result of a finished command.
#[derive(Debug)]
pub struct Output {
    /// Exit code; a signal is 128 + its number, as in a shell.
    pub code: i32,
    /// Text that the command wrote to its standard output.
    pub stdout: String,
    /// Text that the command wrote to its standard error.
    pub stderr: String,
    /// Time from its start to its end.
    pub took: Duration,
}

impl Output {
    /// Panics with all details unless the exit code is 0.
    #[track_caller]
    pub fn ok(self, what: &str) -> Self {
        assert!(self.code == 0, "{what} failed: {self:#?}");
        self
    }
}

/// A scratch folder, removed at the end unless the test fails.
pub struct Scene {
    /// Path of the folder.
    pub dir: PathBuf,
    keep: bool,
}

impl Scene {
    /// Records `holds.cpp`, whose holders are known, with two scans, the first of the name `first`. Returns the path of the
    /// recording, and the process that it is of.
    pub fn with_two_scans(&self) -> (String, i32) {
        let program = build::program_with("holds.cpp", &["-O1", "-pthread"]);
        let mut target = Target::start(&program, &[]);
        let pid = target.pid.to_string();
        let path = self.attach(&target);
        target.ask("begin");
        self.prof(&["holds", &pid, "--save=first"]).ok("--save");
        target.ask("more");
        self.prof(&["holds", &pid, "--save"]).ok("--save");
        target.ask("end");
        self.detach(&target);
        let pid = target.pid;
        target.quit();
        (path.to_str().expect("a path").to_owned(), pid)
    }
}

impl Scene {
    /// Makes a folder of the test's own.
    pub fn new(name: &str) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let n = NUMBER.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("prof-test-{name}-{}-{n}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("scratch folder");
        Self { dir, keep: false }
    }

    /// Returns the path of a file in the folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Returns the binary under test.
    pub fn binary() -> &'static Path {
        static BINARY: LazyLock<PathBuf> = LazyLock::new(find_binary);
        &BINARY
    }

    /// Returns a command that runs prof in the scratch folder, with these arguments alone.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut c = Command::new(Self::binary());
        c.args(args).current_dir(&self.dir);
        c
    }

    /// Runs `prof` in the scratch folder.
    #[track_caller]
    pub fn prof<S: AsRef<str>>(&self, args: &[S]) -> Output {
        let args: Vec<_> = args.iter().map(AsRef::as_ref).collect();
        let mut c = Command::new(Self::binary());
        let (command, rest) = args.split_at(args.len().min(1));
        c.args(command).args(way(&args)).args(rest);
        // A thread may take long to stop on a slow machine that shares its processor, or while it waits for a page from
        // a busy disk.
        let stops = matches!(args.first(), Some(&("attach" | "detach")));
        if stops && !args.contains(&"--timeout") {
            c.args(["--timeout", if cfg!(target_arch = "x86_64") { "20s" } else { "60s" }]);
        }
        // Tests that want the look ask for it: others can't spare a second.
        if args.first() == Some(&"attach") && !args.contains(&"--look") {
            c.args(["--look", "0s"]);
        }
        self.run(c)
    }

    /// Runs a command in the scratch folder to its end, without input and with a deadline.
    #[track_caller]
    pub fn run(&self, mut command: Command) -> Output {
        command.current_dir(&self.dir).stdin(Stdio::null());
        run(command)
    }

    /// Runs `prof attach`, which must print the recording's path alone on one line; returns the path.
    #[track_caller]
    pub fn attach(&self, target: &Target) -> PathBuf {
        self.attach_with(target, &[])
    }

    /// Runs `prof attach` with options.
    #[track_caller]
    pub fn attach_with(&self, target: &Target, options: &[&str]) -> PathBuf {
        let pid = target.pid.to_string();
        let mut args = vec!["attach", &pid];
        args.extend_from_slice(options);
        let out = self.prof(&args).ok("prof attach");
        self.one_path(&out)
    }

    /// Runs `prof detach`, which must leave nothing behind and print the recording's path; returns the path.
    #[track_caller]
    pub fn detach(&self, target: &Target) -> PathBuf {
        let out = self.prof(&["detach", &target.pid.to_string()]).ok("prof detach");
        self.one_path(&out)
    }

    #[track_caller]
    fn one_path(&self, out: &Output) -> PathBuf {
        let lines: Vec<_> = out.stdout.lines().collect();
        assert!(lines.len() == 1, "stdout is not one line: {out:#?}");
        let path = self.dir.join(lines[0]);
        assert!(path.is_file(), "no recording at {}: {out:#?}", path.display());
        path
    }

    /// Returns `prof report --format json` of a recording.
    #[track_caller]
    pub fn report(&self, recording: &Path) -> Report {
        self.report_with(recording, &[])
    }

    /// Returns `prof report --format json` of a recording, with options.
    #[track_caller]
    pub fn report_with(&self, recording: &Path, options: &[&str]) -> Report {
        let mut args = vec!["report", recording.to_str().expect("UTF-8"), "--format", "json"];
        if !options.contains(&"--top") {
            args.extend_from_slice(&["--top", "1000000"]);
        }
        args.extend_from_slice(options);
        Report::parse(&self.prof(&args).ok("prof report").stdout)
    }

    /// Waits until no process writes the recording any more, and returns its report.
    #[track_caller]
    pub fn finished(&self, recording: &Path) -> Report {
        let report = self.ended(recording);
        assert!(report.bool("/recording/complete"), "a finished recording is not complete");
        report
    }

    /// Returns the report of a recording that has an end, though something of it may be lost.
    #[track_caller]
    pub fn ended(&self, recording: &Path) -> Report {
        until("the collector lets go of the recording", || writers(recording).is_empty());
        let report = self.report(recording);
        assert!(report.at("/recording/end_reason").is_string(), "{:#}", report.brief());
        report
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        if self.keep || std::thread::panicking() {
            eprintln!("kept for inspection: {}", self.dir.display());
        } else {
            let _ = std::fs::remove_dir_all(&self.dir);
        }
    }
}

/// Returns the path of the binary under test. Cargo names it in the environment, as tests/vm/init does in a machine. Older
/// versions of cargo do not: there it lies in the folder above the test's, where cargo has built it for the tests.
fn find_binary() -> PathBuf {
    if let Some(named) = std::env::var_os("CARGO_BIN_EXE_prof") {
        return named.into();
    }
    let test = std::env::current_exe().expect("the path of the test");
    let folder = test.ancestors().nth(2).expect("a folder above the test's");
    let binary = folder.join("prof");
    assert!(binary.is_file(), "there is no {}: cargo has not built it", binary.display());
    binary
}

/// Returns the arguments that have `prof attach` and `prof run` get their hook into the target as `PROF_TESTS_BY` says, unless
/// `args` say so themselves, or are another command's. Those of `prof run` come in front of its command.
pub fn way(args: &[&str]) -> Vec<String> {
    let asked = std::env::var("PROF_TESTS_BY").ok();
    let free = matches!(args.first(), Some(&"attach" | &"run"))
        && !args.iter().any(|a| a.starts_with("--by"));
    asked.filter(|_| free).map_or(Vec::new(), |by| vec![format!("--by={by}")])
}

/// Why figures of a heap by dlopen are others than without prof.
pub const LINKERS_BLOCKS: &str = "the dynamic linker's own blocks are in the heap until the detach";

/// Returns whether a test is to be skipped because `PROF_TESTS_BY` asks for dlopen, and says so with the reason `why` prof
/// refuses that there, or figures differ.
pub fn is_refused_by_dlopen(what: &str, why: &str) -> bool {
    let by_dlopen = is_by_dlopen();
    if by_dlopen {
        // No machine could run it, so `PROF_TESTS_NO_SKIP` does not forbid this.
        eprintln!("skipped: {what}: {why}");
    }
    by_dlopen
}

/// Returns whether `PROF_TESTS_BY` asks for dlopen.
pub fn is_by_dlopen() -> bool {
    std::env::var("PROF_TESTS_BY").is_ok_and(|by| by == "dlopen")
}

/// Polls a condition; fails if it does not come true within the deadline.
#[track_caller]
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < DEADLINE, "waited {DEADLINE:?} in vain until {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns the processes that have this file open.
pub fn writers(file: &Path) -> Vec<i32> {
    let file = file.canonicalize().unwrap_or_else(|_| file.into());
    let pids = numbers_in(Path::new("/proc"));
    let has_open = |pid: &i32| {
        let fds = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        fds.filter_map(|f| std::fs::read_link(f.path()).ok()).any(|link| link == file)
    };
    pids.into_iter().filter(has_open).collect()
}

/// Returns the entries of a folder of /proc whose names are numbers, sorted.
pub fn numbers_in(dir: &Path) -> Vec<i32> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut all: Vec<i32> =
        entries.filter_map(|e| e.file_name().to_str().and_then(|n| n.parse().ok())).collect();
    all.sort_unstable();
    all
}

fn collect(mut from: impl Read + Send + 'static) -> mpsc::Receiver<Vec<u8>> {
    let (tx, rx) = mpsc::channel();
    std::thread::spawn(move || {
        let mut all = Vec::new();
        let _ = from.read_to_end(&mut all);
        let _ = tx.send(all);
    });
    rx
}

/// Runs a command to its end. Its output must end with the process: a process left behind must not hold the pipe open.
#[track_caller]
pub fn run(mut command: Command) -> Output {
    let start = Instant::now();
    let what = format!("{command:?}");
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap_or_else(|e| panic!("{what}: {e}"));
    let out = collect(child.stdout.take().expect("piped"));
    let err = collect(child.stderr.take().expect("piped"));
    let code = wait(&mut child, DEADLINE);
    let took = start.elapsed();
    let text = |rx: mpsc::Receiver<Vec<u8>>, name| {
        let bytes = rx.recv_timeout(DEADLINE / 12).unwrap_or_else(|_| {
            panic!("{what}: a process that was left behind holds on to {name}")
        });
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let stdout = text(out, "stdout");
    let stderr = text(err, "stderr");
    let code = code.unwrap_or_else(|| panic!("{what} hangs; so far:\n{stdout}\n{stderr}"));
    Output { code, stdout, stderr, took }
}

/// Returns the exit code of a child, or `None` if it had to be killed.
pub fn wait(child: &mut Child, limit: Duration) -> Option<i32> {
    use std::os::unix::process::ExitStatusExt;
    let start = Instant::now();
    loop {
        if let Some(s) = child.try_wait().expect("wait") {
            return Some(s.code().unwrap_or_else(|| 128 + s.signal().unwrap_or(0)));
        }
        if start.elapsed() > limit {
            let _ = child.kill();
            let _ = child.wait();
            return None;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}
