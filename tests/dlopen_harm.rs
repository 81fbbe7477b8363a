//! Processes that a call of their dynamic linker's could harm (`--by dlopen`).

use common::build::{program, program_with};
use common::library::{BY_DLOPEN, maps_of_hook, no_mounts, over_folders};
use common::snapshot::Snapshot;
use common::{Scene, Target, until};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::process::Command;

/// A program's handler makes memory accessible, also that of the allocator: the fault is reported to it in the midst of the
/// linker's call.
#[test]
fn a_handler_opens_the_heap() {
    let scene = Scene::new("dlopen-guarded");
    let mut target = Target::start(&program("guarded.c"), &[]);
    target.ask("alloc 10");
    target.ask("protect");
    let opened = |target: &mut Target| -> usize {
        target.ask("opened")["done ".len()..].trim().parse().expect("a number")
    };
    assert_eq!(opened(&mut target), 0);
    let recording = scene.attach_with(&target, &BY_DLOPEN);
    let by_attach = opened(&mut target);
    assert!(by_attach > 0, "the linker allocates");
    target.ask("alloc 10");
    target.ask("protect");
    scene.detach(&target);
    assert!(opened(&mut target) > by_attach, "the linker frees");
    target.ask("alloc 10");
    target.quit();
    scene.finished(&recording).marked("guarded.c", "guarded_block").assert_live(10, 10 * 128);
}

/// The kernel locks all that this process maps, up to a small limit: the library must not count.
#[test]
fn the_library_is_not_locked() {
    let scene = Scene::new("dlopen-locks");
    let mut target = Target::start(&program("neighbours.c"), &["locks"]);
    target.ask("blocks");
    let locked = target.status("VmLck");
    scene.attach_with(&target, &BY_DLOPEN);
    assert!(maps_of_hook(&target) > 0);
    assert_eq!(target.status("VmLck"), locked);
    scene.detach(&target);
    assert_eq!(target.status("VmLck"), locked);
    target.quit();
}

/// The only thread of this process decides which files in its `/tmp` may be opened, so it can't open any there itself.
#[test]
fn a_process_that_is_asked_for_its_own_files_opens_none() {
    if let Some(why) = no_mounts() {
        return common::skip("dlopen-answers", why);
    }
    let scene = Scene::new("dlopen-answers");
    let mut command = over_folders(["exec"; 4], &program("answers.c"));
    command.arg("/tmp");
    let mut target = Target::spawn(command);
    if target.line().contains("unsupported") {
        return common::skip("dlopen-answers", "the kernel has no fanotify with permissions");
    }
    target.ask("alloc 10");
    let before = Snapshot::of(&target);
    let recording = scene.attach_with(&target, &BY_DLOPEN);
    assert!(target.proc("maps").contains(" /memfd:/prof-hook-"), "{}", target.proc("maps"));
    target.ask("alloc 10");
    scene.detach(&target);
    before.assert_same(&Snapshot::of(&target));
    // The mark on its folder works: the kernel asks it when another process opens a file there.
    let inside = format!("/proc/{}/root/tmp/file", target.pid);
    std::fs::write(&inside, "text").expect("a file");
    assert_eq!(std::fs::read(&inside).expect("it permits that"), b"text");
    assert_ne!(target.ask("asked").trim(), "done 0");
    target.quit();
    scene.finished(&recording).marked("answers.c", "answered_block").assert_live(10, 10 * 128);
}

/// Starts a program whose linker says what it does (LD_DEBUG), on a small pipe. Returns it and the pipe's end.
fn talking() -> (Target, File) {
    let (mut from, to) =
        nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC).map(files).expect("a pipe");
    nix::fcntl::fcntl(&from, nix::fcntl::FcntlArg::F_SETPIPE_SZ(4096)).expect("a small pipe");
    let mut command = Command::new(program("toggle.c"));
    command.env("LD_DEBUG", "files").stderr(OwnedFd::from(to));
    let mut target = Target::spawn(command);
    // The linker's first messages are more than the pipe holds.
    let mut some = [0; 512];
    let mut said = Vec::new();
    until("the linker has started the program", || {
        let n = from.read(&mut some).expect("its words");
        said.extend_from_slice(&some[..n]);
        String::from_utf8_lossy(&said).contains("transferring control")
    });
    target.expect("ready");
    target.ask("alloc 10");
    (target, from)
}

fn files((from, to): (OwnedFd, OwnedFd)) -> (File, File) {
    (from.into(), to.into())
}

/// A program whose linker can't write its messages gets no SIGPIPE for that.
#[test]
fn a_linker_without_a_reader_ends_no_program() {
    let scene = Scene::new("dlopen-sigpipe");
    let (mut target, reader) = talking();
    drop(reader);
    let before = Snapshot::of(&target);
    let recording = scene.attach_with(&target, &BY_DLOPEN);
    assert!(maps_of_hook(&target) > 0);
    target.ask("alloc 10");
    scene.detach(&target);
    before.assert_same(&Snapshot::of(&target));
    target.ask("alloc 10");
    // Its own end would say something, too.
    target.kill();
    scene.finished(&recording).marked("toggle.c", "toggled_block").assert_live(10, 10 * 128);
}

/// The linker's calls by prof neither lose nor free what dlerror says of the program's own.
#[test]
fn messages_of_dlerror_stay() {
    let scene = Scene::new("dlopen-message");
    let mut target = Target::start(&program("message.c"), &[]);
    target.ask("fail");
    let said = target.ask("fetch");
    assert!(said.contains("no_such_function"), "{said}");
    for k in 0..3 {
        let file = format!("{k}.prof");
        let attach = |target: &Target| {
            scene.attach_with(target, &[&BY_DLOPEN[..], &["-o", &file]].concat());
        };
        // The program has fetched the message.
        attach(&target);
        assert_eq!(target.ask("kept"), said);
        scene.detach(&target);
        assert_eq!(
            (target.ask("kept"), target.ask("fetch")),
            (said.clone(), "done nothing".into())
        );
        std::fs::remove_file(scene.path(&file)).expect("removed");
        // The program has not fetched the message.
        target.ask("fail");
        attach(&target);
        if k == 0 {
            assert_eq!(target.ask("fetch"), said);
            target.ask("fail");
        }
        scene.detach(&target);
        assert_eq!(target.ask("fetch"), said);
        std::fs::remove_file(scene.path(&file)).expect("removed");
    }
    target.quit();
}

/// The linker allocates by the program's allocator, on a stack of prof's.
#[test]
fn an_allocator_with_large_frames_has_room() {
    let scene = Scene::new("dlopen-roomy");
    let library = program_with("roomy.c", &["-O1", "-shared", "-fPIC"]);
    let mut command = Command::new(program("toggle.c"));
    command.env("LD_PRELOAD", &library);
    let mut target = Target::spawn(command);
    target.expect("ready");
    target.ask("alloc 1");
    let recording = scene.attach_with(&target, &BY_DLOPEN);
    target.ask("alloc 10");
    scene.detach(&target);
    target.ask("alloc 1");
    target.quit();
    assert_eq!(scene.finished(&recording).total("allocations"), 10);
}

/// A call of the linker's that takes longer than prof waits has its stack until it ends.
#[test]
fn a_call_that_prof_gives_up_waiting_for_goes_on() {
    let scene = Scene::new("dlopen-late");
    let (mut target, mut reader) = talking();
    let before = Snapshot::of(&target);
    fill(&reader);
    let pid = target.pid.to_string();
    let out = scene.prof(&["attach", &pid, "--by", "dlopen", "-o", "late.prof", "--timeout", "5s"]);
    assert!(out.code != 0 && out.stderr.contains("did not end within"), "{out:?}");
    let drain = std::thread::spawn(move || {
        let mut all = Vec::new();
        reader.read_to_end(&mut all).map(|_| all)
    });
    target.ask("alloc 10");
    scene.prof(&["detach", &pid]).ok("what is left is taken out");
    before.assert_same(&Snapshot::of(&target));
    target.ask("alloc 10");
    target.quit();
    let said = drain.join().expect("a reader").expect("messages");
    assert!(String::from_utf8_lossy(&said).contains("libprof_hook.so"));
}

/// Fills a pipe, so that the next who writes to it waits.
fn fill(reader: &File) {
    let path = format!("/proc/self/fd/{}", reader.as_raw_fd());
    // The flag is of this opening of the pipe alone.
    let mut options = File::options();
    let mut writer =
        options.write(true).custom_flags(nix::libc::O_NONBLOCK).open(path).expect("the pipe");
    while writer.write(b"\n").is_ok() {}
}
