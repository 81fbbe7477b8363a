//! `prof run --prove`: what nothing points to when a program ends, in every way in which one does.

use common::Scene;
use common::build::program_with;

fn flags() -> [&'static str; 2] {
    ["-O1", "-pthread"]
}

#[test]
fn the_lost_blocks_are_known_however_the_program_ends() {
    let scene = Scene::new("proved");
    let program = program_with("ends.c", &flags());
    let program = program.to_str().expect("a path");
    let ways = [
        ("return", 0),
        ("exit", 4),
        ("_exit", 3),
        ("abort", 128 + libc::SIGABRT),
        ("signal", 128 + libc::SIGTERM),
        ("first", 0),
        ("thread", 5),
        ("exec", 0),
    ];
    for threads in [false, true] {
        for (how, code) in ways.iter().filter(|(how, _)| !(threads && *how == "first")) {
            let recording = scene.path("ends.prof");
            let recording = recording.to_str().expect("a path");
            let mut args = vec!["run", "--prove", "-o", recording, "--", program, how];
            args.extend(threads.then_some("threads"));
            let out = scene.prof(&args);
            let what = format!("{how}, threads: {threads}: {out:?}");
            assert_eq!(out.code, *code, "{what}");
            let text = &out.stdout;
            assert!(text.contains("[700 B in 7 blocks]") && text.contains("lost_plain"), "{what}");
            // Of a thread that has ended all of the stack counts, with what calls have left there: it may hold the ring.
            if *how != "first" {
                assert_eq!(text.matches("=== unreachable #").count(), 3, "{what}");
                let ring = text.matches("[48 B in 1 block] [indirect: 48 B in 1]").count();
                assert_eq!(ring, 2, "{what}");
            }
            assert!(text.contains("all threads stopped"), "{what}");
            let _ = std::fs::remove_file(recording);
        }
    }
}

/// Nothing holds a process whose last thread ends by the system call `exit`: it has no `exit_group` to stop at.
#[test]
fn a_last_thread_that_ends_alone_is_named_as_the_cause_that_nothing_is_proved() {
    let scene = Scene::new("proved_alone");
    let program = program_with("ends.c", &flags());
    let program = program.to_str().expect("a path");
    for (limit, code) in [(&[][..], 0), (&["--fail-if", "unreachable > 0"], 1)] {
        let args = [&["run", "--prove"], limit, &["--", program, "alone"]].concat();
        let out = scene.prof(&args);
        assert_eq!(out.code, code, "{out:?}");
        let says = "nothing is proved of the command's memory: the command was not held at its end: it was killed, its last \
                    thread ended by the system call exit rather than exit_group";
        assert!(out.stderr.contains(says), "{out:?}");
        assert!(!out.stdout.contains("unreachable #"), "{out:?}");
    }
}

#[test]
fn limits_and_suppressions_decide_the_exit_code() {
    let scene = Scene::new("proved_limits");
    let program = program_with("ends.c", &flags());
    let program = program.to_str().expect("a path");
    let list = scene.path("list");
    std::fs::write(&list, "leak:lost_\n").expect("a list");
    let list = list.to_str().expect("a path");
    let fail = ["run", "--prove", "--fail-if", "unreachable > 0"];
    let run = |more: &[&str], how: &str| {
        let args: Vec<&str> =
            fail.iter().chain(more).copied().chain(["--", program, how]).collect();
        scene.prof(&args)
    };
    let over = run(&[], "return");
    assert!(over.code == 1 && over.stderr.contains("more than 0 B"), "{over:?}");
    // The command's own failure is not hidden.
    assert_eq!(run(&[], "exit").code, 4);
    let none = run(&["--suppressions", list], "return");
    assert!(none.code == 0 && none.stdout.contains("suppressed: "), "{none:?}");
    let wrong = scene.prof(&["run", "--fail-if", "unreachable", "--", program]);
    assert!(wrong.code == 2 && wrong.stderr.contains("--prove"), "{wrong:?}");
}
