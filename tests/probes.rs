//! Other tools' uprobes (bpftrace, bcc, `perf probe`) on the same functions, with real uprobes of the kernel. The
//! kernel writes a breakpoint over the first byte of a function in the process's copy of the page; when it is hit, the
//! kernel executes the file's instruction elsewhere, and continues behind it.
// The kernel has no uprobes for Thumb code, which most of ARM's libraries consist of.
#![cfg(not(target_arch = "arm"))]

use common::build::program_with;
use common::snapshot::Snapshot;
use common::{Scene, Target, until};
use std::ffi::CString;
use std::fs::File;
use std::io::Read;
use std::os::fd::FromRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// A uprobe on this process alone, which is removed on drop.
struct Probe(File);

impl Probe {
    /// Puts a uprobe at an address of a program, which is hit at the address or, with `at_return`, when the function
    /// returns.
    fn put(target: &Target, file: &Path, address: u64, at_return: bool) -> Self {
        let maps = target.proc("maps");
        let offset = maps.lines().find_map(|line| {
            let mut fields = line.split_whitespace();
            let hex = |text: &str| u64::from_str_radix(text, 16).ok();
            let (start, end) = fields.next()?.split_once('-')?;
            let offset = hex(fields.nth(1)?)?;
            let (start, end) = (hex(start)?, hex(end)?);
            (start <= address && address < end).then_some(address - start + offset)
        });
        let kind = std::fs::read_to_string(KIND).unwrap().trim().parse::<u32>().unwrap();
        let path = CString::new(file.as_os_str().as_bytes()).unwrap();
        // struct perf_event_attr: type, size, config, ..., config1 (a path), config2 (an offset).
        let mut attr = [0u64; 16];
        attr[0] = u64::from(kind) | 128 << 32;
        attr[1] = u64::from(at_return);
        attr[7] = path.as_ptr() as u64;
        attr[8] = offset.expect("mapped");
        // SAFETY: the structure and the path live until the call has returned; the result is a new descriptor, or -1.
        let fd = unsafe {
            let none = -1;
            libc::syscall(libc::SYS_perf_event_open, attr.as_ptr(), target.pid, none, none, 8)
        };
        assert!(fd >= 0, "perf_event_open: {}", std::io::Error::last_os_error());
        // SAFETY: the descriptor is new, and nothing else owns it.
        Probe(unsafe { File::from_raw_fd(fd as i32) })
    }

    /// Returns how often it was hit.
    fn hits(&mut self) -> u64 {
        let mut bytes = [0; 8];
        self.0.read_exact(&mut bytes).unwrap();
        u64::from_ne_bytes(bytes)
    }
}

const KIND: &str = "/sys/bus/event_source/devices/uprobe/type";

/// Returns whether there is a breakpoint at an address.
fn begins_with_breakpoint(target: &Target, at: u64) -> bool {
    let mut first = [0; 4];
    let memory = File::open(format!("/proc/{}/mem", target.pid)).unwrap();
    memory.read_exact_at(&mut first, at).unwrap();
    let word = u32::from_ne_bytes(first);
    match () {
        () if cfg!(target_arch = "x86_64") => first[0] == 0xcc,
        // brk and break, with any number
        () if cfg!(target_arch = "aarch64") => word & 0xffe0_001f == 0xd420_0000,
        () => word & 0xfc00_003f == 0x0000_000d,
    }
}

/// A target with an executable file of its own, and the addresses of malloc, free, odd_malloc, odd_free.
struct Probed {
    scene: Scene,
    file: PathBuf,
    target: Target,
    at: Vec<u64>,
}

impl Probed {
    fn start(test: &str) -> Option<Self> {
        Self::linked(test, &["-O1", "-static"])
    }

    fn linked(test: &str, flags: &[&str]) -> Option<Self> {
        if !Path::new(KIND).exists() {
            common::skip(test, "this kernel has no uprobes");
            return None;
        }
        if flags.contains(&"-static")
            && common::is_refused_by_dlopen(test, "a static program has no linker")
        {
            return None;
        }
        let scene = Scene::new("probes");
        let file = scene.path("probed");
        std::fs::copy(program_with("probed.c", flags), &file).unwrap();
        let mut target = Target::start(&file, &[]);
        let answer = target.ask("where");
        let number = |text: &str| u64::from_str_radix(text, 16).unwrap();
        let at = answer.split(' ').skip(1).map(number).collect();
        Some(Self { scene, file, target, at })
    }

    fn probe(&self, function: usize, at_return: bool) -> Probe {
        Probe::put(&self.target, &self.file, self.at[function], at_return)
    }

    /// Removes the probe of a function, and waits until the kernel has restored the byte.
    fn away(&self, function: usize, probe: Probe) {
        drop(probe);
        let at = self.at[function];
        until("the breakpoint has gone", || !begins_with_breakpoint(&self.target, at));
    }

    /// Attaches; returns the standard error, and the recording.
    fn attach(&self, options: &[&str]) -> (String, PathBuf) {
        let pid = self.target.pid.to_string();
        let file = self.scene.path("probed.prof");
        let mut args = vec!["attach", &pid, "-o", file.to_str().unwrap()];
        args.extend_from_slice(options);
        (self.scene.prof(&args).ok("prof attach").stderr, file)
    }

    fn status(&self) -> String {
        self.scene.prof(&["status", &self.target.pid.to_string()]).ok("prof status").stdout
    }
}

#[test]
fn a_uprobe_that_was_there_before_is_left_and_both_see_each_call() {
    for at_return in [false, true] {
        let Some(mut p) = Probed::start("a_uprobe_that_was_there_before") else { return };
        let (mut malloc, mut free) = (p.probe(0, at_return), p.probe(1, at_return));
        p.target.ask("go");
        assert_eq!((malloc.hits(), free.hits()), (200, 200));
        let (message, recording) = p.attach(&[]);
        assert!(
            message.contains("breakpoint stands at the entry of") && message.contains("malloc"),
            "{message}"
        );
        p.target.ask("go");
        assert_eq!((malloc.hits(), free.hits()), (400, 400));
        assert!(p.status().contains("breakpoint"), "{}", p.status());
        // The probe is removed while the hook is there.
        drop(free);
        p.target.ask("go");
        assert_eq!(malloc.hits(), 600);
        p.scene.detach(&p.target);
        p.target.ask("go");
        assert_eq!(malloc.hits(), 800);
        drop(malloc);
        p.target.ask("go");
        p.target.quit();
        let r = p.scene.finished(&recording);
        assert_eq!(r.number("/recording/lost_events"), 0);
        let calls: u64 = r.asked_by("usual").iter().map(|g| g.number("allocations")).sum();
        // Where the kernel has replaced a return address, the stack ends.
        if !at_return {
            assert_eq!(calls, 200, "{}", r.askers());
        }
        assert_eq!(r.number("/totals/live_count"), 0);
    }
}

#[test]
fn a_uprobe_that_comes_later_neither_kills_nor_takes_calls_away() {
    for at_return in [false, true] {
        let Some(mut p) = Probed::start("a_uprobe_that_comes_later") else { return };
        // The kernel's mapping for probes stays.
        let first = [p.probe(0, at_return), p.probe(1, at_return), p.probe(2, at_return)];
        p.target.ask("go");
        first.into_iter().enumerate().for_each(|(n, probe)| p.away(n, probe));
        let before = Snapshot::of(&p.target);
        let (message, recording) = p.attach(&[]);
        let without_room = message.split("perf probe) on ").nth(1).unwrap_or_default();
        let names = without_room.split(" while").next().unwrap_or_default().split(", ");
        let has_room = |name: &str| !["malloc", "free", "calloc", "realloc"].contains(&name);
        assert!(names.clone().all(has_room), "{message}");
        if cfg!(target_arch = "x86_64") {
            // Those of malloc's family have room. System calls begin with their number, which has none.
            let only_calls =
                without_room.is_empty() || without_room.contains(" that change mappings while");
            assert!(only_calls, "libc's functions have room: {message}");
        }
        p.target.ask("go");
        let mut malloc = p.probe(0, at_return);
        let mut free = p.probe(1, at_return);
        p.target.ask("go");
        assert_eq!((malloc.hits(), free.hits()), (200, 200));
        assert!(p.status().contains("breakpoint"), "{}", p.status());
        drop(malloc);
        p.target.ask("go");
        let mut malloc = p.probe(0, at_return);
        p.scene.detach(&p.target);
        p.target.ask("go");
        assert_eq!((malloc.hits(), free.hits()), (200, 600));
        p.away(0, malloc);
        p.away(1, free);
        p.target.ask("go");
        before.assert_same(&Snapshot::of(&p.target));
        p.target.quit();
        let r = p.scene.finished(&recording);
        assert_eq!(r.number("/recording/lost_events"), 0);
        assert_eq!(r.number("/totals/allocations"), 3 * 200);
    }
}

#[test]
fn where_there_is_no_room_for_a_uprobe_that_is_said_or_refused() {
    let Some(mut p) = Probed::start("where_there_is_no_room") else { return };
    let first = p.probe(2, false);
    p.target.ask("go");
    p.away(2, first);
    let before = Snapshot::of(&p.target);

    // The probe was there first, and no other function is left to record.
    let mut probe = p.probe(2, false);
    let pid = p.target.pid.to_string();
    let out = p.scene.prof(&["attach", &pid, "--symbols-prefix", "odd_"]);
    assert_eq!(out.code, 3, "{out:?}");
    assert!(out.stderr.contains("odd_malloc") && out.stderr.contains("uprobe"), "{out:?}");
    p.target.ask("go");
    assert_eq!(probe.hits(), 100);
    p.away(2, probe);
    before.assert_same(&Snapshot::of(&p.target));

    // The probe is put there after the attach, and is still there at the detach.
    let (message, recording) = p.attach(&["--symbols-prefix", "odd_"]);
    assert!(message.contains("no uprobe") && message.contains("odd_malloc"), "{message}");
    let status = p.status();
    assert!(status.contains("no uprobe") && status.contains("odd_malloc"), "{status}");
    p.target.ask("go");
    let mut probe = p.probe(2, false);
    assert!(p.status().contains("changed the hook of odd_malloc"), "{}", p.status());
    p.scene.detach(&p.target);
    p.target.ask("go");
    assert_eq!(probe.hits(), 100);
    p.away(2, probe);
    p.target.ask("go");
    before.assert_same(&Snapshot::of(&p.target));
    std::fs::remove_file(&recording).unwrap();

    // The probe is put there and removed: the kernel writes the file's byte over the hook's.
    let (_, recording) = p.attach(&["--symbols-prefix", "odd_"]);
    p.away(2, p.probe(2, false));
    p.scene.detach(&p.target);
    p.target.ask("go");
    before.assert_same(&Snapshot::of(&p.target));
    p.target.quit();
    p.scene.finished(&recording);
}

/// Returns a jump to an address shortly behind `at`, as another tool might write it.
fn jump(at: u64) -> Vec<u8> {
    match () {
        () if cfg!(target_arch = "x86_64") => vec![0xe9, 0, 1, 0, 0],
        // b
        () if cfg!(target_arch = "aarch64") => 0x1400_0040_u32.to_le_bytes().to_vec(),
        // j, nop
        () => {
            let to = (at as u32 + 0x100) >> 2 & 0x03ff_ffff;
            [0x0800_0000 | to, 0].iter().flat_map(|word| word.to_ne_bytes()).collect()
        }
    }
}

#[test]
fn another_tools_jump_is_named() {
    // With code in the page of the file's headers, as most linkers place it.
    let flags = ["-O1", "-static", "-Wl,-z,noseparate-code"];
    let Some(mut p) = Probed::linked("another_tools_jump", &flags) else { return };
    // This is never executed.
    let jump = jump(p.at[2]);
    let file = File::options().read(true).write(true).open(format!("/proc/{}/mem", p.target.pid));
    let file = file.unwrap();
    let mut own = vec![0; jump.len()];
    file.read_exact_at(&mut own, p.at[2]).unwrap();
    file.write_all_at(&jump, p.at[2]).unwrap();
    let pid = p.target.pid.to_string();
    let out = p.scene.prof(&["attach", &pid, "--symbols-prefix", "odd_"]);
    assert_eq!(out.code, 3, "{out:?}");
    assert!(out.stderr.contains("odd_malloc") && out.stderr.contains("jump to 0x"), "{out:?}");
    let (message, recording) = p.attach(&["--alloc-fn", "probed:odd_malloc(1)"]);
    assert!(message.contains("odd_malloc") && message.contains("another tool"), "{message}");
    file.write_all_at(&own, p.at[2]).unwrap();
    p.target.ask("go");
    p.scene.detach(&p.target);
    p.target.ask("go");
    p.target.quit();
    let r = p.scene.finished(&recording);
    assert_eq!(r.number("/totals/allocations"), 200);
}
