//! Verdicts on programs that serve from a full cache, with and without a leak, in several languages: recorded at the
//! same time, for PROF_TRIALS_SECONDS. `tests/trials/run` does so for a minute and shows the table.

use common::build::{program, sources};
use common::{Scene, Target, installed, skip};
use serde_json::Value;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// A program that is to be recorded.
struct Program {
    name: String,
    target: Target,
    /// The size of the blocks that leak; 0: none do.
    leak: u64,
    /// Whether the program says when its cache is full; otherwise the cache is full from the beginning.
    says_ready: bool,
}

/// A program that is recorded.
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

/// No block of a cache is larger.
const LARGEST: u64 = 1100;

fn seconds() -> u64 {
    std::env::var("PROF_TRIALS_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(10)
}

fn program_of(name: String, command: Command, leak: u64) -> Program {
    Program { name, target: Target::spawn(command), leak, says_ready: true }
}

/// Records a program from when its cache is full.
fn start(scene: &Scene, mut p: Program) -> Trial {
    if p.says_ready {
        p.target.expect("ready");
    }
    let file = format!("{}.prof", p.name.replace(' ', "-"));
    let recording = scene.attach_with(&p.target, &["-o", &file]);
    Trial { name: p.name, target: p.target, leak: p.leak, recording }
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
        let alone = mean.abs_diff(trial.leak) * 20 <= trial.leak;
        // In a program that has one stack for all its blocks the leak may be in one row with the cache: then the row's
        // blocks are larger on average than any of the cache. How fast they grow in number depends on the machine.
        trial.leak > 0 && (alone || trial.leak > LARGEST && mean > LARGEST)
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
fn run(scene: &Scene, programs: Vec<Program>) {
    let trials: Vec<Trial> = programs.into_iter().map(|p| start(scene, p)).collect();
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
    let count = |f: &dyn Fn(&Outcome) -> bool| outcomes.iter().filter(|o| f(o)).count();
    println!(
        "leaks: {} found, {} missed; steady programs: {} right, {} falsely said to leak for certain",
        count(&|o| o.leak && o.rank > 0),
        count(&|o| o.leak && o.rank == 0),
        count(&|o| !o.leak && o.others[1] == 0),
        count(&|o| !o.leak && o.others[1] > 0),
    );
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
        program_of(format!("c {how} {what}"), c, leak)
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

const LANGUAGES: &str = "leaks_of_other_languages_are_found_beside_their_caches";

/// Interpreters that run a script of trials, with the size of the blocks that the script leaks.
const INTERPRETERS: [(&str, &str, &str, u64); 6] = [
    ("python", "/usr/bin/python3", "trial.py", 3000),
    ("perl", "/usr/bin/perl", "trial.pl", 3000),
    ("ruby", "/usr/bin/ruby", "trial.rb", 3000),
    ("node", "/usr/bin/node", "trial.js", 9000),
    ("php", "/usr/bin/php", "trial.php", 3000),
    ("lua", "/usr/bin/lua5.4", "trial.lua", 3000),
];

/// The commands of the trials, without what is not installed.
fn commands(scene: &Scene) -> Vec<(&'static str, Command, u64)> {
    let dir = sources().join("trials");
    let mut all = Vec::new();
    for (name, compiler, source, flags) in [
        ("c++", "c++", "trial.cpp", &["-O2", "-g"][..]),
        ("rust", "rustc", "trial.rs", &["-O", "-g", "--edition=2021"]),
    ] {
        if !installed(compiler) {
            skip(LANGUAGES, &format!("no {compiler}"));
            continue;
        }
        let to = scene.path(&format!("{source}.bin"));
        let mut c = Command::new(compiler);
        c.args(flags).arg("-o").arg(&to).arg(dir.join(source));
        scene.run(c).ok(source);
        all.push((name, Command::new(to), 3000));
    }
    for (name, program, file, leak) in INTERPRETERS {
        if !Path::new(program).exists() {
            skip(LANGUAGES, &format!("no {program}"));
            continue;
        }
        let mut c = Command::new(program);
        c.arg(dir.join(file));
        all.push((name, c, leak));
    }
    let has_moments =
        || !common::is_refused_by_dlopen("java", "stacks through its JIT's code have no end");
    if installed("javac") && has_moments() {
        let mut c = Command::new("javac");
        c.arg("-nowarn").arg("-d").arg(&scene.dir).arg(dir.join("Trial.java"));
        scene.run(c).ok("javac");
        let mut c = Command::new("java");
        c.args(["-Xmx64m", "-cp"]).arg(&scene.dir).arg("Trial");
        all.push(("java", c, 3000));
    } else {
        skip(LANGUAGES, "no javac");
    }
    all
}

/// A command for redis, as its clients send it.
fn set(key: &str, bytes: usize) -> Vec<u8> {
    let value = "v".repeat(bytes);
    format!("*3\r\n$3\r\nSET\r\n${}\r\n{key}\r\n${bytes}\r\n{value}\r\n", key.len()).into_bytes()
}

/// A redis server whose 20,000 keys are overwritten, one a millisecond, by a client that ends with it; `leaks`: it gets
/// another key with each request, of 3,000 bytes.
fn redis(scene: &Scene, leaks: bool) -> Program {
    let name = format!("redis {}", if leaks { "own" } else { "none" });
    let socket = scene.path(&format!("redis-{leaks}"));
    let mut c = Command::new("redis-server");
    c.args(["--port", "0", "--save", "", "--unixsocket"]).arg(&socket);
    let target = Target::spawn(c);
    common::until("redis listens", || UnixStream::connect(&socket).is_ok());
    let mut client = UnixStream::connect(&socket).expect("a server");
    let mut answers = client.try_clone().expect("a descriptor");
    let cached = |n: u64| set(&format!("key{}", n % 20_000), 600 + (n % 8 * 64) as usize);
    for batch in 0..40 {
        let all: Vec<u8> = (batch * 1000..(batch + 1) * 1000).flat_map(cached).collect();
        client.write_all(&all).expect("a server");
        let mut ok = [0; 5000];
        answers.read_exact(&mut ok).expect("5 bytes for each");
    }
    std::thread::spawn(move || std::io::copy(&mut answers, &mut std::io::sink()));
    std::thread::spawn(move || {
        let start = Instant::now();
        for n in 0u64.. {
            while u128::from(n) >= start.elapsed().as_millis() {
                std::thread::sleep(Duration::from_millis(1));
            }
            let leak = if leaks { set(&format!("more{n}"), 2990) } else { Vec::new() };
            if client.write_all(&[cached(n * 7919), leak].concat()).is_err() {
                return; // the server was ended
            }
        }
    });
    Program { name, target, leak: if leaks { 3000 } else { 0 }, says_ready: false }
}

#[test]
fn leaks_of_other_languages_are_found_beside_their_caches() {
    let scene = Scene::new("languages");
    let mut programs = Vec::new();
    for (name, command, leak) in commands(&scene) {
        for (what, leak) in [("none", 0), ("own", leak)] {
            let mut c = Command::new(command.get_program());
            // PHP's own allocator takes its memory from the kernel.
            c.env("USE_ZEND_ALLOC", "0").args(command.get_args()).args(["random", what]);
            programs.push(program_of(format!("{name} {what}"), c, leak));
        }
    }
    if installed("redis-server") {
        programs.extend([false, true].map(|leaks| redis(&scene, leaks)));
    } else {
        skip(LANGUAGES, "no redis-server");
    }
    run(&scene, programs);
}
