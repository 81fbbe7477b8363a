//! Threads that a signal has interrupted in the first instructions of an allocator function, or in prof's own code, and
//! that stay in the handler, below a large frame. An attach, and a detach, must notice them.
#![cfg(target_arch = "x86_64")] // elsewhere a patch is one instruction, which no thread is ever inside of

use common::build::program_with;
use common::{Scene, Target};

/// Size in KiB of a frame that is larger than the part of a stack that is searched word by word.
const LARGE: u64 = 600;

/// With unwind tables, and without: then stacks can't be unwound.
const FLAGS: [&[&str]; 2] = [&["-O1"], &["-O1", "-fno-asynchronous-unwind-tables"]];

#[test]
fn an_attach_sees_frames_far_above_that_return_into_patched_bytes() {
    {
        let scene = Scene::new("far-attach");
        let mut target = Target::start(&program_with("interrupted.c", FLAGS[0]), &[]);
        let pid = target.pid.to_string();
        let mut refused = 0;
        for steps in 1..4 {
            target.send(&format!("step {steps} {LARGE}"));
            target.expect("held");
            let file = format!("{steps}.prof");
            let out = scene.prof(&["attach", &pid, "-o", &file, "--timeout", "1s"]);
            if out.code != 0 {
                assert!(
                    out.stderr.contains("first instructions of ")
                        && !out.stderr.contains("an allocator function"),
                    "{out:?}"
                );
                refused += 1;
            }
            // Refused or not, the call continues where it was.
            target.ask("go");
            if out.code != 0 {
                scene.attach_with(&target, &["-o", &format!("{steps}-later.prof")]);
            }
            target.send("step 0 0");
            target.expect("held");
            target.ask("go");
            scene.detach(&target);
        }
        assert!(refused > 0, "no instruction among the patched bytes was met");
        target.quit();
    }
}

#[test]
fn a_detach_sees_frames_far_above_that_return_into_the_hook() {
    for (i, flags) in FLAGS.into_iter().enumerate() {
        if i == 1 && common::is_refused_by_dlopen("far-detach", "it has no unwind tables") {
            return;
        }
        let scene = Scene::new("far-detach");
        let mut target = Target::start(&program_with("interrupted.c", flags), &[]);
        let pid = target.pid.to_string();
        let mut inside = 0;
        // Along the way: in libc, in the stub, in the hook before it has set its mark, and after that.
        for steps in [2, 4, 12, 40] {
            scene.attach_with(&target, &["-o", &format!("{steps}.prof")]);
            target.send(&format!("step {steps} {LARGE}"));
            target.expect("held");
            let out = scene.prof(&["detach", &pid, "--timeout", "1s"]);
            if out.code != 0 {
                assert!(out.stderr.contains("still inside prof's code"), "{out:?}");
                inside += 1;
            }
            target.ask("go");
            if out.code != 0 {
                scene.detach(&target);
            }
        }
        assert!(inside >= 3, "{flags:?}: {inside}");
        target.quit();
    }
}
