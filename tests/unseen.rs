//! A recording that misses the memory that its process takes, or whose work other processes do, reports that: at the
//! attach, in `prof status`, `prof report` and `prof leaks`. A recording that sees it does not.

use common::build::{program, program_with};
use common::{Output, Scene, Target, installed, skip, until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::path::Path;
use std::process::Command;

const MIB: u64 = 1 << 20;

/// Returns the JSON of `prof status PID`.
#[track_caller]
fn status(scene: &Scene, target: &Target) -> Value {
    let pid = target.pid.to_string();
    let out = scene.prof(&["status", &pid, "--format", "json"]).ok("prof status");
    serde_json::from_str(&out.stdout).expect("JSON")
}

/// Returns the text of `prof status`, `prof report` and `prof leaks`.
#[track_caller]
fn messages(scene: &Scene, target: &Target) -> [String; 3] {
    let pid = target.pid.to_string();
    let text = |args: &[&str]| scene.prof(args).ok("prof").stdout;
    [text(&["status", &pid]), text(&["report", &pid]), text(&["leaks", &pid])]
}

/// Returns whether a text has a line that begins with a word.
fn has(text: &str, name: &str) -> bool {
    text.lines().any(|l| l.trim_start().starts_with(&format!("{name} ")))
}

#[track_caller]
fn attach(scene: &Scene, target: &Target, look: &str) -> Output {
    scene.prof(&["attach", &target.pid.to_string(), "--look", look]).ok("prof attach")
}

/// Waits until the collector has seen the growth, which it checks once a second.
#[track_caller]
fn until_recorded(scene: &Scene, target: &Target) {
    let pid = target.pid.to_string();
    until("the recording has the growth", || {
        let out = scene.prof(&["report", &pid, "--format", "json"]).ok("prof report");
        let report: Value = serde_json::from_str(&out.stdout).expect("JSON");
        !report["unseen"].is_null()
    });
}

#[test]
fn memory_that_the_program_maps_itself_is_said_to_be_unseen() {
    let scene = Scene::new("unseen");
    let mut target = Target::start(&program("unseen.c"), &[]);
    attach(&scene, &target, "0s");
    target.ask("malloc 2");
    target.ask("map 32");
    let mut unseen = Value::Null;
    until("status knows of the growth", || {
        unseen = status(&scene, &target)["unseen"].clone();
        !unseen.is_null()
    });
    let number = |name: &str| unseen[name].as_u64().unwrap_or_else(|| panic!("{unseen:#}"));
    assert!((32 * MIB..40 * MIB).contains(&number("grown_bytes")), "{unseen:#}");
    assert!((2 * MIB..3 * MIB).contains(&number("recorded_bytes")), "{unseen:#}");
    assert!(unseen["hooked"].as_array().is_some_and(|h| !h.is_empty()), "{unseen:#}");
    until_recorded(&scene, &target);
    for text in messages(&scene, &target) {
        assert!(has(&text, "unseen") && text.contains("--alloc-fn"), "{text}");
    }
    // A recording of some blocks only gets no such report.
    let pid = target.pid.to_string();
    let some = scene.prof(&["report", &pid, "--min-size", "100KiB"]).ok("prof report").stdout;
    assert!(!has(&some, "unseen"), "{some}");
    scene.detach(&target);
    target.quit();
}

#[test]
fn growth_by_recorded_blocks_is_no_reason_for_doubt() {
    let scene = Scene::new("seen");
    let mut target = Target::start(&program("unseen.c"), &[]);
    let out = attach(&scene, &target, "0s");
    assert!(!out.stderr.contains("private memory"), "{out:#?}");
    // Events that are on their way to the recording explain growth, too.
    let collector =
        Pid::from_raw(status(&scene, &target)["collector_pid"].as_i64().expect("a pid") as i32);
    kill(collector, Signal::SIGSTOP).expect("a collector");
    target.ask("malloc 48");
    let held_up = status(&scene, &target);
    kill(collector, Signal::SIGCONT).expect("a collector");
    assert!(held_up["unseen"].is_null(), "{held_up:#}");
    for command in ["churn 64", "map 3"] {
        target.ask(command);
    }
    let now = status(&scene, &target);
    assert!(now["unseen"].is_null() && now["workers"].is_null(), "{now:#}");
    for text in messages(&scene, &target) {
        assert!(!has(&text, "unseen") && !has(&text, "workers"), "{text}");
    }
    scene.detach(&target);
    target.quit();
}

#[test]
fn what_is_known_of_the_allocator_is_said_and_how_to_switch_it_off() {
    let scene = Scene::new("zend");
    let zend = program_with("unseen.c", &["-O1", "-DZEND"]);
    for off in [false, true] {
        let mut c = Command::new(&zend);
        if off {
            c.env("USE_ZEND_ALLOC", "0");
        }
        let mut target = Target::spawn(c);
        target.expect("ready");
        attach(&scene, &target, "0s");
        target.ask("map 16");
        until("status knows of the growth", || !status(&scene, &target)["unseen"].is_null());
        let [text, ..] = messages(&scene, &target);
        assert_eq!(text.contains("USE_ZEND_ALLOC=0"), !off, "{text}");
        assert_eq!(text.contains("--alloc-fn"), off, "{text}");
        scene.detach(&target);
        target.quit();
    }
}

#[test]
fn attach_says_it_after_a_second() {
    let scene = Scene::new("rise");
    let mut target = Target::start(&program("unseen.c"), &[]);
    target.ask("rise");
    let out = attach(&scene, &target, "1s");
    assert!(out.stderr.contains("more private memory than at the attach"), "{out:#?}");
    assert_eq!(out.stdout.lines().count(), 1, "{out:#?}");
    scene.detach(&target);
    target.kill();
}

#[test]
fn the_workers_of_a_master_are_named_with_their_growth() {
    let scene = Scene::new("master");
    let mut target = Target::start(&program("unseen.c"), &[]);
    let pid = |line: String| line.split(' ').nth(1).and_then(|w| w.parse::<i32>().ok());
    let workers = [0; 2].map(|_| pid(target.ask("fork")).expect("a worker"));
    let out = attach(&scene, &target, "1s");
    let records = |text: &str, pid: i32| {
        text.contains("this is a master: its workers are")
            && text.contains(&format!("{pid} (RSS "))
            && text.contains(&format!("`prof attach {pid}`"))
    };
    assert!(workers.iter().any(|w| records(&out.stderr, *w)), "{out:#?}");
    assert!(workers.iter().all(|w| out.stderr.contains(&format!("{w} (RSS "))), "{out:#?}");
    target.ask("brief");
    target.ask(&format!("grow {}", workers[1]));
    until("the second worker leads the list", || {
        let now = status(&scene, &target);
        let first = &now["workers"][0];
        first["pid"] == workers[1] && first["grown_bytes"].as_u64() >= Some(8 * MIB)
    });
    until("the recording has it", || {
        messages(&scene, &target).iter().all(|text| records(text, workers[1]))
    });
    // The command in the message works.
    let own = scene.prof(&["attach", &workers[1].to_string(), "-o", "worker.prof"]);
    let own = own.ok("prof attach");
    assert!(!own.stderr.contains("not hooked"), "{own:#?}");
    target.ask(&format!("grow {}", workers[1]));
    scene.prof(&["detach", &workers[1].to_string()]).ok("prof detach");
    let r = scene.report(Path::new("worker.prof"));
    assert_eq!(r.total("live_bytes"), 8 * MIB, "{:#}", r.brief());
    scene.detach(&target);
    target.quit();
}

#[test]
fn pymalloc_is_named_where_it_takes_the_memory() {
    if !installed("python3") {
        return skip("pymalloc", "no python3");
    }
    let scene = Scene::new("pymalloc");
    let leak = "import sys\nkeep = []\nprint('ready', flush=True)\nfor line in sys.stdin:\n    \
                keep.append([bytes(400) for _ in range(30000)])\n    print('done', flush=True)";
    for (pymalloc, names) in [("default", true), ("malloc", false)] {
        let mut c = Command::new("python3");
        c.args(["-c", leak]).env("PYTHONMALLOC", pymalloc);
        let mut target = Target::spawn(c);
        target.expect("ready");
        attach(&scene, &target, "0s");
        target.ask("");
        if names {
            until("status knows of the growth", || !status(&scene, &target)["unseen"].is_null());
        }
        let [text, ..] = messages(&scene, &target);
        assert_eq!(text.contains("PYTHONMALLOC=malloc"), names, "{text}");
        assert_eq!(has(&text, "unseen"), names, "{text}");
        scene.detach(&target);
        target.kill();
    }
}
