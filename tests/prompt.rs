//! The prompt of `prof script` on a terminal, and Ctrl-C.

use common::build::program;
use common::{DEADLINE, Scene, until, wait};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

/// A terminal with a process on it.
struct Terminal {
    child: Child,
    keys: File,
    shown: Arc<Mutex<Vec<u8>>>,
}

/// Makes a terminal of 80 columns; returns its two ends: the user's and the program's.
fn terminal() -> (OwnedFd, OwnedFd) {
    let (mut user, mut program) = (-1, -1);
    let size = libc::winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
    let none = std::ptr::null_mut();
    // SAFETY: both descriptors are places for results, the name and the modes are not wanted, the size is a valid one.
    let made = unsafe {
        libc::openpty(
            &mut user,
            &mut program,
            none,
            std::ptr::null_mut(),
            (&raw const size).cast_mut(),
        )
    };
    assert_eq!(made, 0, "openpty: {}", std::io::Error::last_os_error());
    // SAFETY: both descriptors are new, and nothing else owns them.
    unsafe {
        libc::fcntl(user, libc::F_SETFD, libc::FD_CLOEXEC);
        (OwnedFd::from_raw_fd(user), OwnedFd::from_raw_fd(program))
    }
}

impl Terminal {
    fn start(scene: &Scene, args: &[&str]) -> Self {
        let (user, program) = terminal();
        let end = || Stdio::from(program.try_clone().expect("a descriptor"));
        let mut c = Command::new(Scene::binary());
        c.args(args).current_dir(&scene.dir).stdin(end()).stdout(end()).stderr(end());
        c.env("XDG_STATE_HOME", scene.path("state")).env("TERM", "xterm");
        let descriptor = program.as_raw_fd();
        // SAFETY: both calls are system calls alone, of a new process that has one thread.
        unsafe {
            c.pre_exec(move || {
                libc::setsid();
                libc::ioctl(descriptor, libc::TIOCSCTTY, 0);
                Ok(())
            });
        }
        let child = c.spawn().expect("started");
        drop(c);
        drop(program);
        let keys = File::from(user);
        let (mut from, shown) = (keys.try_clone().expect("a descriptor"), Arc::default());
        let own: Arc<Mutex<Vec<u8>>> = Arc::clone(&shown);
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // The end of the program is an error of the terminal.
            while let Ok(n @ 1..) = from.read(&mut bytes) {
                own.lock().expect("no panic").extend(&bytes[..n]);
            }
        });
        Self { child, keys, shown }
    }

    fn shown(&self) -> String {
        String::from_utf8_lossy(&self.shown.lock().expect("no panic")).into_owned()
    }

    /// Presses keys, and waits until the terminal has shown a text since.
    #[track_caller]
    fn press(&mut self, keys: &str, text: &str) {
        let before = self.shown().len();
        self.keys.write_all(keys.as_bytes()).expect("written");
        until(&format!("{text:?} after {keys:?}; shown: {}", self.shown()), || {
            self.shown().get(before..).is_some_and(|s| s.contains(text))
        });
    }

    fn end(mut self) -> i32 {
        wait(&mut self.child, DEADLINE).expect("it ends")
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn recorded(name: &str) -> Scene {
    let scene = Scene::new(name);
    let mut c = Command::new(Scene::binary());
    c.args(["run", "-o", "r.prof", "--"]).arg(program("leaks.c")).arg("100");
    scene.run(c).ok("prof run");
    scene
}

const READY: &str = "prof> ";

#[test]
fn lines_are_completed_kept_and_stopped() {
    let scene = recorded("prompt");
    let mut t = Terminal::start(&scene, &["script", "-d", "r.prof"]);
    t.press("", READY);
    // Tab completes by the type of what stands before the word.
    t.press("allocations().only_chain_lea\t", "only_chain_leaked()");
    t.press(".group_\t\r", "AllocationGroupList (");
    // Several lines are one piece of code; what it makes stays.
    t.press("fn twice(x) {\r", "\n");
    t.press("x * 2\r}\r", READY);
    t.press("twice(21)\r", "42");
    // An error has a mark below its place, whose column is that of the code above it.
    t.press("1 + nothing\r", "Variable not found: nothing\r\n    1 + nothing\r\n        ^\r\n");
    t.press("allocations().only_leakd()\r", "is it only_leaked?");
    // Ctrl-C leaves a line that is being typed, and ends what runs; the prompt goes on.
    t.press("half a li\x03", READY);
    t.press("println(\"begun\"); loop {}\r", "begun\r\n");
    t.press("\x03", "the script was stopped");
    t.press("twice(4)\r", "8");
    t.press("help\r", "graph()");
    t.press("\x04", "\n");
    assert_eq!(t.end(), 0);
    // The next prompt has the lines of this one.
    let mut t = Terminal::start(&scene, &["script", "-d", "r.prof"]);
    t.press("", READY);
    t.press("\x1b[A\x1b[A", "twice(4)");
    t.press("\x15exit(3)\r", "\n");
    assert_eq!(t.end(), 3);
}

#[test]
fn an_interrupted_script_ends_by_the_signal_and_leaves_no_file_behind() {
    let scene = recorded("interrupted-script");
    for format in ["csv", "json", "html", "parquet"] {
        interrupted(&scene, format);
    }
}

fn interrupted(scene: &Scene, format: &str) {
    let code =
        format!("println(\"begun\"); loop {{ allocations().save_as_{format}(\"x.{format}\"); }}");
    let mut child = Command::new(Scene::binary())
        .args(["script", "-d", "r.prof", "-e", &code])
        .current_dir(&scene.dir)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("started");
    let mut begun = [0; 6];
    child.stdout.as_mut().expect("piped").read_exact(&mut begun).expect("a line");
    // SAFETY: the child is not reaped yet, so that its id is its own.
    unsafe { libc::kill(child.id() as i32, libc::SIGINT) };
    let mut message = String::new();
    child.stderr.take().expect("piped").read_to_string(&mut message).expect("UTF-8");
    assert_eq!(wait(&mut child, DEADLINE), Some(128 + libc::SIGINT), "{message}");
    assert!(message.contains("the script was stopped"), "{message}");
    let left = std::fs::read_dir(&scene.dir).expect("a folder").flatten().map(|f| f.file_name());
    let parts: Vec<_> = left.filter(|f| f.to_string_lossy().ends_with(".part")).collect();
    assert!(parts.is_empty(), "{parts:?}");
}
