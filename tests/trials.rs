//! Verdicts on programs that serve from a full cache, with and without a leak, in several languages: recorded at the
//! same time, for PROF_TRIALS_SECONDS. `tests/trials/run` does so for a minute and shows the table.

mod common;

use common::build::{program, sources};
use common::{Scene, Target, installed, skip};
use serde_json::Value;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// A running program and its recording.
struct Trial {
    name: String,
    target: Target,
    /// Size of the leaking blocks; 0 if none leak.
    leak: u64,
    recording: PathBuf,
}

/// The result of `prof leaks` for one trial.
struct Outcome {
    name: String,
    leak: bool,
    /// Rank of the leak among the growing stacks; 0 if it was not found.
    rank: usize,
    /// Number of other growing stacks, and how many of these with high confidence.
    others: [usize; 2],
}

fn seconds() -> u64 {
    std::env::var("PROF_TRIALS_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(10)
}

/// Starts a program and records it.
fn start(scene: &Scene, name: String, command: Command, leak: u64) -> Trial {
    let target = Target::spawn(command);
    let file = format!("{}.prof", name.replace(' ', "-"));
    let recording = scene.attach_with(&target, &["-o", &file]);
    Trial { name, target, leak, recording }
}

fn end(scene: &Scene, mut trial: Trial) -> Outcome {
    scene.detach(&trial.target);
    trial.target.kill();
    let file = trial.recording.to_str().expect("UTF-8");
    let out = scene.prof(&["leaks", file, "--format", "json", "--top", "0", "--all"]).ok("leaks");
    let found: Value = serde_json::from_str(&out.stdout).expect("JSON");
    let rows = found["stacks"].as_array().expect("rows").iter();
    let growing: Vec<&Value> = rows.filter(|r| r["class"] == "growing").collect();
    let number = |r: &Value, name: &str| r[name].as_u64().unwrap_or(0);
    let is_leak = |r: &&&Value| {
        let mean = number(r, "live_bytes") / number(r, "live_count").max(1);
        trial.leak > 0 && mean.abs_diff(trial.leak) * 20 <= trial.leak
    };
    let rank = growing.iter().position(|r| is_leak(&r)).map_or(0, |i| i + 1);
    let others: Vec<_> = growing.iter().filter(|r| !is_leak(r)).collect();
    let sure = others.iter().filter(|r| r["confidence"] == "high").count();
    if trial.leak > 0 && rank == 0 || trial.leak == 0 && sure > 0 {
        let brief = |r: &Value| {
            let frame = |f: &Value| f["function"].as_str().unwrap_or("?").to_owned();
            let frames = r["frames"].as_array().into_iter().flatten().take(4).map(frame);
            let frames: Vec<_> = frames.collect();
            format!(
                "  {} {} {} in {}, replaced {}, {frames:?}",
                r["class"], r["confidence"], r["live_bytes"], r["live_count"], r["replaced_count"]
            )
        };
        let rows = found["stacks"].as_array().expect("rows").iter().take(8);
        eprintln!("{}:\n{}", trial.name, rows.map(brief).collect::<Vec<_>>().join("\n"));
    }
    Outcome { name: trial.name, leak: trial.leak > 0, rank, others: [others.len(), sure] }
}

/// Records the trials at the same time, and writes the table.
#[track_caller]
fn run(scene: &Scene, commands: Vec<(String, Command, u64)>) {
    let trials: Vec<Trial> =
        commands.into_iter().map(|(name, c, leak)| start(scene, name, c, leak)).collect();
    std::thread::sleep(Duration::from_secs(seconds()));
    let outcomes: Vec<Outcome> = trials.into_iter().map(|t| end(scene, t)).collect();
    for o in &outcomes {
        let leak = match (o.leak, o.rank) {
            (false, _) => "steady".into(),
            (true, 0) => "missed".into(),
            (true, rank) => format!("found #{rank}"),
        };
        println!("{:<24} {leak:<10} others {}, sure {}", o.name, o.others[0], o.others[1]);
    }
    for o in &outcomes {
        assert!(!o.leak || (1..=2).contains(&o.rank), "{}: rank {}", o.name, o.rank);
        // Blocks that belong to each leaking block grow as well.
        let sure = if o.leak { 0 } else { o.others[1] };
        assert_eq!(sure, 0, "{}: what does not leak is said to, for certain", o.name);
    }
}

#[test]
fn caches_that_replace_are_no_leaks_and_leaks_beside_them_are_found() {
    let scene = Scene::new("trials");
    let of = |how: &str, what: &str, leak: u64| {
        let mut c = Command::new(program("trial.c"));
        c.args([how, what]);
        (format!("c {how} {what}"), c, leak)
    };
    run(
        &scene,
        vec![
            of("random", "none", 0),
            of("oldest", "none", 0),
            of("before", "none", 0),
            of("resized", "none", 0),
            of("random", "own", 3000),
            of("random", "same", 700),
            of("random", "shared", 3000),
            of("before", "own", 3000),
        ],
    );
}

#[test]
fn leaks_of_other_languages_are_found_beside_their_caches() {
    let scene = Scene::new("languages");
    let mut commands = Vec::new();
    let dir = sources().join("trials");
    let built = |compiler: &str, source: &str, flags: &[&str]| {
        let to = scene.path(&format!("{source}.bin"));
        let mut c = Command::new(compiler);
        c.args(flags).arg("-o").arg(&to).arg(dir.join(source));
        scene.run(c).ok(source);
        to
    };
    let mut add = |name: &str, program: PathBuf, file: Option<&str>, leak: u64| {
        for what in ["none", "own"] {
            let mut c = Command::new(&program);
            c.args(file.map(|f| dir.join(f))).args(["random", what]);
            commands.push((format!("{name} {what}"), c, if what == "own" { leak } else { 0 }));
        }
    };
    for (name, compiler, source, flags) in [
        ("c++", "c++", "trial.cpp", &["-O2", "-g"][..]),
        ("rust", "rustc", "trial.rs", &["-O", "-g", "--edition=2021"]),
    ] {
        if installed(compiler) {
            add(name, built(compiler, source, flags), None, 3000);
        } else {
            skip("leaks_of_other_languages_are_found", &format!("no {compiler}"));
        }
    }
    for (name, program, file, leak) in [
        ("python", "/usr/bin/python3", "trial.py", 3000),
        ("perl", "/usr/bin/perl", "trial.pl", 3000),
        ("ruby", "/usr/bin/ruby", "trial.rb", 3000),
        ("node", "/usr/bin/node", "trial.js", 9000),
    ] {
        if std::path::Path::new(program).exists() {
            add(name, program.into(), Some(file), leak);
        } else {
            skip("leaks_of_other_languages_are_found", &format!("no {program}"));
        }
    }
    run(&scene, commands);
}
