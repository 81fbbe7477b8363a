//! Families: several processes that are recorded together, to a folder.

use common::build::program;
use common::{Scene, Target};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Starts a program that has three children.
fn prefork() -> (Target, Vec<i32>) {
    let mut target = Target::start(&program("prefork.c"), &[]);
    let fork = |target: &mut Target| target.ask("fork")["done ".len()..].trim().parse();
    let children = (0..3).map(|_| fork(&mut target).expect("a pid")).collect();
    (target, children)
}

/// Returns the recordings in a folder, with the process of each.
fn recordings(folder: &Path) -> Vec<(i32, PathBuf)> {
    let files = std::fs::read_dir(folder).expect("a folder").flatten().map(|f| f.path());
    let pid = |p: &PathBuf| p.file_name()?.to_str()?.split('.').nth(1)?.parse().ok();
    let recordings = files.filter(|p| p.extension().is_some_and(|x| x == "prof"));
    let mut all: Vec<(i32, PathBuf)> = recordings.filter_map(|p| Some((pid(&p)?, p))).collect();
    all.sort();
    all
}

/// Returns the events of a journal with the processes that they are about.
fn journal(folder: &Path) -> Vec<(String, i64, Value)> {
    let text = std::fs::read_to_string(folder.join("family.jsonl")).expect("a journal");
    let line = |l: &str| {
        let v: Value = serde_json::from_str(l).expect("JSON");
        (v["event"].as_str().expect("an event").to_owned(), v["pid"].as_i64().unwrap_or(0), v)
    };
    text.lines().map(line).collect()
}

#[test]
fn all_of_a_tree_are_recorded_and_one_that_cannot_be_keeps_no_other_out() {
    let scene = Scene::new("tree");
    let (mut target, children) = prefork();
    // A process has one tracer, so prof can't attach to this one.
    let traced = nix::unistd::Pid::from_raw(children[1]);
    nix::sys::ptrace::seize(traced, nix::sys::ptrace::Options::empty()).expect("traced");
    let root = target.pid.to_string();
    let out = scene.prof(&["attach", "--tree", &root, "-o", "all"]);
    assert_eq!(out.code, 1, "{out:#?}");
    assert!(out.stderr.contains("3 processes are recorded, 1 could not be"), "{out:#?}");
    assert_eq!(out.stdout, "all\n");
    let folder = scene.path("all");
    let pids: Vec<i32> = recordings(&folder).into_iter().map(|r| r.0).collect();
    let mut wanted = vec![target.pid, children[0], children[2]];
    wanted.sort_unstable();
    assert_eq!(pids, wanted);
    let failed: Vec<_> = journal(&folder).into_iter().filter(|l| l.0 == "failed").collect();
    assert_eq!(failed.len(), 1);
    assert_eq!(failed[0].1, i64::from(children[1]));
    assert!(failed[0].2["reason"].as_str().is_some_and(|r| r.contains("traced")), "{failed:?}");
    let states = || {
        let status = scene.prof(&["status", "all", "--format", "json"]).ok("status").stdout;
        let status: Value = serde_json::from_str(&status).expect("JSON");
        let all = status["recorded"].as_array().cloned().unwrap_or_default();
        all.iter().map(|s| s["state"].as_str().unwrap_or_default().to_owned()).collect::<Vec<_>>()
    };
    scene.prof(&["pause", "all"]).ok("pause");
    assert_eq!(states(), ["paused"; 3]);
    scene.prof(&["resume", "all"]).ok("resume");
    assert_eq!(states(), ["recording"; 3]);
    let out = scene.prof(&["detach", "all"]).ok("detach");
    assert_eq!(out.stdout.lines().count(), 3, "{out:#?}");
    assert_eq!(out.stderr.matches("the process is as it was before").count(), 3, "{out:#?}");
    assert!(!out.stderr.contains("keep"), "those children are recorded themselves: {out:#?}");
    assert_eq!(scene.prof(&["detach", "all"]).code, 3);
    let again = scene.prof(&["attach", "--tree", &root, "-o", "all"]);
    assert!(again.code == 2 && again.stderr.contains("recording to it has ended"), "{again:?}");
    for (_, path) in recordings(&folder) {
        scene.finished(&path).assert_sound();
    }
    nix::sys::ptrace::detach(traced, None).ok();
    target.kill();
}

#[test]
fn processes_are_found_by_their_name_and_are_one_recording() {
    let scene = Scene::new("named");
    // A name of its own, which no other test's processes have.
    let name = format!("fam-{}", std::process::id());
    std::fs::copy(program("counts.c"), scene.path(&name)).expect("copied");
    // Their code is at different addresses.
    let start = || Target::start(&scene.path(&name), &[]);
    let (mut a, mut b) = (start(), start());
    let out = scene.prof(&["attach", "--name", &name]).ok("attach");
    let folder = scene.path(out.stdout.trim());
    assert!(folder.to_string_lossy().contains(&format!("prof.{name}.")), "{out:#?}");
    let mut pids = vec![a.pid, b.pid];
    pids.sort_unstable();
    assert_eq!(recordings(&folder).into_iter().map(|r| r.0).collect::<Vec<_>>(), pids);
    let again = scene.prof(&["attach", "--name", &name]);
    assert_eq!(again.code, 3, "all are recorded already: {again:#?}");
    a.ask("go");
    b.ask("go");
    scene.prof(&["detach", "--name", &name]).ok("detach");
    a.kill();
    b.kill();
    let one = |pid: i32| scene.report_with(&folder, &["--pid", &pid.to_string()]);
    let (all, parts) = (scene.report(&folder), [one(a.pid), one(b.pid)]);
    for figure in ["allocations", "frees", "reallocations", "allocated_bytes", "live_bytes"] {
        let figure = format!("/totals/{figure}");
        let sum: u64 = parts.iter().map(|r| r.number(&figure)).sum();
        assert_eq!(all.number(&figure), sum, "{figure}");
        assert!(sum > 0, "{figure}");
    }
    assert_eq!(
        all.number("/recording/events"),
        parts.iter().map(|r| r.number("/recording/events")).sum::<u64>()
    );
    // Stacks of the same code are the same stack.
    assert_eq!(all.number("/totals/groups"), parts[0].number("/totals/groups"));
    parts[0].marked("counts.c", "plain").assert_live(500, 50_000);
    all.marked("counts.c", "plain").assert_live(1000, 100_000);
    let folder = folder.to_str().expect("UTF-8");
    let table = scene.prof(&["report", folder, "--by-process"]).ok("by process").stdout;
    assert_eq!(table.lines().count(), 3, "{table}");
    let diff = scene.prof(&["diff", folder, folder]).ok("diff").stdout;
    assert!(diff.contains("+0 B live in +0 blocks"), "{diff}");
    scene.prof(&["leaks", folder]).ok("leaks");
    scene.prof(&["leaks", folder, "--by-process"]).ok("leaks");
    for format in ["folded", "json", "html"] {
        scene.prof(&["export", format, folder]).ok("export");
    }
    // Users know the recording as the folder, and not as the file that was joined.
    let code = "println(data().path()); data()";
    let said = scene.prof(&["script", "-d", folder, "-e", code]).ok("script");
    let path = std::fs::canonicalize(folder).expect("there").display().to_string();
    assert_eq!(said.stdout, format!("{path}\nData ({path})\n"), "{said:#?}");
    let no_scan = scene.prof(&["script", "-d", folder, "-e", "scan(1)"]);
    assert!(no_scan.stderr.contains(&format!("{path} has no scan")), "{no_scan:#?}");
    let mappings = |more: &[&str]| {
        let args = [&["script", "-d", folder, "-e", "maps().len() > 0"], more].concat();
        scene.prof(&args).ok("script")
    };
    let none = mappings(&[]);
    assert_eq!(none.stdout, "false\n", "{none:#?}");
    assert!(none.stderr.contains("several processes; `prof script --pid PID`"), "{none:#?}");
    assert_eq!(mappings(&["--pid", &pids[0].to_string()]).stdout, "true\n");
    let maps = scene.prof(&["maps", folder]);
    assert_eq!(maps.code, 2, "{maps:#?}");
    assert!(maps.stderr.contains("--pid"), "{maps:#?}");
    scene.prof(&["maps", folder, "--pid", &pids[0].to_string()]).ok("maps");
    each_by_itself(&scene, folder, &pids, all.total("live_bytes"));
}

/// Checks `--by-process` of the commands that write files, run a script, compare, or show scans.
fn each_by_itself(scene: &Scene, folder: &str, pids: &[i32], live: u64) {
    for (command, more) in [("strip", &["--threshold", "1ms"][..]), ("pack", &[])] {
        let to = scene.path(&format!("{command}.{{pid}}.prof"));
        let to = to.to_str().expect("UTF-8");
        let args = [&[command, folder, "--by-process", "-o", to], more].concat();
        scene.prof(&args).ok(command);
        let files = pids.iter().map(|pid| scene.path(&format!("{command}.{pid}.prof")));
        let sum: u64 = files.map(|file| scene.report(&file).total("live_bytes")).sum();
        assert_eq!(sum, live, "{command}");
        let without = scene.prof(&[command, folder, "--by-process", "-o", "x.prof"]);
        assert!(without.code == 2 && without.stderr.contains("{pid}"), "{without:#?}");
    }
    let (pid, one) = (pids[1].to_string(), scene.path("one.prof"));
    let to = one.to_str().expect("UTF-8");
    scene.prof(&["pack", folder, "--pid", &pid, "-o", to]).ok("pack");
    assert_eq!(scene.report(&one).number("/target/pid"), pids[1] as u64);
    let code = "println(data().path())";
    let said = scene.prof(&["script", "--data", folder, "--by-process", "-e", code]).ok("script");
    for pid in pids {
        assert!(said.stdout.contains(&format!("pid {pid} #####\n")), "{said:#?}");
        assert!(said.stdout.contains(&format!(".{pid}.prof\n")), "{said:#?}");
    }
    // With themselves, and one that the second family does not have.
    let diff = |more: &[&str]| {
        let args = [&["diff", folder, folder, "--by-process"], more].concat();
        scene.prof(&args).ok("diff").stdout
    };
    let text = diff(&["--top", "1"]);
    assert!(text.contains("+0 B") && text.contains("and 1 process more"), "{text}");
    let all: Value = serde_json::from_str(&diff(&["--format", "json"])).expect("JSON");
    let all = all.as_array().expect("processes");
    assert_eq!(all.len(), pids.len());
    for one in all {
        assert!(one["pids"][0] == one["pids"][1] && one["live_bytes"][0] == one["live_bytes"][1]);
    }
    let none = scene.prof(&["holds", folder, "--by-process"]);
    assert!(none.code == 2 && none.stderr.contains("no process of the family has a scan"));
}

#[test]
fn copies_of_memory_are_no_members_of_the_family() {
    let scene = Scene::new("copies");
    let (mut target, _children) = prefork();
    let pid = target.pid.to_string();
    scene.prof(&["attach", "--children", &pid, "-o", "all"]).ok("attach");
    let folder = scene.path("all");
    for _ in 0..5 {
        scene.prof(&["heap", "--snapshot", "fork", &pid]).ok("heap");
        scene.prof(&["reach", "--snapshot", "fork", &pid]).ok("reach");
    }
    // A child that is forked after these copies is recorded none the less.
    let late: i64 = target.ask("fork")["done ".len()..].trim().parse().expect("a pid");
    common::until("the new child is recorded", || {
        journal(&folder).iter().any(|l| l.0 == "attached" && l.1 == late)
    });
    scene.prof(&["detach", "all"]).ok("detach");
    target.quit();
    let of_others: Vec<_> =
        journal(&folder).into_iter().filter(|l| ["missed", "failed"].contains(&&*l.0)).collect();
    assert!(of_others.is_empty(), "{of_others:#?}");
}

#[test]
fn a_family_without_processes_is_none() {
    let scene = Scene::new("nobody");
    let none = scene.prof(&["attach", "--name", "no-such-name"]);
    assert_eq!(none.code, 3, "{none:#?}");
    assert_eq!(std::fs::read_dir(&scene.dir).expect("a folder").count(), 0);
}

#[test]
fn children_to_come_are_recorded_and_what_becomes_of_them_is_noted() {
    let scene = Scene::new("follow");
    let script = "read l; sleep 60 & echo $!; read l; kill $!; wait $!; (exit 3); read l; exit 7";
    let mut command = std::process::Command::new("sh");
    command.args(["-c", script]);
    let mut target = Target::spawn(command);
    let out = scene.prof(&["attach", "--children", &target.pid.to_string(), "-o", "all"]);
    assert_eq!(out.code, 0, "{out:#?}");
    let folder = scene.path("all");
    target.send("go");
    let child: i32 = target.line().parse().expect("a pid");
    let has = |event: &str, pid: i32| {
        journal(&folder).into_iter().find(|l| l.0 == event && l.1 == i64::from(pid)).map(|l| l.2)
    };
    common::until("the child is recorded", || has("attached", child).is_some());
    target.send("go");
    common::until("its end is noted", || has("exited", child).is_some());
    target.send("go");
    assert_eq!(target.wait(), 7, "it ends as it would alone");
    common::until("the supervisor ends with the tree", || {
        journal(&folder).iter().any(|l| l.0 == "ended")
    });
    let pids: Vec<i32> = recordings(&folder).into_iter().map(|r| r.0).collect();
    assert!(pids.contains(&target.pid) && pids.contains(&child), "{pids:?}");
    // The subshell is recorded, or its loss is told.
    let subshell = journal(&folder).iter().any(|l| {
        let other = l.1 != 0 && l.1 != i64::from(child) && l.1 != i64::from(target.pid);
        other && ["attached", "missed"].contains(&l.0.as_str())
    });
    let by_events = journal(&folder).iter().any(|l| l.2["by"] == "connector");
    assert!(subshell || !by_events);
}

#[test]
fn a_detach_ends_the_supervisor_too() {
    let scene = Scene::new("unfollow");
    let (mut target, _children) = prefork();
    let root = target.pid.to_string();
    scene.prof(&["attach", "--tree", &root, "--follow", "-o", "all"]).ok("attach");
    let late: i32 = target.ask("fork")["done ".len()..].trim().parse().expect("a pid");
    let folder = scene.path("all");
    let is_recorded = || recordings(&folder).iter().any(|r| r.0 == late);
    common::until("the new child is recorded", || {
        is_recorded()
            && journal(&folder).iter().any(|l| l.0 == "attached" && l.1 == i64::from(late))
    });
    let status = scene.prof(&["status", "all"]).ok("status").stdout;
    assert!(status.contains("new processes are recorded, too"), "{status}");
    let out = scene.prof(&["detach", "all"]).ok("detach");
    assert_eq!(out.stderr.matches("the process is as it was before").count(), 5, "{out:#?}");
    assert!(journal(&folder).iter().any(|l| l.0 == "ended"));
    target.kill();
}

#[test]
fn what_a_command_starts_is_recorded_and_not_disturbed() {
    let scene = Scene::new("run-children");
    let script =
        "sleep 0.7 & wait; (exit 3); echo $?; for i in 1 2 3 4; do /bin/echo $i; done; exit 7";
    let plain = {
        let mut command = std::process::Command::new("sh");
        command.args(["-c", script]);
        scene.run(command)
    };
    let out = scene.prof(&["run", "--children", "-o", "all", "--", "sh", "-c", script]);
    assert_eq!((out.code, &out.stdout), (7, &plain.stdout), "{out:#?}");
    let folder = scene.path("all");
    let all = journal(&folder);
    let sleep = all.iter().find(|l| l.0 == "attached" && l.2["comm"] == "sleep");
    assert!(sleep.is_some(), "{all:#?}");
    if all.iter().any(|l| l.2["by"] == "connector") {
        // The shell, sleep, a subshell, four times echo; dash runs neither of them itself.
        let begun = all.iter().filter(|l| ["attached", "missed"].contains(&l.0.as_str()));
        let pids: std::collections::BTreeSet<i64> = begun.map(|l| l.1).collect();
        assert_eq!(pids.len(), 7, "{all:#?}");
    }
    let pid = sleep.map(|l| l.1).unwrap_or_default().to_string();
    scene.report_with(&folder, &["--pid", &pid]);
    scene.finished(&folder.join("command.prof")).assert_sound();
}

#[test]
fn a_run_says_that_its_supervisor_was_killed() {
    let scene = Scene::new("run-killed");
    let script = r#"
        until pid=$(sed -n 's/.*"supervisor":\[\([0-9]*\).*/\1/p' all/family.jsonl) && [ "$pid" ]
        do sleep 0.05
        done
        kill -9 $pid
        exit 5"#;
    let out = scene.prof(&["run", "--children", "-o", "all", "--", "sh", "-c", script]);
    assert_eq!(out.code, 5, "{out:#?}");
    let said = "was killed: those that began since are neither recorded nor counted";
    assert!(out.stderr.contains(said), "{out:#?}");
    scene.finished(&scene.path("all").join("command.prof")).assert_sound();
}

#[test]
fn a_storm_of_short_processes_is_counted_and_not_disturbed() {
    const MANY: usize = 1000;
    let scene = Scene::new("storm");
    let storm = program("storm.c");
    let [storm, many] = [storm.to_str().expect("UTF-8"), &MANY.to_string()];
    let out = scene.prof(&["run", "--children", "-o", "all", "--", storm, many]);
    assert_eq!((out.code, &*out.stdout), (0, &*format!("{MANY} processes, 0 wrong\n")), "{out:#?}");
    let all = journal(&scene.path("all"));
    let failed: Vec<_> = all.iter().filter(|l| l.0 == "failed").collect();
    assert!(failed.is_empty(), "{failed:#?}");
    if all.iter().any(|l| l.2["by"] == "connector") && !all.iter().any(|l| l.0 == "overrun") {
        let begun = all.iter().filter(|l| ["attached", "missed"].contains(&l.0.as_str()));
        let pids: std::collections::BTreeSet<i64> = begun.map(|l| l.1).collect();
        assert_eq!(pids.len(), MANY + 1, "with the first one: {out:#?}");
    }
    scene.finished(&scene.path("all").join("command.prof")).assert_sound();
}
