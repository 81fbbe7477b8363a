//! The lines in the system's log: one at the attach, one at the detach, none with `--no-log`.

use common::build::program;
use common::{Output, Scene, Target, installed, skip, until};
use std::os::unix::net::UnixDatagram;
use std::process::Command;

/// Runs prof where `/dev/log` leads to a socket of the test's.
#[track_caller]
fn prof(scene: &Scene, socket: &str, args: &[&str]) -> Output {
    const SETUP: &str = r#"
        set -e
        mkdir -p dev
        mount --rbind /dev dev
        mount -t tmpfs -o mode=755 none /dev
        for f in null zero urandom random full tty; do
            [ -e dev/$f ] || continue
            : > /dev/$f
            mount --bind dev/$f /dev/$f
        done
        mkdir /dev/shm
        ln -s "$1" /dev/log
        shift
        exec "$@"
    "#;
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", SETUP, "sh", socket]).arg(Scene::binary()).args(args);
    command.env("SUDO_USER", "ada\nlovelace");
    scene.run(command)
}

#[test]
fn attach_and_detach_are_logged() {
    let root = nix::unistd::geteuid().is_root();
    if !root || !installed("unshare") {
        return skip("attach_and_detach_are_logged", "needs root and unshare");
    }
    let scene = Scene::new("audit");
    let path = scene.path("log.socket");
    let log = UnixDatagram::bind(&path).expect("a socket");
    log.set_nonblocking(true).expect("non-blocking");
    let path = path.to_str().expect("UTF-8");
    let line = || {
        let mut bytes = vec![0; 4096];
        let n = log.recv(&mut bytes).ok()?;
        Some(String::from_utf8(bytes[..n].to_vec()).expect("UTF-8"))
    };
    let mut target = Target::start(&program("toggle.c"), &[]);
    let pid = target.pid.to_string();
    let name = target.proc("comm");
    let of = format!("process {pid} ({})", name.trim_end());

    prof(&scene, path, &["attach", &pid, "-o", "a.prof"]).ok("attach");
    let message = line().expect("a line at the attach");
    assert!(message.starts_with("<85>prof["), "authpriv, notice: {message}");
    for word in ["uid 0", "sudo by ada?lovelace", "attached to", &of, "malloc", "free", "a.prof"] {
        assert!(message.contains(word), "{word:?} is not in {message:?}");
    }
    assert_eq!(line(), None, "one line");
    prof(&scene, path, &["detach", &pid]).ok("detach");
    let message = line().expect("a line at the detach");
    for word in ["detached from", &of, "malloc", "bytes as before"] {
        assert!(message.contains(word), "{word:?} is not in {message:?}");
    }

    prof(&scene, path, &["attach", &pid, "--no-log", "-o", "b.prof"]).ok("attach");
    prof(&scene, path, &["detach", &pid, "--no-log"]).ok("detach");
    assert_eq!(line(), None, "--no-log");

    // The collector detaches itself.
    prof(&scene, path, &["attach", &pid, "--duration", "1ms", "-o", "c.prof"]).ok("attach");
    assert!(line().expect("a line at the attach").contains("attached to"));
    let mut last = None;
    until("the collector has detached", || {
        last = line().or(last.take());
        last.is_some()
    });
    assert!(last.is_some_and(|l| l.contains("bytes as before")));

    // Without a logger this is silent, unless `-v` is given.
    drop(log);
    until("it is not recorded", || !scene.prof(&["status", &pid]).stderr.is_empty());
    let out = prof(&scene, path, &["attach", &pid, "-o", "d.prof"]).ok("attach");
    assert!(!out.stderr.contains("/dev/log"), "{}", out.stderr);
    let out = prof(&scene, path, &["-v", "detach", &pid]).ok("detach");
    assert!(out.stderr.contains("/dev/log"), "{}", out.stderr);
    target.quit();
}
