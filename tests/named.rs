//! Functions that the user names may do what malloc does not: throw, be left by a thread's cancellation or a jump, take
//! arguments on the stack, and preserve registers that their callers rely on.

use common::build::program_with;
use common::snapshot::Snapshot;
use common::{Scene, Target, until};
use nix::sys::signal::Signal;

fn start(flags: &[&str]) -> (Target, Vec<String>) {
    let program = program_with("thrown.cpp", flags);
    let name = program.file_name().unwrap().to_str().unwrap().to_owned();
    let options = [
        format!("--alloc-fn={name}:pool_new(1)"),
        format!("--alloc-fn={name}:pool_jump(1)"),
        format!("--alloc-fn={name}:pool_many(2)"),
        format!("--alloc-fn={name}:pool_wait(1)"),
        format!("--alloc-fn={name}:quiet_alloc(1)"),
        format!("--realloc-fn={name}:pool_grow(1,2)"),
        format!("--free-fn={name}:pool_put(1)"),
    ];
    (Target::start(&program, &[]), options.to_vec())
}

#[test]
fn exceptions_cancellation_and_jumps_pass_through_named_functions() {
    for flags in [&["-O2"][..], &["-O2", "-static"]] {
        let is_static = flags.contains(&"-static");
        if is_static && common::is_refused_by_dlopen("named", "a static program has no linker") {
            continue;
        }
        let scene = Scene::new("named");
        let (mut target, options) = start(flags);
        // A cancelled thread may still be ending when this is answered; the next command gives it time.
        let commands = ["go", "cancel", "registers"];
        let answers = commands.map(|c| target.ask(c));
        assert_eq!(answers[0], "done 200 caught 50 jumped 300 destroyed");
        assert_eq!(answers[1], "done cancelled 1");
        let before = Snapshot::of(&target);
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let file = scene.path("named.prof");
        let output = ["-o", file.to_str().unwrap()];
        for way in
            [&[][..], &["--free-stacks", "--verify-stacks"], &["--paused"], &["--sample-rate=3"]]
        {
            let pid = target.pid.to_string();
            let args = [&["attach", &pid], &options[..], way, &output].concat();
            let out = scene.prof(&args).ok("prof attach");
            assert!(!out.stderr.contains("exception"), "{out:?}");
            for (command, answer) in commands.iter().zip(&answers) {
                assert_eq!(target.ask(command), *answer, "{way:?}");
            }
            scene.detach(&target);
            for (command, answer) in commands.iter().zip(&answers) {
                assert_eq!(target.ask(command), *answer, "after the detach");
            }
            let r = scene.finished(&file);
            assert_eq!(r.number("/recording/lost_events"), 0, "{way:?}");
            if way.len() != 1 {
                // A call that was left by an exception is no allocation, and does not hide later ones.
                let calls = |f: &str| -> u64 {
                    r.asked_by(f).iter().map(|g| g.number("allocations")).sum()
                };
                assert_eq!(calls("catches"), 100, "{}", r.askers());
                assert_eq!(calls("registers") + calls("call_quiet"), 200, "{}", r.askers());
                assert_eq!(calls("main"), 100, "{}", r.askers());
            }
            std::fs::remove_file(&file).unwrap();
        }
        before.assert_same(&Snapshot::of(&target));
        target.quit();
    }
}

/// Moving a call puts its return address into code that the program's unwinder does not know.
#[test]
fn an_exception_out_of_the_first_instructions_of_a_named_function_is_caught() {
    let scene = Scene::new("named-calls");
    let (mut target, mut options) = start(&["-O2"]);
    let name = options[0].trim_start_matches("--alloc-fn=").split(':').next().expect("a name");
    options.push(format!("--alloc-fn={name}:pool_calls(1)"));
    let pid = target.pid.to_string();
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let file = scene.path("calls.prof");
    let output = ["-o", file.to_str().expect("UTF-8")];
    let out = scene.prof(&[&["attach", &pid], &options[..], &output].concat()).ok("prof attach");
    let refused = out.stderr.contains("pool_calls") && out.stderr.contains("begins with a call");
    assert_eq!(refused, cfg!(target_arch = "x86_64"), "{out:?}");
    assert_eq!(target.ask("calls"), "done caught 25");
    scene.detach(&target);
    assert_eq!(target.ask("calls"), "done caught 25");
    target.quit();
}

#[test]
fn a_detach_waits_for_a_thread_inside_of_a_named_function() {
    let scene = Scene::new("named-wait");
    let (mut target, options) = start(&["-O2"]);
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    target.ask("go");
    let before = Snapshot::of(&target);
    let recording = scene.attach_with(&target, &options);
    target.send("wait");
    target.expect("waiting");
    let pid = target.pid.to_string();
    // An emulated machine takes long to stop a thread.
    let timeout = if cfg!(target_arch = "x86_64") { "300ms" } else { "10s" };
    let out = scene.prof(&["detach", &pid, "--timeout", timeout]);
    assert!(out.code != 0 && out.stderr.contains("still inside"), "{out:?}");
    target.send("");
    target.expect("done waiting");
    scene.prof(&["detach", &pid]).ok("the second detach");
    target.ask("go");
    before.assert_same(&Snapshot::of(&target));
    target.quit();
    scene.finished(&recording);
}

/// The recording is complete then: that is no failure.
#[test]
fn a_process_that_ends_in_the_midst_of_a_detach_is_finished_like_any() {
    let scene = Scene::new("named-end");
    let (mut target, options) = start(&["-O2"]);
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let recording = scene.attach_with(&target, &options);
    target.ask("go");
    target.send("wait");
    target.expect("waiting");
    let pid = target.pid.to_string();
    let out = std::thread::scope(|scope| {
        let detach = scope.spawn(|| scene.prof(&["detach", &pid]));
        until("the detach waits for the thread inside", || {
            detach.is_finished()
                || scene.prof(&["status", &pid]).stdout.contains("being detached from")
        });
        target.signal(Signal::SIGKILL);
        detach.join().expect("the detach")
    });
    assert_eq!(out.code, 0, "{out:?}");
    assert!(out.stderr.contains("has ended by itself while prof was taken out of it"), "{out:?}");
    assert!(!out.stderr.contains("as it was before"), "{out:?}");
    assert_eq!(scene.path(out.stdout.trim_end()), recording);
    // A detach that comes later finds a process that is gone.
    assert_eq!(target.wait(), 128 + 9);
    assert_eq!(scene.prof(&["detach", &pid]).code, 3);
    scene.finished(&recording);
}

/// Wherever in the hook the jump began, the thread's later calls are recorded, and no event is damaged.
// The entries of other architectures are not tested in this way.
#[cfg(target_arch = "x86_64")]
#[test]
fn a_thread_whose_handler_has_left_the_hook_by_a_jump_is_recorded_on() {
    let scene = Scene::new("leaves");
    let program = common::build::program("leaves.c");
    let name = program.file_name().unwrap().to_str().unwrap().to_owned();
    let (alloc, free) =
        (format!("--alloc-fn={name}:pool_get(1)"), format!("--free-fn={name}:pool_put(1)"));
    let mut target = Target::start(&program, &[]);
    let recording = scene.attach_with(&target, &[&alloc, &free]);
    const ROUNDS: u64 = 3;
    for _ in 0..ROUNDS {
        target.ask("jump");
        target.ask("calls");
    }
    scene.detach(&target);
    target.ask("jump");
    target.quit();
    let r = scene.finished(&recording);
    assert!(!r.at("/recording/notes").to_string().contains("damaged"), "{:#}", r.brief());
    for function in ["deeper_call", "deep_call", "shallow_call"] {
        let calls: u64 = r.asked_by(function).iter().map(|g| g.number("allocations")).sum();
        assert_eq!(calls, ROUNDS * 100, "{function}: {}", r.askers());
    }
    // Most jumps begin in the hook, and many calls are made between two of them.
    assert!(r.total("allocations") > 20 * 200 * ROUNDS, "{:#}", r.brief());
}

/// Functions that prof only watches keep their hooks where there is no room for all functions of the allocators.
#[test]
fn more_functions_than_prof_can_hook_leave_the_linkers_hook_in_place() {
    let scene = Scene::new("many");
    let program = program_with("many.c", &["-O1"]);
    let name = program.file_name().expect("a name").to_str().expect("UTF-8").to_owned();
    let mut target = Target::start(&program, &[]);
    let named: Vec<String> =
        (0..150).map(|n| format!("--alloc-fn={name}:take_{n:03}(1)")).collect();
    let (pid, file) = (target.pid.to_string(), scene.path("many.prof"));
    let mut args = vec!["attach", &pid, "-o", file.to_str().expect("UTF-8")];
    args.extend(named.iter().map(String::as_str));
    let out = scene.prof(&args).ok("prof attach");
    assert!(out.stderr.contains("prof hooks at most 128 functions"), "{out:?}");
    assert!(!out.stderr.contains("_dl_debug_state"), "{out:?}");
    target.ask("go");
    scene.detach(&target);
    target.ask("go");
    target.quit();
    let taken = scene.finished(&file).total("allocations");
    assert!((110..128).contains(&taken), "{taken} of the 150 functions are hooked");
}

/// Recordings do not have the blocks that a named function allocates and frees inside.
#[test]
fn nothing_is_proved_where_functions_are_named() {
    let scene = Scene::new("named_unproved");
    let (mut target, options) = start(&["-O2"]);
    let pid = target.pid.to_string();
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    scene.attach_with(&target, &options);
    for args in [&["reach", &pid][..], &["leaks", &pid, "--prove"]] {
        let out = scene.prof(args);
        assert_eq!(out.code, 3, "{out:?}");
        assert!(out.stderr.contains("named as an allocator's (pool_"), "{out:?}");
    }
    scene.prof(&["holds", &pid]).ok("prof holds");
    scene.detach(&target);
    scene.attach(&target);
    scene.prof(&["reach", &pid]).ok("prof reach");
    scene.detach(&target);
    target.quit();
}
