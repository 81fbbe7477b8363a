//! `prof top`, in a terminal.

use common::build::program;
use common::{DEADLINE, Scene, Target, until, wait};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::process::{Child, Command};
use std::sync::mpsc::{Receiver, channel};

/// Size of the terminal.
const LINES: usize = 24;
const COLUMNS: usize = 100;

/// `prof top` in a terminal of its own, with all that it has written there.
struct Top {
    prof: Child,
    keys: File,
    pieces: Receiver<Vec<u8>>,
    shown: String,
    terminal: File,
    before: libc::termios,
}

impl Drop for Top {
    fn drop(&mut self) {
        let _ = self.prof.kill();
        let _ = self.prof.wait();
    }
}

fn modes(terminal: &File) -> libc::termios {
    // SAFETY: writes the modes to its argument, of which all bytes 0 are valid.
    unsafe {
        let mut modes = std::mem::zeroed();
        assert_eq!(libc::tcgetattr(terminal.as_raw_fd(), &mut modes), 0);
        modes
    }
}

impl Top {
    fn start(scene: &Scene, args: &[&str]) -> Self {
        let (mut ours, mut theirs) = (-1, -1);
        let size = libc::winsize {
            ws_row: LINES as u16,
            ws_col: COLUMNS as u16,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        let (name, none) = (std::ptr::null_mut(), std::ptr::null());
        // SAFETY: writes two descriptors, which nobody else has.
        let (ours, theirs) = unsafe {
            assert_eq!(libc::openpty(&mut ours, &mut theirs, name, none, &size), 0);
            (File::from_raw_fd(ours), File::from_raw_fd(theirs))
        };
        let before = modes(&theirs);
        let end = || theirs.try_clone().expect("a terminal");
        let mut command = Command::new(Scene::binary());
        command.arg("top").args(args).current_dir(&scene.dir).env("TERM", "xterm");
        command.stdin(end()).stdout(end()).stderr(end());
        let prof = command.spawn().expect("prof");
        let mut reads = ours.try_clone().expect("a terminal");
        let (sender, pieces) = channel();
        std::thread::spawn(move || {
            let mut some = [0; 4096];
            while let Ok(n @ 1..) = reads.read(&mut some) {
                let _ = sender.send(some[..n].to_vec());
            }
        });
        Self { prof, keys: ours, pieces, shown: String::new(), terminal: theirs, before }
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).expect("a key");
    }

    /// Waits until the screen has a text.
    #[track_caller]
    fn sees(&mut self, text: &str) {
        until(text, || {
            self.read();
            self.screen().contains(text)
        });
    }

    /// Returns the screen as a terminal would show it.
    fn screen(&self) -> String {
        let (mut cells, mut at) = (vec![vec![' '; COLUMNS]; LINES], (0usize, 0usize));
        let mut rest = self.shown.chars().peekable();
        while let Some(c) = rest.next() {
            if c != '\u{1b}' {
                if let Some(cell) = cells.get_mut(at.0).and_then(|l| l.get_mut(at.1)) {
                    *cell = c;
                }
                at.1 += 1;
                continue;
            }
            if rest.next_if_eq(&'[').is_none() {
                continue;
            }
            let mut given = String::new();
            let end = loop {
                match rest.next() {
                    Some(c) if c.is_ascii_alphabetic() => break c,
                    Some(c) => given.push(c),
                    None => break ' ',
                }
            };
            match end {
                'H' => {
                    let mut place = given.split(';').map(|n| n.parse().unwrap_or(1));
                    let mut next = || place.next().unwrap_or(1usize).saturating_sub(1);
                    at = (next(), next());
                }
                'J' => cells.iter_mut().for_each(|l| l.fill(' ')),
                _ => {}
            }
        }
        let lines: Vec<String> = cells.iter().map(|l| l.iter().collect()).collect();
        lines.join("\n")
    }

    fn read(&mut self) {
        for piece in self.pieces.try_iter() {
            self.shown.push_str(&String::from_utf8_lossy(&piece));
        }
    }

    /// Waits for the end; the terminal is as it was.
    #[track_caller]
    fn ends(&mut self) -> Option<i32> {
        let code = wait(&mut self.prof, DEADLINE);
        until("the last screen is left", || {
            self.read();
            self.shown.contains("\u{1b}[?1049l")
        });
        let (before, after) = (self.before, modes(&self.terminal));
        assert_eq!(before.c_lflag, after.c_lflag, "{}", self.shown);
        assert_eq!(before.c_iflag, after.c_iflag, "{}", self.shown);
        assert!(self.shown.contains("\u{1b}[?25h"), "{}", self.shown);
        code
    }
}

#[test]
fn a_table_is_filtered_and_sorted_and_quitting_detaches() {
    let scene = Scene::new("top");
    let mut target = Target::start(&program("toggle.c"), &[]);
    let pid = target.pid.to_string();
    let mut top = Top::start(&scene, &[&pid, "--interval", "200ms"]);
    top.sees("recording");
    target.ask("alloc 100");
    target.ask("free 40");
    // 60 blocks of 128 bytes.
    top.sees("toggled_block");
    top.sees("7.5K");
    top.press("/nothing_like_this\r");
    top.sees("nothing matches");
    assert!(!top.screen().contains("toggled_block"), "{}", top.screen());
    top.press("\u{1b}");
    top.sees("toggled_block");
    top.press("B");
    top.sees("\u{25bc}BLOCKS");
    top.press("\t");
    top.sees("\u{25bc}BLOCKS");
    top.sees("FUNCTION");
    top.press("\u{1b}[Z\r");
    top.sees("toggle.c");
    top.press("?");
    top.sees("the recording goes on");
    top.press("q");
    top.press("q");
    top.sees("Detach from");
    top.press("y");
    assert_eq!(top.ends(), Some(0), "{}", top.shown);
    until("it has said so", || {
        top.read();
        top.shown.contains("the process is as it was before")
    });
    assert_eq!(scene.prof(&["status", &pid]).code, 3);
    target.quit();
}

#[test]
fn a_signal_gives_the_terminal_back_and_a_recording_goes_on() {
    let scene = Scene::new("top-signal");
    let mut target = Target::start(&program("toggle.c"), &[]);
    let pid = target.pid.to_string();
    scene.attach(&target);
    let mut top = Top::start(&scene, &[&pid]);
    top.sees("recording");
    let prof = nix::unistd::Pid::from_raw(top.prof.id().cast_signed());
    nix::sys::signal::kill(prof, nix::sys::signal::SIGTERM).expect("SIGTERM");
    assert_eq!(top.ends(), Some(0), "{}", top.shown);
    let status = scene.prof(&["status", &pid]).ok("prof status").stdout;
    assert!(status.contains(": recording"), "{status}");
    // The end of the process is said, with its last figures.
    let mut top = Top::start(&scene, &[&pid, "--interval", "200ms"]);
    target.ask("alloc 100");
    top.sees("toggled_block");
    target.quit();
    top.sees("has ended: these are its last figures");
    top.sees("12.5K");
    top.press("q");
    assert_eq!(top.ends(), Some(0), "{}", top.shown);
}

#[test]
fn it_goes_on_when_the_recording_goes_over_to_figures() {
    let scene = Scene::new("top-over");
    let mut target = Target::start(&program("folds.c"), &[]);
    let pid = target.pid.to_string();
    let bounds = ["--max-disk", "4MiB", "--on-limit", "aggregate", "--every", "100ms"];
    scene.attach_with(&target, &[&["-o", "r.prof", "--compress", "none"][..], &bounds].concat());
    let mut top = Top::start(&scene, &[&pid, "--interval", "100ms"]);
    target.ask("batch");
    // 20 blocks of 300 bytes stay of each batch.
    top.sees("long_lived");
    top.press("b");
    top.sees("since b");
    until("it has gone over", || {
        target.ask("batch");
        top.read();
        top.screen().contains("figures alone from")
    });
    let before = long_lived(&top.screen());
    (0..20).for_each(|_| _ = target.ask("batch"));
    until("it shows what grows", || {
        top.read();
        long_lived(&top.screen()) > before
    });
    assert!(top.screen().contains("since b"), "growth is counted on: {}", top.screen());
    top.press("q");
    top.press("n");
    assert_eq!(top.ends(), Some(0), "{}", top.shown);
    scene.detach(&target);
    target.quit();
}

/// Returns the bytes that a function holds, as the screen has it.
fn long_lived(screen: &str) -> f64 {
    let row = screen.lines().find(|l| l.contains("long_lived")).unwrap_or_default();
    let words = row.split(|c: char| c.is_whitespace() || c == '\u{2502}');
    let mut sizes = words.filter_map(|w| match w.strip_suffix('K') {
        Some(n) => n.parse::<f64>().ok().map(|n| n * 1024.0),
        None => {
            w.strip_suffix('M').and_then(|n| n.parse::<f64>().ok()).map(|n| n * 1024.0 * 1024.0)
        }
    });
    sizes.next().unwrap_or(0.0)
}

#[test]
fn without_a_terminal_it_says_what_to_use() {
    let scene = Scene::new("top-none");
    let mut target = Target::start(&program("toggle.c"), &[]);
    let out = scene.prof(&["top", &target.pid.to_string()]);
    assert_eq!(out.code, 2, "{out:?}");
    assert!(out.stderr.contains("prof leaks PID --live"), "{out:?}");
    assert_eq!(scene.prof(&["status", &target.pid.to_string()]).code, 3);
    target.quit();
}
