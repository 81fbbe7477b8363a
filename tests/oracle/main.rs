//! Compares stacks with oracles. A program allocates from thousands of random stacks (recursion, alloca, realigned
//! frames, callbacks from qsort, virtual calls, threads, exceptions in flight, signal handlers, and a timer that
//! interrupts any instruction) and notes the result of glibc's own unwinder at the same place (on ARM, for interrupted
//! instructions, that of .debug_frame). A second run of the same program is unwound by gdb. Every recorded stack must
//! equal the oracle's, frame by frame, and none may be missing.

#[cfg(target_arch = "arm")]
mod interrupted;

use common::build::program_with;
use common::report::{Frame, Group};
use common::{Report, Scene, Target, skip};
use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::process::Command;

/// Number and bytes of samples by stack: return addresses from the caller of sample() outwards.
type Stacks = BTreeMap<Vec<u64>, (u64, u64)>;

/// Parses a word in hexadecimal, as the program writes them.
fn hex(word: &str) -> u64 {
    u64::from_str_radix(word, 16).unwrap_or_else(|e| panic!("{word}: {e}"))
}

/// Reads lines of a size and addresses in hexadecimal; returns the size and the stack of each sample.
fn lines(file: &Path) -> Vec<(u64, Vec<u64>)> {
    let text = std::fs::read_to_string(file).expect("the oracle's file");
    let one = |line: &str| {
        let mut words = line.split(' ');
        let size = words.next().and_then(|w| w.parse().ok()).expect("a size");
        (size, words.map(hex).collect())
    };
    text.lines().map(one).collect()
}

/// Groups samples by stack.
fn by_stack(samples: Vec<(u64, Vec<u64>)>) -> Stacks {
    let mut all = Stacks::new();
    for (size, stack) in samples {
        let entry = all.entry(stack).or_default();
        entry.0 += 1;
        entry.1 += size;
    }
    all
}

/// Returns the return addresses of a stack, from the caller of sample() outwards.
fn outside_sample(g: &Group<'_>) -> Vec<u64> {
    let frames: Vec<_> = g.frames().into_iter().filter(|f| !f.inlined()).collect();
    let own = frames.iter().position(|f| f.function() == "sample").expect("asked by it");
    frames[own + 1..].iter().map(Frame::address).collect()
}

/// Returns the samples of a report by stack.
fn recorded(r: &Report) -> Stacks {
    let mut all = Stacks::new();
    for g in r.asked_by("sample") {
        let entry = all.entry(outside_sample(&g)).or_default();
        entry.0 += g.number("live_count");
        entry.1 += g.number("live_bytes");
    }
    all
}

/// Number of frames in the oracle's array, the first of which is sample() itself.
const ORACLE_FRAMES: usize = 119;

/// Number of stacks in a hundred that the oracle may cut short, other than on AMD64: on AArch64 libgcc's unwinder stops
/// in the vDSO and in a PLT, which have no call frame information. Stacks that the oracle cuts outside of the program's
/// own functions do not count, if ours is complete: on MIPS64 the libraries, the vDSO and the stubs of lazy binding
/// have no information, and each stack through qsort or a signal ends there.
const ORACLE_CUTS: u64 = 5;

/// Cuts our stacks where the oracle's end early; returns the number of such stacks. Stacks that only lack libc's own
/// frames do not count: where a thread starts, libc has no call frame information on some architectures. Ours must
/// reach the start of the program or the thread, or be marked as cut.
fn cut_off(oracle: &Stacks, ours: &mut Stacks, r: &Report) -> (u64, String) {
    let frames = r.groups().flat_map(|g| g.frames());
    let libc: HashSet<u64> =
        frames.filter(|f| f.module().contains("/libc.so")).map(|f| f.address()).collect();
    let own: HashSet<u64> = r
        .groups()
        .flat_map(|g| g.frames())
        .filter(|f| f.module().contains("/oracle.") && f.function() != "_MIPS_STUBS_")
        .map(|f| f.address())
        .collect();
    let whole = outermost(r);
    let asked = r.asked_by("sample");
    let marked = asked.iter().filter(|g| g.0["truncated"] == true).map(outside_sample);
    let marked: HashSet<Vec<u64>> = marked.collect();
    let places: BTreeMap<u64, String> =
        r.groups().flat_map(|g| g.frames()).map(|f| (f.address(), f.show())).collect();
    let (mut cut, mut ends) = (0, BTreeMap::<String, (u64, String)>::new());
    // The longest come first, as a shorter one may begin with the same frames.
    let mut by_length: Vec<&Vec<u64>> = oracle.keys().filter(|o| !o.is_empty()).collect();
    by_length.sort_by_key(|o| std::cmp::Reverse(o.len()));
    for short in by_length {
        let longer = |s: &&Vec<u64>| s.len() > short.len() && s.starts_with(short);
        if ours.contains_key(short) {
            continue;
        }
        let all: Vec<Vec<u64>> =
            ours.keys().filter(longer).filter(|s| !oracle.contains_key(*s)).cloned().collect();
        let outside = !own.contains(&short[short.len() - 1]);
        for s in all {
            let end = s[s.len() - 1];
            let unfinished = s.len() != ORACLE_FRAMES && !whole.contains(&end);
            assert!(
                !unfinished || marked.contains(&s),
                "ours ends at {end:x}, where nothing begins: {}",
                named(&s, r)
            );
            let (n, bytes) = ours.remove(&s).expect("one of them");
            let entry = ours.entry(short.clone()).or_default();
            entry.0 += n;
            entry.1 += bytes;
            let only_libc = s[short.len()..].iter().all(|a| libc.contains(a));
            if unfinished || !outside && !only_libc {
                let (who, at) =
                    if unfinished { ("prof", end) } else { ("the oracle", short[short.len() - 1]) };
                let place = places.get(&at).map_or("?", String::as_str);
                let entry = ends.entry(format!("{who} at {at:x} {place}")).or_default();
                *entry = (entry.0 + n, named(&s, r));
                cut += n;
            }
        }
    }
    let mut ends: Vec<_> = ends.into_iter().collect();
    ends.sort_by_key(|e| std::cmp::Reverse(e.1.0));
    let ends = ends.iter().take(12).map(|(place, (n, one))| format!("{n} times {place}: {one}"));
    (cut, ends.collect::<Vec<_>>().join("\n"))
}

/// Returns the addresses of the outermost frames, in which the program or a thread begins.
fn outermost(r: &Report) -> HashSet<u64> {
    let rooted = r.groups().filter(Group::rooted);
    rooted.filter_map(|g| g.frames().last().map(Frame::address)).collect()
}

/// On ARM, code without tables may lead the oracle anywhere: its stacks count up to the first address outside of code.
fn up_to_unknown(oracle: &Stacks, r: &Report) -> Stacks {
    let known: HashSet<u64> = r.groups().flat_map(|g| g.frames()).map(|f| f.address()).collect();
    let mut theirs = Stacks::new();
    for (stack, (n, bytes)) in oracle {
        let len = stack.iter().position(|a| !known.contains(a)).unwrap_or(stack.len());
        let entry = theirs.entry(stack[..len].to_vec()).or_default();
        entry.0 += n;
        entry.1 += bytes;
    }
    theirs
}

/// Returns a table of the differences, empty if there are none. Stacks that filled the oracle's array are compared up
/// to there.
#[track_caller]
fn compare(oracle: &Stacks, recorded: &Stacks, r: &Report, at_least: u64) -> String {
    let mut ours = Stacks::new();
    for (stack, (n, bytes)) in recorded {
        let kept = stack[..stack.len().min(ORACLE_FRAMES)].to_vec();
        let entry = ours.entry(kept).or_default();
        entry.0 += n;
        entry.1 += bytes;
    }
    let total: u64 = oracle.values().map(|v| v.0).sum();
    let known = cfg!(target_arch = "arm").then(|| up_to_unknown(oracle, r));
    let oracle = known.as_ref().unwrap_or(oracle);
    if cfg!(not(target_arch = "x86_64")) {
        let (cut, ends) = cut_off(oracle, &mut ours, r);
        assert!(
            cut * 100 <= total * ORACLE_CUTS,
            "the oracle, or prof, has cut off {cut} of {total} stacks:\n{ends}"
        );
    }
    let mut wrong = Vec::new();
    for (stack, figures) in oracle {
        if ours.get(stack) != Some(figures) {
            wrong.push(format!("oracle {figures:?}: {}", named(stack, r)));
        }
    }
    for (stack, figures) in &ours {
        if oracle.get(stack) != Some(figures) {
            wrong.push(format!("prof   {figures:?}: {}", named(stack, r)));
        }
    }
    let near = |stack: &Vec<u64>| {
        let close = |o: &Vec<u64>| {
            o.len() == stack.len() && o.iter().zip(stack).all(|(a, b)| a.abs_diff(*b) <= 1)
        };
        oracle.keys().any(close)
    };
    let by_one = ours.keys().filter(|s| !oracle.contains_key(*s) && near(s)).count();
    wrong.sort_by_key(String::len);
    let shown = wrong.iter().take(12).cloned().collect::<Vec<_>>().join("\n");
    assert!(total >= at_least, "only {total} stacks were compared");
    if wrong.is_empty() {
        return String::new();
    }
    format!(
        "{} differences over {total} stacks; {by_one} stacks of prof differ from one of the \
         oracle's by 1 in some address only:\n{shown}\n",
        wrong.len()
    )
}

fn named(stack: &[u64], r: &Report) -> String {
    let mut names = BTreeMap::new();
    for f in r.groups().flat_map(|g| g.frames()) {
        names.entry(f.address()).or_insert_with(|| f.function().to_owned());
    }
    let one = |a: &u64| match names.get(a) {
        Some(n) => format!("{a:x}<{n}>"),
        None => format!("{a:x}"),
    };
    stack.iter().map(one).collect::<Vec<_>>().join(" ")
}

/// Compares both kinds of samples for one build of the program.
#[track_caller]
fn against_backtrace(name: &str, flags: &[&str]) {
    let scene = Scene::new(name);
    let program = program_with("oracle.cpp", flags);
    let mut target = Target::start(&program, &[]);
    let mut differences = String::new();
    for (command, at_least) in [("go 3000 12345", 3000), ("async 3000", 3000)] {
        let file = scene.path("r.prof");
        let _ = std::fs::remove_file(&file);
        let recording = scene.attach_with(&target, &["-o", file.to_str().unwrap()]);
        target.ask(command);
        scene.detach(&target);
        let notes = scene.path("oracle.txt");
        target.ask(&format!("dump {}", notes.display()));
        #[allow(unused_mut)] // but on ARM
        let mut oracle = lines(&notes);
        #[cfg(target_arch = "arm")]
        if command.starts_with("async") {
            let contexts = scene.path("contexts.txt");
            target.ask(&format!("contexts {}", contexts.display()));
            interrupted::correct(&mut oracle, &contexts, &program, &target);
        }
        let r = scene.finished(&recording);
        assert_eq!(r.number("/recording/lost_events"), 0);
        let found = compare(&by_stack(oracle), &recorded(&r), &r, at_least);
        if !found.is_empty() {
            differences += &format!("{command}: {found}");
        }
    }
    target.quit();
    assert!(differences.is_empty(), "{differences}");
}

#[test]
fn against_backtrace_at_o0() {
    against_backtrace("o0", &["-O0"]);
}

#[test]
fn against_backtrace_at_o2() {
    against_backtrace("o2", &["-O2", "-fomit-frame-pointer"]);
}

#[test]
fn against_backtrace_with_frame_pointers_and_lazy_binding() {
    against_backtrace("fp", &["-O2", "-fno-omit-frame-pointer", "-no-pie", "-Wl,-z,lazy"]);
}

#[test]
fn against_backtrace_without_plt_and_for_size() {
    against_backtrace("os", &["-Os", "-fno-plt"]);
}

/// Unwinds the stack at every mark, and writes it in the format of the program's own notes.
const GDB: &str = "
set pagination off
set confirm off
set debuginfod enabled off
set backtrace past-main on
set backtrace past-entry on
handle SIGUSR2 nostop noprint pass
break oracle_mark
python
out = open('NOTES', 'w')
count = 0
class Mark(gdb.Breakpoint):
    def stop(self):
        global count
        f = gdb.newest_frame()
        size = int(f.read_register('rdi')) & 0xffffffff
        f = f.older().older()
        pcs = []
        while f is not None and f.is_valid():
            if f.type() not in (gdb.INLINE_FRAME, gdb.TAILCALL_FRAME):
                pcs.append('%x' % f.pc())
            f = f.older()
        out.write(' '.join([str(size)] + pcs) + '\\n')
        count += 1
        return False
gdb.execute('delete')
Mark('*oracle_mark')
gdb.execute('run without < INPUT > /dev/null')
out.close()
print('walked', count)
end
";

#[test]
fn against_gdb() {
    if !common::installed("gdb") || !common::installed("setarch") {
        return skip("against_gdb", "no gdb, or no setarch");
    }
    let scene = Scene::new("gdb");
    let samples: u64 =
        std::env::var("PROF_ORACLE_SAMPLES").ok().and_then(|v| v.parse().ok()).unwrap_or(1000);
    let go = format!("go {samples} 777");
    for flags in [&["-O2", "-fomit-frame-pointer"][..], &["-O0"]] {
        let program = program_with("oracle.cpp", flags);
        // Without address randomisation, so that addresses are equal in both runs.
        let mut command = Command::new("setarch");
        command.args(["-R"]).arg(&program).arg("without");
        let mut target = Target::spawn(command);
        target.expect("ready");
        let file = scene.path("r.prof");
        let _ = std::fs::remove_file(&file);
        let recording = scene.attach_with(&target, &["-o", file.to_str().unwrap()]);
        target.ask(&go);
        scene.detach(&target);
        target.quit();
        let r = scene.finished(&recording);

        let (notes, input) = (scene.path("gdb.txt"), scene.path("input"));
        std::fs::write(&input, format!("{go}\nquit\n")).unwrap();
        let script =
            GDB.replace("NOTES", notes.to_str().unwrap()).replace("INPUT", input.to_str().unwrap());
        std::fs::write(scene.path("script"), script).unwrap();
        let mut gdb = Command::new("gdb");
        gdb.args(["-nx", "-batch", "-x", "script"]).arg(&program);
        let out = scene.run(gdb);
        assert!(out.stdout.contains(&format!("walked {samples}")), "{out:#?}");
        let mut oracle = Stacks::new();
        for (stack, (n, bytes)) in by_stack(lines(&notes)) {
            let entry = oracle.entry(stack[..stack.len().min(ORACLE_FRAMES)].to_vec()).or_default();
            entry.0 += n;
            entry.1 += bytes;
        }
        let differences = compare(&oracle, &recorded(&r), &r, samples);
        assert!(differences.is_empty(), "{flags:?}: {differences}");
    }
}
