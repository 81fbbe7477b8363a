//! Compares the words for one thing in different places, and tests names that are no plain text.

use common::build::program;
use common::{Scene, Target, until};
use std::fs::File;
use std::io::Read;
use std::os::fd::FromRawFd;
use std::process::{Command, Stdio};

/// The number in front of some words.
#[track_caller]
fn number_before(text: &str, words: &str) -> u64 {
    let at = text.find(words).unwrap_or_else(|| panic!("no {words:?} in {text}"));
    let digits = text[..at].trim_end().rsplit(|c: char| !c.is_ascii_digit()).next();
    digits.and_then(|d| d.parse().ok()).unwrap_or_else(|| panic!("no number: {text}"))
}

#[test]
fn functions_are_counted_alike_by_attach_status_and_report() {
    let scene = Scene::new("counted");
    let mut target = Target::start(&program("churn.c"), &[]);
    let pid = target.pid.to_string();
    let attach = scene.prof(&["attach", &pid, "-o", "r.prof"]).ok("attach").stderr;
    let status = scene.prof(&["status", &pid]).ok("status").stdout;
    scene.detach(&target);
    let report = scene.prof(&["report", "r.prof"]).ok("report").stdout;
    let counted = number_before(&attach, " functions in all");
    assert_eq!(counted, number_before(&status, " functions in all"), "{attach}{status}");
    assert_eq!(counted, number_before(&report, " in libc"), "{attach}{report}");
    // Of the same names.
    let names = |text: &str| {
        let line = text.lines().find(|l| l.contains(" functions in all")).expect("the line");
        line.split_once(": malloc").map(|(_, names)| names.to_owned())
    };
    assert_eq!(names(&attach), names(&status));
    target.kill();
}

#[test]
fn a_path_with_control_characters_begins_no_line_and_moves_no_cursor() {
    let scene = Scene::new("control");
    let mut target = Target::start(&program("churn.c"), &[]);
    let (pid, name) = (target.pid.to_string(), "a\nprocess 1 (init): \u{1b}[2J.prof");
    let out = scene.prof(&["attach", &pid, "-o", name]).ok("attach");
    // A program reads the path as it is.
    assert!(out.stdout.ends_with(&format!("{name}\n")), "{out:?}");
    let said = [
        scene.prof(&["status", &pid]).ok("status").stdout,
        scene.prof(&["status"]).ok("status").stdout,
        scene.prof(&["attach", &pid, "-o", "other.prof"]).stderr,
        scene.prof(&["attach", &pid, "-o", name]).stderr,
        scene.prof(&["detach", &pid]).ok("detach").stderr,
        scene.prof(&["status", &pid]).stderr,
        scene.prof(&["report", name]).ok("report").stdout,
        scene.prof(&["report", &format!("no {name}")]).stderr,
        scene.prof(&["export", "--format", "json", "-o", "/", name]).stderr,
    ];
    for text in said {
        assert!(!text.contains('\u{1b}') && !text.contains("\nprocess 1 (init)"), "{text}");
    }
    target.kill();
}

/// A terminal: what its programs use, and what they write there.
fn terminal() -> (File, File) {
    let (mut ours, mut theirs) = (-1, -1);
    let size = libc::winsize { ws_row: 40, ws_col: 200, ws_xpixel: 0, ws_ypixel: 0 };
    let (name, modes) = (std::ptr::null_mut(), std::ptr::null());
    // SAFETY: writes two descriptors, which nobody else has.
    unsafe {
        assert_eq!(libc::openpty(&mut ours, &mut theirs, name, modes, &size), 0);
        (File::from_raw_fd(ours), File::from_raw_fd(theirs))
    }
}

#[test]
fn what_is_said_of_a_detach_has_the_terminal_for_itself() {
    let scene = Scene::new("foreground");
    let mut target = Target::start(&program("churn.c"), &[]);
    let (mut ours, theirs) = terminal();
    let mut command = Command::new(Scene::binary());
    command.args(["attach", "--foreground", "-o", "r.prof", &target.pid.to_string()]);
    command.current_dir(&scene.dir).stdin(Stdio::null()).stdout(Stdio::null()).stderr(theirs);
    let mut prof = command.spawn().expect("prof");
    // The terminal ends with the last that has it open.
    drop(command);
    let (tx, pieces) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut some = [0; 4096];
        while let Ok(n @ 1..) = ours.read(&mut some) {
            let _ = tx.send(String::from_utf8_lossy(&some[..n]).into_owned());
        }
    });
    let mut shown = String::new();
    until("events are counted", || {
        shown.extend(pieces.try_iter());
        shown.contains("events/s")
    });
    let pid = nix::unistd::Pid::from_raw(prof.id().cast_signed());
    nix::sys::signal::kill(pid, nix::sys::signal::SIGINT).expect("SIGINT");
    assert_eq!(common::wait(&mut prof, common::DEADLINE), Some(0), "{shown}");
    shown.extend(pieces.iter());
    // The counter was wiped out, and what is said begins on its line. Lost events may be told of first.
    let at = shown.rfind("events/s").expect("the counter");
    let (counter, after) = shown[at..].split_once("\u{1b}[2Kprof: ").expect("what is said");
    assert!(!counter.contains('\n'), "{shown:?}");
    assert!(after.contains("the process was stopped for"), "{shown:?}");
    assert!(after.contains("the process is as it was before"), "{shown:?}");
    target.kill();
}
