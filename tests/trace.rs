//! `prof trace`: each event as a line, of a process that is recorded, of one that is not, and of a command.

use common::build::program;
use common::{Scene, Target, until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

/// A running `prof trace`, ended at the end.
struct Trace {
    child: Child,
    lines: std::path::PathBuf,
    messages: std::path::PathBuf,
}

impl Trace {
    fn start(scene: &Scene, args: &[&str]) -> Self {
        let (lines, messages) = (scene.path("lines"), scene.path("messages"));
        let file = |path| File::create(path).expect("a file");
        let child = Command::new(Scene::binary())
            .arg("trace")
            .args(args)
            .current_dir(&scene.dir)
            .stdin(Stdio::null())
            .stdout(file(&lines))
            .stderr(file(&messages))
            .spawn()
            .expect("prof trace");
        Self { child, lines, messages }
    }

    fn text(&self) -> String {
        fs::read_to_string(&self.lines).unwrap_or_default()
    }

    fn messages(&self) -> String {
        fs::read_to_string(&self.messages).unwrap_or_default()
    }

    fn ended(&mut self) -> String {
        let code = common::wait(&mut self.child, common::DEADLINE);
        assert_eq!(code, Some(0), "{}", self.messages());
        self.messages()
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns whether prof's memory is mapped in the process.
fn is_recorded(target: &Target) -> bool {
    target.proc("maps").contains("/memfd:prof-ring")
}

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|l| serde_json::from_str(l).expect("a line of JSON")).collect()
}

fn of<'a>(all: &'a [Value], function: &str) -> Vec<&'a Value> {
    all.iter().filter(|l| l["function"] == function).collect()
}

#[test]
fn a_running_recording_is_traced_from_now_on_and_goes_on() {
    let scene = Scene::new("trace");
    let mut target = Target::start(&program("toggle.c"), &[]);
    let pid = target.pid.to_string();
    let recording = scene.attach(&target);
    target.ask("alloc 100");
    let mut trace = Trace::start(&scene, &[&pid, "--format", "json", "--stack", "-n", "15"]);
    // Events of before the trace are none of it, so it has begun when the first line is there.
    until("the first line", || {
        target.ask("alloc 1");
        !trace.text().is_empty()
    });
    target.ask("free 100");
    target.ask("alloc 30");
    let messages = trace.ended();
    assert!(messages.contains("15 events shown"), "{messages}");
    let all = lines(&trace.text());
    assert_eq!(all.len(), 15);
    for l in of(&all, "alloc") {
        assert_eq!((l["size"].as_u64(), l["tid"].as_u64()), (Some(128), Some(target.pid as u64)));
        assert_eq!(l["asked_by"]["function"], "toggled_block", "{l:#}");
        assert_eq!(l["frames"][1]["function"], "main", "{l:#}");
    }
    let frees = of(&all, "free");
    assert!(frees.iter().all(|l| l["stack"] == 0), "{frees:#?}");
    assert!(all.is_sorted_by_key(|l| l["at_ns"].as_u64()), "{all:#?}");
    // The recording is not ended by a trace.
    assert!(is_recorded(&target));
    scene.detach(&target);
    target.quit();
    assert!(scene.finished(&recording).total("allocations") > 130);
    let refused = scene.prof(&["trace", &pid]);
    assert_eq!(refused.code, 3, "{refused:?}");
}

#[test]
fn frees_name_the_block_and_filters_hold_for_them() {
    let scene = Scene::new("trace-frees");
    let mut target = Target::start(&program("toggle.c"), &[]);
    let pid = target.pid.to_string();
    let args = ["--only", "alloc,free", "--function", "toggled_block", "--duration", "3s"];
    let mut trace = Trace::start(&scene, &[&[&*pid], &args[..]].concat());
    until("the attach", || trace.messages().contains("until this ends"));
    target.ask("alloc 7");
    target.ask("free 3");
    let messages = trace.ended();
    let text = trace.text();
    let has = |words: &str| text.lines().filter(|l| l.contains(words)).count();
    assert_eq!((has(" alloc  "), has(" free  ")), (7, 3), "{text}");
    assert_eq!(has("toggled_block toggle.c:"), 10, "{text}");
    assert_eq!(has(" lived "), 3, "{text}");
    assert!(messages.contains("10 events shown") && messages.contains("0 lost"), "{messages}");
    assert!(messages.contains("the process is as it was before"), "{messages}");
    assert!(!is_recorded(&target));
    let wrong = scene.prof(&["trace", &pid, "--function", "("]);
    assert!(wrong.code == 2 && !is_recorded(&target), "{wrong:?}");
    target.quit();
}

#[test]
fn a_reader_that_leaves_and_a_ctrl_c_end_it() {
    let scene = Scene::new("trace-closed");
    let mut target = Target::start(&program("toggle.c"), &[]);
    let pid = target.pid.to_string();
    let messages = scene.path("messages");
    let mut child = Command::new(Scene::binary())
        .args(["trace", &pid])
        .current_dir(&scene.dir)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(File::create(&messages).expect("a file"))
        .spawn()
        .expect("prof trace");
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    until("the attach", || read(&messages).contains("until this ends"));
    target.ask("alloc 1000");
    let mut reader = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut line = String::new();
    reader.read_line(&mut line).expect("a line");
    drop(reader);
    // The target is idle: the trace ends though it has nothing to write.
    let code = common::wait(&mut child, common::DEADLINE);
    assert_eq!(code, Some(0));
    assert!(!is_recorded(&target) && !line.is_empty(), "{line}");
    let mut trace = Trace::start(&scene, &[&pid]);
    until("the attach", || trace.messages().contains("until this ends"));
    kill(Pid::from_raw(trace.child.id().cast_signed()), Signal::SIGINT).expect("sent");
    let messages = trace.ended();
    assert!(messages.contains("0 events shown") && !is_recorded(&target), "{messages}");
    target.quit();
}

#[test]
fn a_command_is_traced_from_its_first_allocation_on() {
    let scene = Scene::new("trace-command");
    let command = format!("'{}'", program("toggle.c").display());
    let out = scene.prof(&["trace", "--command", &command, "--format", "json"]);
    let out = out.ok("prof trace --command");
    // What the command prints is not among the lines.
    let all = lines(&out.stdout);
    assert!(out.stderr.contains("ready"), "{out:#?}");
    assert!(!all.is_empty() && out.stderr.contains("has ended"), "{out:#?}");
    assert_eq!(scene.prof(&["trace"]).code, 2);
}
