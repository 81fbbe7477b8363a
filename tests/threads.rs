//! Many threads: starting and ending while recording, freeing each other's blocks, reusing each other's addresses;
//! attached while they run; and none of their waits disturbed by the attach.

use common::build::program;
use common::{Scene, Target, until};
use nix::sys::signal::Signal;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

#[test]
fn hundreds_of_threads_come_and_go_with_exact_totals() {
    let scene = Scene::new("threads");
    let mut target = Target::start(&program("threads.c"), &[]);
    target.ask("go 16 100");
    let recording = scene.attach(&target);
    target.ask("go 320 400");
    scene.detach(&target);
    target.ask("go 16 100");
    target.quit();
    let r = scene.finished(&recording);
    r.assert_sound();
    // libc may keep the stacks of the first 16 threads with a table each, which later threads inherit and free.
    let unknown = r.number("/recording/unknown_frees");
    assert!(unknown <= 16, "{unknown}: all blocks came from within");
    let groups = r.asked_by("thread_block");
    let sum = |name: &str| groups.iter().map(|g| g.number(name)).sum::<u64>();
    assert_eq!(sum("allocations"), 320 * 400);
    // The last block of each thread stays: index 399, 24 + 15 * 16 bytes.
    assert_eq!((sum("live_count"), sum("live_bytes")), (320, 320 * 264));
    let per_thread: u64 = (0..400).map(|i| 24 + (i % 32) * 16).sum();
    assert_eq!(sum("allocated_bytes"), 320 * per_thread);
    assert_eq!(groups.len(), 1, "one line, one stack:\n{}", r.askers());
    let f = groups[0].functions();
    assert!(f.contains(&"work"), "{f:?}");
    assert!(groups[0].rooted(), "{f:?}");
    // pthread_create's own allocations are recorded too, but are few, as threads reuse existing memory.
    assert!(r.total("allocations") < 320 * 400 + 2000, "{:#}", r.brief());
}

#[test]
fn reused_addresses_keep_their_order_across_threads() {
    let scene = Scene::new("reuse");
    let mut command = Command::new(program("reuse.c"));
    command.env("GLIBC_TUNABLES", "glibc.malloc.arena_max=1:glibc.malloc.tcache_count=0");
    let mut target = Target::spawn(command);
    target.expect("ready");
    let recording = scene.attach(&target);
    let answer = target.ask("go 20000");
    scene.detach(&target);
    target.quit();
    let reused: u64 = answer.rsplit('=').next().unwrap().parse().unwrap();
    assert!(reused > 20_000, "the program did not do its work: {answer}");
    let r = scene.finished(&recording);
    assert_eq!(r.number("/recording/lost_events"), 0);
    // One free out of order would leave a block live for ever, or find none.
    assert_eq!(r.number("/recording/unknown_frees"), 0);
    let groups = r.asked_by("passed_block");
    let sum = |name: &str| groups.iter().map(|g| g.number(name)).sum::<u64>();
    assert_eq!(sum("allocations"), 40_000);
    assert_eq!((sum("live_count"), sum("live_bytes")), (1, 5000), "{}", r.askers());
    for g in &groups {
        let peak = g.number("peak_count");
        assert!(peak <= 2, "never more than one at a time, one more for the race: {peak}");
    }
}

/// Returns how long the collector that writes a recording has waited for a processor.
fn collector_waited(recording: &Path) -> Duration {
    let waited = |pid: &i32| {
        let text = std::fs::read_to_string(format!("/proc/{pid}/schedstat")).ok()?;
        Some(Duration::from_nanos(text.split(' ').nth(1)?.parse().ok()?))
    };
    common::writers(recording).iter().filter_map(waited).sum()
}

/// Records threads that each allocate two blocks and end; returns the recording and the number of threads. Each
/// thread leaves a nearly empty segment behind, and there are more threads than segments. Returns `None` if events
/// were lost because the collector had to wait for a processor.
fn short_threads(number: u32) -> Option<(Scene, std::path::PathBuf, u64)> {
    let scene = Scene::new("brief");
    let mut target = Target::start(&program("brief.c"), &[]);
    let recording = scene.attach(&target);
    let answer = target.ask(&format!("go {number} 2"));
    let waited = collector_waited(&recording);
    scene.detach(&target);
    target.quit();
    let threads = answer.rsplit('=').next().unwrap().parse().unwrap();
    let lost = scene.finished(&recording).number("/recording/lost_events");
    println!("{threads} threads, {lost} events lost, the collector has waited for {waited:?}");
    (lost == 0 || waited < Duration::from_millis(300)).then_some((scene, recording, threads))
}

#[test]
fn threads_that_end_at_once_lose_nothing() {
    let number = if cfg!(target_arch = "x86_64") { 60_000 } else { 2000 };
    let Some((scene, recording, threads)) = (0..4).find_map(|_| short_threads(number)) else {
        return eprintln!("no processor for the collector, four times: the machine is too busy");
    };
    let r = scene.finished(&recording);
    r.assert_sound();
    let groups = r.asked_by("brief_block");
    let sum = |name: &str| groups.iter().map(|g| g.number(name)).sum::<u64>();
    assert_eq!((sum("allocations"), sum("live_count")), (2 * threads, 0), "{}", r.askers());

    let only = ["export", "csv", recording.to_str().unwrap(), "--function", "^brief_block$"];
    let csv = scene.prof(&only).ok("prof export").stdout;
    // Returns the size of the block, and the IDs of the threads that allocated and freed it.
    let row = |line: &str| {
        let f: Vec<_> = line.split(',').collect();
        let number = |i: usize| f[i].parse::<u64>().unwrap_or_else(|e| panic!("{e}: {line}"));
        (number(1), number(5), number(7))
    };
    let blocks: Vec<_> = csv.lines().skip(1).map(row).collect();
    assert_eq!(blocks.len() as u64, 2 * threads);
    let is_own = |b: &&(u64, u64, u64)| b.0 == 100 + b.1 % 1000 && b.1 == b.2;
    assert_eq!(blocks.iter().find(|b| !is_own(b)), None, "a block of another thread");
}

/// Returns the number of threads that can be made at a time without exhausting the machine's processes and memory.
fn room_for_threads() -> usize {
    let number = |file: &str| {
        let text = std::fs::read_to_string(format!("/proc/{file}")).unwrap_or_default();
        text.trim().parse::<usize>().unwrap_or(usize::MAX)
    };
    let loads = std::fs::read_to_string("/proc/loadavg").unwrap();
    let now: usize = loads.split(['/', ' ']).nth(4).and_then(|w| w.parse().ok()).unwrap();
    let most = number("sys/kernel/pid_max").min(number("sys/kernel/threads-max"));
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap();
    let free = memory.lines().find_map(|l| l.strip_prefix("MemAvailable:")).unwrap();
    let free: usize = free.trim().trim_end_matches(" kB").parse().unwrap();
    // Use a third of the memory: each thread takes some 100 KiB, half of it prof's.
    (most - now).saturating_sub(2000).min(free / 300)
}

#[test]
fn thirty_thousand_threads_have_room() {
    // This must work in a ring of the default size as well, which has segments for 4,096 threads. With 32-bit pointers
    // there is no further table beyond the first. Architectures other than AMD64 run in emulated machines, where 30,000
    // threads take many minutes; the first table has 1,024.
    let most = match (cfg!(target_pointer_width = "32"), cfg!(target_arch = "x86_64")) {
        (true, _) => 100,
        (_, true) => 30_000,
        _ => 3000,
    };
    let wanted = room_for_threads().min(most);
    let scene = Scene::new("crowd");
    let mut target = Target::start(&program("crowd.c"), &[]);
    let recording = scene.attach(&target);
    let answer = target.ask(&format!("go {wanted}"));
    // There are limits that can't be read in advance: a container's, a user's.
    let threads: u64 = answer.rsplit('=').next().unwrap().parse().unwrap();
    if threads < most as u64 {
        eprintln!("not all of {most} threads, but {threads}: this machine has no more");
    }
    target.ask("free");
    target.ask("end");
    scene.detach(&target);
    target.quit();
    let r = scene.finished(&recording);
    assert_eq!(r.number("/recording/lost_events"), 0);
    assert_eq!(r.number("/recording/unknown_frees"), 0);
    let groups = r.asked_by("crowd_block");
    let sum = |name: &str| groups.iter().map(|g| g.number(name)).sum::<u64>();
    assert_eq!((sum("allocations"), sum("peak_count")), (threads, threads));
    assert_eq!(sum("live_count"), 0, "{}", r.askers());
}

/// Returns the bytes of prof's ring in a process that have pages.
fn resident_ring(target: &Target) -> u64 {
    let smaps = target.proc("smaps");
    let mappings = smaps.split("prof-ring").skip(1);
    let rss = mappings.filter_map(|m| m.lines().find_map(|l| l.strip_prefix("Rss:")));
    let kb = |rss: &str| rss.trim().trim_end_matches(" kB").parse::<u64>().expect("a number");
    1024 * rss.map(kb).sum::<u64>()
}

#[test]
fn a_process_that_locks_its_memory_gets_no_pages_for_threads_to_come() {
    // Other architectures run in machines that have less memory than the first part of the ring.
    let most = if cfg!(target_arch = "x86_64") { 3000 } else { 100 };
    let wanted = room_for_threads().min(most);
    let scene = Scene::new("locked_crowd");
    let mut target = Target::start(&program("crowd.c"), &[]);
    let recording = scene.attach(&target);
    if target.ask("lock") == "done refused" {
        return common::skip("a locked crowd", "this user may not lock memory");
    }
    let locked = resident_ring(&target);
    assert!(locked < 1536 << 20, "{locked} bytes");
    let answer = target.ask(&format!("go {wanted}"));
    let threads: u64 = answer.rsplit('=').next().unwrap().parse().unwrap();
    target.ask("free");
    target.ask("end");
    let used = resident_ring(&target);
    assert!(used < locked + (threads << 20), "{used} bytes, {locked} before");
    scene.detach(&target);
    target.quit();
    let r = scene.finished(&recording);
    assert_eq!(r.number("/recording/lost_events"), 0);
    let allocations = r.asked_by("crowd_block").into_iter().map(|g| g.number("allocations"));
    assert_eq!(allocations.sum::<u64>(), threads);
}

/// Returns how often each thread of a process has gone to sleep.
fn sleeps(pid: i32) -> std::collections::HashMap<i32, u64> {
    let one = |tid: i32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/status")).ok()?;
        let field = status.lines().find_map(|l| l.strip_prefix("voluntary_ctxt_switches:"))?;
        Some((tid, field.trim().parse().ok()?))
    };
    let tids = common::numbers_in(Path::new(&format!("/proc/{pid}/task")));
    tids.into_iter().filter_map(one).collect()
}

#[test]
#[cfg(target_arch = "x86_64")] // so many threads take minutes in an emulated machine
fn each_of_ten_thousand_threads_is_stopped_once_at_a_time() {
    if common::is_refused_by_dlopen("stops", "all threads stand still while the linker is called") {
        return;
    }
    let wanted = room_for_threads().min(10_000);
    let scene = Scene::new("stops");
    let mut target = Target::start(&program("crowd.c"), &[]);
    target.ask(&format!("go {wanted}"));
    let before = sleeps(target.pid);
    scene.attach(&target);
    let after = sleeps(target.pid);
    // An attach stops all threads twice, to map the ring and to patch. A sleeping thread goes to sleep twice for each:
    // in the stop, and again after it. Few threads are stopped more often, to make calls or to be examined.
    let more = before.iter().filter(|(tid, n)| after.get(tid).is_some_and(|now| now - *n > 4));
    let more = more.count();
    assert!(more <= 16 + before.len() / 100, "{more} of {} were stopped more often", before.len());
    let (pid, timeout) = (target.pid.to_string(), "60s");
    scene.prof(&["detach", &pid, "--timeout", timeout]).ok("detach");
    target.ask("free");
    target.ask("end");
    target.quit();
}

/// Four threads free each other's blocks at full speed: no event is lost, and at each address an allocation follows the
/// free before it, whichever threads made the two.
#[track_caller]
fn handed_from_thread_to_thread(name: &str, tunables: &str) {
    let scene = Scene::new(name);
    let mut command = Command::new(program("handed.c"));
    command.env("GLIBC_TUNABLES", tunables);
    let mut target = Target::spawn(command);
    target.expect("ready");
    let recording = scene.attach(&target);
    target.ask("go 10000");
    let answer = target.ask("go 20000");
    scene.detach(&target);
    target.quit();
    assert_eq!(answer, "done 80000");
    let r = scene.finished(&recording);
    // No free precedes its allocation, and none is implied.
    r.assert_sound();
    assert_eq!(r.number("/recording/unknown_frees"), 0, "{:#}", r.brief());
    let groups = r.asked_by("handed_block");
    let sum = |name: &str| groups.iter().map(|g| g.number(name)).sum::<u64>();
    assert_eq!((sum("allocations"), sum("live_count")), (120_000, 0), "{}", r.askers());
    assert!(groups.iter().all(|g| g.rooted()), "{}", r.askers());

    let only = ["export", "csv", recording.to_str().unwrap(), "--function", "^handed_block$"];
    let csv = scene.prof(&only).ok("prof export").stdout;
    // Address, times of allocation and free, and whether their threads differ.
    let row = |line: &str| -> (String, u64, u64, bool) {
        let f: Vec<_> = line.split(',').collect();
        let time = |i: usize| f[i].parse().unwrap_or_else(|e| panic!("{e}: {line}"));
        (f[0].to_owned(), time(2), time(3), f[5] != f[7])
    };
    let mut blocks: Vec<_> = csv.lines().skip(1).map(row).collect();
    assert_eq!(blocks.len(), 120_000);
    assert!(blocks.iter().all(|b| b.3), "each is freed by another thread");
    blocks.sort();
    let reused = blocks.windows(2).filter(|b| b[0].0 == b[1].0);
    assert!(reused.clone().count() > 100_000, "few addresses were used again");
    for b in reused {
        assert!(b[0].1 <= b[0].2 && b[0].2 <= b[1].1, "two blocks at one address: {b:?}");
    }
}

#[test]
fn blocks_handed_around_by_one_arena() {
    let all = "glibc.malloc.arena_max=1:glibc.malloc.tcache_count=0";
    handed_from_thread_to_thread("handed", all);
}

#[test]
fn blocks_handed_around_by_the_threads_caches() {
    handed_from_thread_to_thread("handed-cached", "");
}

#[test]
fn threads_stacks_may_fill_the_addresses_around_libc() {
    let scene = Scene::new("crowd");
    // 70 stacks of 8 MiB take more address space than short jumps reach.
    let mut target = Target::start(&program("stress.c"), &["70"]);
    let recording = scene.attach(&target);
    scene.detach(&target);
    assert_eq!(target.ask("stop"), "done OK");
    target.quit();
    let r = scene.finished(&recording);
    let hooks = |name| r.at(name).as_array().map_or(0, Vec::len);
    assert!(hooks("/recording/hooks") >= 8, "{:#}", r.brief());
    assert_eq!(hooks("/recording/not_hooked"), 0, "{}", r.at("/recording/not_hooked"));
}

#[test]
fn attached_while_eight_threads_are_busy() {
    let scene = Scene::new("busy");
    let mut target = Target::start(&program("stress.c"), &[]);
    let recording = scene.attach(&target);
    let operations = |t: &mut Target| -> u64 {
        t.ask("operations").rsplit(' ').next().unwrap().parse().unwrap()
    };
    let before = operations(&mut target);
    common::until("200,000 operations are done", || operations(&mut target) > before + 200_000);
    scene.detach(&target);
    assert_eq!(target.ask("stop"), "done OK");
    target.quit();
    let r = scene.finished(&recording);
    assert!(r.total("allocations") + r.total("reallocations") > 100_000, "{:#}", r.brief());
    // Eight threads with 64 slots of at most 600 bytes.
    if r.number("/recording/lost_events") == 0 {
        assert!(r.total("live_count") <= 8 * 64, "{:#}", r.brief());
        assert!(r.total("peak_bytes") <= 8 * 65 * 600 * 2, "{:#}", r.brief());
    }
    for g in r.groups().filter(|g| g.number("allocations") > 0) {
        let f = g.functions();
        assert!(f.contains(&"work"), "{f:?}");
    }
}

#[test]
fn a_target_that_frees_everything_has_nothing_alive() {
    let scene = Scene::new("balance");
    let mut target = Target::start(&program("stress.c"), &[]);
    let recording = scene.attach(&target);
    assert_eq!(target.ask("stop"), "done OK");
    scene.detach(&target);
    let r = scene.finished(&recording);
    if r.number("/recording/lost_events") == 0 {
        assert_eq!((r.total("live_count"), r.total("live_bytes")), (0, 0), "{}", r.askers());
    }
    // The slots from before the attach, and the tables of threads whose stacks libc does not keep.
    assert!(r.number("/recording/unknown_frees") <= 8 * 64 + 8, "{:#}", r.brief());
    assert!(r.total("frees") >= r.total("allocations"), "{:#}", r.brief());
}

#[test]
fn no_wait_is_cut_short_by_attach_and_detach() {
    let scene = Scene::new("sleeps");
    let mut target = Target::start(&program("sleeps.c"), &[]);
    for i in 0..10 {
        scene.attach_with(&target, &["-o", &format!("{i}.prof")]);
        target.ask("beat");
        scene.detach(&target);
    }
    target.send("stop");
    let mut report = Vec::new();
    let last = loop {
        let line = target.line();
        if line.starts_with("done bad") {
            break line;
        }
        report.push(line);
    };
    let number = |l: &String, name: &str| -> u64 {
        let n = l.split(name).nth(1).and_then(|x| x.split(' ').next());
        n.map_or(0, |n| n.parse().unwrap())
    };
    let waits = |l: &String| number(l, "waits=");
    if cfg!(any(target_arch = "aarch64", target_arch = "arm")) {
        // If a thread goes to sleep between prof's look and the stop, in a call that no kernel restarts, it may get EINTR:
        // prof can't always tell that from a call that a signal has ended. On a busy machine prof may have to wait for a
        // processor between the two.
        let few = |l: &String| {
            let (failed, early) = (number(l, "failed="), number(l, "early="));
            let known = number(l, "errno=") == libc::EINTR as u64 && failed <= 2 + waits(l) / 10;
            (failed == 0 || known) && early <= failed && number(l, "more=") == 0
        };
        assert!(report.iter().all(few), "{report:#?}");
    } else {
        assert_eq!(last, "done bad=0", "{report:#?}");
    }
    assert!(report.len() >= 20, "the ways to wait: {report:#?}");
    assert!(report.iter().all(|l| waits(l) >= 10), "{report:#?}");
}

/// A filter must see neither what prof does nor what it undoes.
fn under_a_filter(kind: &str) {
    if !nix::unistd::geteuid().is_root() {
        return common::skip(kind, "suspending a filter takes CAP_SYS_ADMIN");
    }
    let scene = Scene::new(kind);
    let mut target = Target::start(&program("filtered.c"), &[kind]);
    for i in 0..10 {
        scene.attach_with(&target, &["-o", &format!("{i}.prof")]);
        scene.detach(&target);
    }
    let answer = target.ask("stop");
    assert!(answer.starts_with("done wrong=0 rounds="), "{answer}");
    assert!(!answer.ends_with("rounds=0"), "{answer}");
    target.quit();
}

#[test]
fn a_seccomp_filter_that_answers_with_an_error_notices_nothing() {
    under_a_filter("errno");
}

#[test]
fn a_seccomp_filter_that_kills_notices_nothing() {
    under_a_filter("kill");
}

/// Returns the mappings, descriptors and handlers of a process, as seen from one of its living threads.
fn seen_by_a_thread(target: &Target) -> Vec<String> {
    let tasks = format!("/proc/{}/task", target.pid);
    let of = |tid: i32, file: &str| std::fs::read_to_string(format!("{tasks}/{tid}/{file}"));
    let all = common::numbers_in(Path::new(&tasks));
    let lives = |tid: &i32| of(*tid, "maps").is_ok_and(|maps| !maps.is_empty());
    let tid = all.into_iter().find(lives).expect("a thread that lives");
    // Everything except the size of the heap.
    let maps = of(tid, "maps").unwrap();
    let mut seen: Vec<String> =
        maps.lines().filter(|l| !l.ends_with("[heap]")).map(str::to_owned).collect();
    let status = of(tid, "status").unwrap();
    let fields = ["SigCgt", "SigIgn", "SigBlk", "TracerPid"];
    seen.extend(
        status.lines().filter(|l| fields.iter().any(|f| l.starts_with(f))).map(str::to_owned),
    );
    let fds = common::numbers_in(Path::new(&format!("{tasks}/{tid}/fd")));
    seen.extend(fds.into_iter().map(|n| format!("descriptor {n}")));
    seen
}

#[test]
fn any_thread_will_do_when_the_first_has_ended() {
    for ends_first in [false, true] {
        let scene = Scene::new("leader");
        let mut target = Target::start(&program("leader.c"), &[]);
        let pid = target.pid.to_string();
        let status = || {
            let out = scene.prof(&["status", &pid, "--format", "json"]).ok("status");
            let v: serde_json::Value = serde_json::from_str(&out.stdout).expect("JSON");
            v["state"].as_str().expect("a state").to_owned()
        };
        target.ask("alloc 10");
        target.ask("free");
        if ends_first {
            target.ask("leave");
        }
        let before = seen_by_a_thread(&target);
        let recording = scene.attach(&target);
        target.ask("alloc 100");
        if !ends_first {
            target.ask("leave");
        }
        target.ask("alloc 1");
        assert_eq!(status(), "recording");
        scene.prof(&["pause", &pid]).ok("pause");
        target.ask("alloc 1000");
        assert_eq!(status(), "paused");
        scene.prof(&["resume", &pid]).ok("resume");
        target.ask("alloc 10");
        target.signal(Signal::SIGUSR1);
        until("the signal has switched recording off", || status() == "paused");
        // The collector looks at the process meanwhile.
        std::thread::sleep(Duration::from_millis(1200));
        target.signal(Signal::SIGUSR1);
        until("the signal has switched recording on", || status() == "recording");
        target.ask("alloc 5");
        scene.detach(&target);
        if ends_first {
            assert_eq!(seen_by_a_thread(&target), before);
        }
        target.ask("free");
        scene.prof(&["attach", &pid, "-o", "again.prof"]).ok("a second attach");
        scene.prof(&["detach", &pid]).ok("a second detach");
        target.quit();
        let r = scene.finished(&recording);
        let block = r.marked("leader.c", "left_block");
        block.assert_live(116, 116 * 96);
        assert!(block.functions().contains(&"serve"), "{}", block.numbers());
    }
}
