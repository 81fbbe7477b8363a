//! Names of processes in prof's messages.

use common::build::program;
use common::{Scene, Target, skip, until};
use nix::unistd::geteuid;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt;
use std::process::Command;

/// Starts a program under another name.
fn named(scene: &Scene, name: &OsStr) -> Target {
    let path = scene.dir.join(name);
    std::fs::copy(program("toggle.c"), &path).expect("copy");
    Target::start(&path, &[])
}

#[test]
fn a_process_can_not_forge_lines_of_prof() {
    let scene = Scene::new("names");
    for (name, shown) in [("w\x1b[31mR\n(x", "(w\\u{1b}[31mR\\n(x)"), ("a \t b", "(a \\t b)")] {
        let mut target = named(&scene, OsStr::new(name));
        let pid = target.pid.to_string();
        scene.attach(&target);
        let twice = scene.prof(&["attach", &pid]);
        for (what, text) in [
            ("status", scene.prof(&["status", &pid]).ok("status").stdout),
            ("status of all", scene.prof(&["status"]).stdout),
            ("attach", twice.stderr),
        ] {
            let forged = text.lines().any(|l| l.starts_with("(x") || l.contains(['\t', '\x1b']));
            assert!(!forged, "{what}: {text}");
            assert!(what == "attach" || text.contains(shown), "{what}: {text}");
        }
        scene.detach(&target);
        let doctor = scene.prof(&["doctor", &pid]).stdout;
        assert!(!doctor.lines().any(|l| l.starts_with("(x")), "{doctor}");
        target.quit();
    }
    // A name that is not UTF-8 is still shown.
    let mut target = named(&scene, &OsString::from_vec(b"bad\xff\xfe".to_vec()));
    scene.attach(&target);
    target.ask("alloc 1");
    until("the block is in the recording", || {
        let status = scene.prof(&["status", &target.pid.to_string()]).ok("status").stdout;
        assert!(status.contains("(bad\u{fffd}\u{fffd}): recording"), "{status}");
        status.contains(" in 1 block\n")
    });
    scene.detach(&target);
    target.quit();
}

#[test]
fn a_process_that_may_have_no_more_mappings() {
    let scene = Scene::new("mappings");
    let mut target = Target::start(&program("mappings.c"), &[]);
    let most = std::fs::read_to_string("/proc/sys/vm/max_map_count").expect("the limit");
    if most.trim().parse::<u64>().expect("a number") > 1 << 18 {
        return skip("a_process_that_may_have_no_more_mappings", "vm.max_map_count is too high");
    }
    let pid = target.pid.to_string();
    let out = scene.prof(&["attach", &pid]);
    assert_eq!(out.code, 3, "{out:?}");
    for word in ["mappings", most.trim(), "sysctl vm.max_map_count=", &pid] {
        assert!(out.stderr.contains(word), "no {word}: {out:?}");
    }
    assert!(!target.proc("maps").contains("prof-ring"));
    target.kill();
}

#[test]
fn a_process_that_has_changed_its_user_is_called_so() {
    if !geteuid().is_root() || !common::installed("setpriv") {
        return skip("a_process_that_has_changed_its_user", "needs root and setpriv");
    }
    let scene = Scene::new("dumpable");
    let prof = scene.path("prof");
    std::fs::copy(Scene::binary(), &prof).expect("copy");
    let as_nobody = |arguments: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).args(arguments);
        command
    };
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(&scene.dir, mode).expect("mode");
    let mut target = Target::start(&program("drops.c"), &[]);
    let pid = target.pid.to_string();
    let out = scene.run(as_nobody(&[prof.to_str().expect("UTF-8"), "attach", &pid]));
    assert_eq!(out.code, 3, "{out:?}");
    assert!(out.stderr.contains("not dumpable"), "{out:?}");
    assert!(!out.stderr.contains("another user namespace"), "{out:?}");
    target.quit();
    std::fs::remove_file(&prof).expect("remove");
}
