//! Symbolises addresses of a real program.

mod common;

use common::{Maker, alloc};
use prof_analyze::report::{FrameData, Report, ReportOptions};
use prof_analyze::symbols::{SymbolCache, SymbolOptions};
use prof_trace::records::Module;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const SOURCE: &str = r#"#include <stdio.h>
extern const char __ehdr_start[];
volatile int keep;
__attribute__((noinline)) void sink(void) {
    printf("%lx\n", (long)((char *)__builtin_return_address(0) - __ehdr_start));
}
static inline __attribute__((always_inline)) void inner(void) {
    sink(); /* line 8 */
    keep++;
}
__attribute__((noinline)) void outer(void) {
    inner(); /* line 12 */
    keep++;
}
int main(void) {
    outer();
    keep++;
    return 0;
}
"#;
const ID: [u8; 4] = [0xde, 0xc0, 0xde, 0x01];
const BIAS: u64 = 0x5555_0000_0000;

/// A temporary folder, which is removed on drop.
struct Dir(PathBuf);

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs a tool; returns `None` if it is missing or fails.
fn run(program: &str, args: &[&str], dir: &Path) -> Option<String> {
    let out = Command::new(program).args(args).current_dir(dir).output().ok()?;
    if !out.status.success() {
        eprintln!("{program} {args:?}: {}", String::from_utf8_lossy(&out.stderr));
        return None;
    }
    Some(String::from_utf8_lossy(&out.stdout).into_owned())
}

/// Builds the program; returns its folder and the offset behind the call of `sink`.
fn build(name: &str, options: &[&str]) -> Option<(Dir, u64)> {
    let dir = std::env::temp_dir().join(format!("prof-symbols-{}-{name}", std::process::id()));
    std::fs::create_dir_all(&dir).ok()?;
    let dir = Dir(dir);
    std::fs::write(dir.0.join("demo.c"), SOURCE).ok()?;
    let id = "-Wl,--build-id=0xdec0de01";
    let mut args = vec!["-O2", "-g", "-fPIE", "-pie", id, "-o", "demo", "demo.c"];
    args.extend(options);
    let built = run("cc", &args, &dir.0).and_then(|_| run("./demo", &[], &dir.0));
    match built.and_then(|s| u64::from_str_radix(s.trim(), 16).ok()) {
        Some(offset) => Some((dir, offset)),
        None => {
            eprintln!("skipped: there is no cc that can build the demo program");
            None
        }
    }
}

/// Returns the frames of a stack with that one address.
fn frames(path: &Path, offset: u64, id: &[u8], recorded: bool) -> Vec<FrameData> {
    with(path, offset, id, recorded, SymbolOptions::default()).groups.remove(0).frames
}

/// Returns a report on a stack with that one address.
fn with(path: &Path, offset: u64, id: &[u8], recorded: bool, options: SymbolOptions) -> Report {
    let mut m = Maker::new();
    m.module(&Module {
        number: 1,
        start: BIAS,
        end: BIAS + 0x10000,
        bias: BIAS,
        path: path.to_str().expect("UTF-8").into(),
        build_id: id.to_vec(),
        ..Module::default()
    });
    if recorded {
        m.symbols(1, &[(offset - 0x20, 0x40, "from_the_recording")]);
    }
    m.pcs(&[[1, BIAS + offset, 1]]).nodes(&[[1, 0, 1]]);
    m.pass(2000).events(1, &[alloc(1100, 0x10, 10, 1)]).end(3000);
    let mut analysis = m.analysis();
    analysis.set_symbol_options(options);
    Report::new(&analysis, &ReportOptions::default())
}

/// Returns options with a folder of debug files.
fn in_folder(dir: &Path) -> SymbolOptions {
    SymbolOptions { debug_paths: vec![dir.to_owned()], ..SymbolOptions::default() }
}

fn assert_full(frames: &[FrameData], dir: &Path, offset: u64) {
    let shown: Vec<_> = frames
        .iter()
        .map(|f| (f.function.as_deref().unwrap_or("?"), f.line.unwrap_or(0), f.inlined))
        .collect();
    assert_eq!(shown, [("inner", 8, true), ("outer", 12, false)], "{frames:?}");
    for f in frames {
        assert!(f.file.as_deref().is_some_and(|p| p.ends_with("demo.c")), "{f:?}");
        assert_eq!(f.module.as_deref(), dir.join("demo").to_str());
        assert_eq!(f.offset.as_deref(), Some(format!("{offset:#x}").as_str()));
        assert_eq!(f.address, format!("{:#x}", BIAS + offset));
    }
    assert!(frames[1].function_offset.is_some_and(|o| o > 0 && o < 0x40), "{frames:?}");
    assert_eq!(frames[0].function_offset, None);
}

#[test]
fn functions_lines_and_inlined_frames_come_from_debug_information() {
    for (name, options) in
        [("plain", &[][..]), ("dwarf4", &["-gdwarf-4"]), ("compressed", &["-gz=zlib"])]
    {
        let Some((dir, offset)) = build(name, options) else { return };
        assert_full(&frames(&dir.0.join("demo"), offset, &ID, false), &dir.0, offset);
    }
}

#[test]
fn separate_debug_files_are_found() {
    let Some((dir, offset)) = build("separate", &[]) else { return };
    let split = run("objcopy", &["--only-keep-debug", "demo", "demo.debug"], &dir.0)
        .and_then(|_| run("strip", &["demo"], &dir.0))
        .and_then(|_| run("objcopy", &["--add-gnu-debuglink=demo.debug", "demo"], &dir.0));
    if split.is_none() {
        eprintln!("skipped: no objcopy and strip");
        return;
    }
    let demo = dir.0.join("demo");
    assert_full(&frames(&demo, offset, &ID, false), &dir.0, offset);
    std::fs::create_dir(dir.0.join(".debug")).expect("a folder");
    std::fs::rename(dir.0.join("demo.debug"), dir.0.join(".debug/demo.debug")).expect("moved");
    assert_full(&frames(&demo, offset, &ID, false), &dir.0, offset);
    // A debug file of another build is ignored.
    let Some((other, _)) = build("other", &["-Wl,--build-id=0x01020304"]) else { return };
    std::fs::copy(other.0.join("demo"), dir.0.join(".debug/demo.debug")).expect("copied");
    let frames = frames(&demo, offset, &ID, false);
    assert!(frames.len() == 1 && frames[0].line.is_none(), "{frames:?}");
}

#[test]
fn debug_files_are_found_in_folders_that_are_named() {
    let Some((dir, offset)) = build("folders", &[]) else { return };
    if run("objcopy", &["--only-keep-debug", "demo", "demo.debug"], &dir.0).is_none()
        || run("strip", &["demo"], &dir.0).is_none()
    {
        eprintln!("skipped: no objcopy and strip");
        return;
    }
    let demo = dir.0.join("demo");
    let full = |options: SymbolOptions| {
        with(&demo, offset, &ID, false, options).groups.remove(0).frames.len() == 2
    };
    assert!(!full(SymbolOptions::default()));
    let store = dir.0.join("store");
    let by_id = store.join(".build-id/de");
    std::fs::create_dir_all(&by_id).expect("folders");
    assert!(!full(in_folder(&store)));
    // Find it by build ID, by name, and in the root folder of another machine.
    std::fs::rename(dir.0.join("demo.debug"), by_id.join("c0de01.debug")).expect("moved");
    let frames = with(&demo, offset, &ID, false, in_folder(&store)).groups.remove(0).frames;
    assert_full(&frames, &dir.0, offset);
    std::fs::rename(by_id.join("c0de01.debug"), store.join("demo.debug")).expect("moved");
    assert!(full(in_folder(&store)));
    let debug = dir.0.join("root/usr/lib/debug/.build-id/de");
    std::fs::create_dir_all(&debug).expect("folders");
    std::fs::rename(store.join("demo.debug"), debug.join("c0de01.debug")).expect("moved");
    let root = Some(dir.0.join("root"));
    let options = SymbolOptions { sysroot: root.clone(), ..SymbolOptions::default() };
    assert!(full(options.clone()));
    // Find the program itself there, and by its name in a folder.
    let there = dir.0.join("root").join(demo.strip_prefix("/").expect("absolute"));
    std::fs::create_dir_all(there.parent().expect("a folder")).expect("folders");
    std::fs::rename(&demo, &there).expect("moved");
    let offset_of = |options: SymbolOptions| {
        let mut report = with(&demo, offset, &ID, false, options);
        (report.symbols.reasons.first().map(|r| r.reason), report.groups.remove(0).frames)
    };
    assert_full(&offset_of(options).1, &dir.0, offset);
    let (why, frames) = offset_of(SymbolOptions::default());
    assert!(why.is_some_and(|w| w.contains("not found")), "{why:?}: {frames:?}");
    std::fs::copy(&there, store.join("demo")).expect("copied");
    let both = SymbolOptions { sysroot: root, ..in_folder(&store) };
    assert!(full(both));
}

#[test]
fn compressed_debug_information_is_read() {
    for kind in ["zlib", "zlib-gnu", "zstd"] {
        let Some((dir, offset)) = build(&format!("packed-{kind}"), &[]) else { return };
        let option = format!("--compress-debug-sections={kind}");
        if run("objcopy", &[&option, "demo"], &dir.0).is_none() {
            eprintln!("skipped: this objcopy does not compress with {kind}");
            continue;
        }
        assert_full(&frames(&dir.0.join("demo"), offset, &ID, false), &dir.0, offset);
    }
}

#[test]
fn symbols_left_in_a_stripped_program_are_found() {
    let Some((dir, offset)) = build("mini", &["-g0"]) else { return };
    let made = run("objcopy", &["-S", "--keep-symbol=outer", "demo", "mini"], &dir.0)
        .and_then(|_| run("xz", &["--check=crc32", "mini"], &dir.0))
        .and_then(|_| run("strip", &["demo"], &dir.0));
    if made.is_none() {
        eprintln!("skipped: no objcopy, strip and xz");
        return;
    }
    let demo = dir.0.join("demo");
    let none = with(&demo, offset, &ID, false, SymbolOptions::default());
    assert_eq!(none.symbols.unnamed, 1);
    assert!(none.symbols.reasons[0].reason.contains("no symbol"), "{:?}", none.symbols);
    let text = none.text(prof_analyze::report::Style::default());
    assert!(text.contains("symbols    1 of 1 code address have no function name:"), "{text}");
    run("objcopy", &["--add-section", ".gnu_debugdata=mini.xz", "demo"], &dir.0).expect("added");
    let found = frames(&demo, offset, &ID, false);
    assert_eq!(found[0].function.as_deref(), Some("outer"), "{found:?}");
    // A truncated section, and an invalid one.
    let packed = std::fs::read(dir.0.join("mini.xz")).expect("packed");
    for bad in [&packed[..packed.len() / 2], b"\xfd7zXZ\0nonsense", b""] {
        std::fs::write(dir.0.join("bad"), bad).expect("written");
        run("objcopy", &["--update-section", ".gnu_debugdata=bad", "demo"], &dir.0).expect("put");
        assert_eq!(frames(&demo, offset, &ID, false)[0].function, None);
    }
}

#[test]
fn split_debug_information_is_found() {
    let Some((dir, offset)) = build("split", &["-gsplit-dwarf"]) else { return };
    let demo = dir.0.join("demo");
    let list = || -> Vec<PathBuf> {
        let all = std::fs::read_dir(&dir.0).expect("a folder").flatten().map(|e| e.path());
        all.filter(|p| p.extension().is_some_and(|x| x == "dwo")).collect()
    };
    let dwo = list();
    assert_eq!(dwo.len(), 1, "{dwo:?}");
    assert_full(&frames(&demo, offset, &ID, false), &dir.0, offset);
    // Split debug information as a package.
    let packed = run("dwp", &["-e", "demo", "-o", "demo.dwp"], &dir.0);
    let other = dir.0.join("other");
    std::fs::create_dir(&other).expect("a folder");
    let name = dwo[0].file_name().expect("a name");
    std::fs::rename(&dwo[0], other.join(name)).expect("moved");
    match packed {
        Some(_) => assert_full(&frames(&demo, offset, &ID, false), &dir.0, offset),
        None => eprintln!("not all: there is no dwp"),
    }
    let _ = std::fs::remove_file(dir.0.join("demo.dwp"));
    // In another folder; without that, only the symbol and the line are known.
    let found = with(&demo, offset, &ID, false, in_folder(&other)).groups.remove(0).frames;
    assert_full(&found, &dir.0, offset);
    let found = frames(&demo, offset, &ID, false);
    assert_eq!((found.len(), found[0].function.as_deref()), (1, Some("outer")), "{found:?}");
    // Split debug information of another build of the unit.
    let Some((wrong, _)) = build("split-other", &["-gsplit-dwarf", "-DOTHER=1", "-O1"]) else {
        return;
    };
    let theirs = std::fs::read_dir(&wrong.0).expect("a folder").flatten().map(|e| e.path());
    for p in theirs.filter(|p| p.extension().is_some_and(|x| x == "dwo")) {
        std::fs::copy(p, &dwo[0]).expect("copied");
    }
    assert_eq!(frames(&demo, offset, &ID, false).len(), 1);
}

#[test]
fn jit_frames_are_named_by_the_map_of_their_process() {
    let dir = std::env::temp_dir().join(format!("prof-symbols-{}-jit", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a folder");
    let dir = Dir(dir);
    std::fs::write(dir.0.join("perf-4000001.map"), "7f0000001000 80 JS:~work /app.js:3\n")
        .expect("written");
    let mut m = Maker::new();
    m.pcs(&[[1, 0x7f00_0000_1010, 0], [2, 0x7f00_0000_2000, 0]]).nodes(&[[1, 0, 2], [2, 1, 1]]);
    m.pass(2000).events(1, &[alloc(1100, 0x10, 10, 2)]).end(3000);
    let mut analysis = m.analysis();
    analysis.set_symbol_options(in_folder(&dir.0));
    let report = Report::new(&analysis, &ReportOptions::default());
    let frames = &report.groups[0].frames;
    assert_eq!(frames[0].function.as_deref(), Some("JS:~work /app.js:3"));
    assert_eq!(
        (frames[0].function_offset, frames[0].module.as_deref()),
        (Some(0x10), Some("[jit]"))
    );
    assert_eq!((frames[1].function.as_deref(), report.symbols.unnamed), (None, 1));
    assert!(report.symbols.reasons[0].reason.contains("perf-PID.map"));
}

#[test]
fn names_are_short_if_that_is_asked_for() {
    let mut m = Maker::new();
    let module = Module { number: 1, start: 0x1000, end: 0x9000, bias: 0, ..Module::default() };
    m.module(&Module { path: "/nonexistent/app".into(), ..module });
    m.symbols(1, &[(0x1000, 0x100, "_ZNSt6vectorIiSaIiEE9push_backERKi")]);
    m.pcs(&[[1, 0x1010, 1]]).nodes(&[[1, 0, 1]]);
    m.pass(2000).events(1, &[alloc(1100, 0x10, 10, 1)]).end(3000);
    let mut analysis = m.analysis();
    let options = SymbolOptions { short_names: true, ..SymbolOptions::default() };
    analysis.set_symbol_options(options);
    let report = Report::new(&analysis, &ReportOptions::default());
    assert_eq!(report.groups[0].frames[0].function.as_deref(), Some("std::vector<>::push_back"));
}

#[test]
fn without_debug_information_the_symbol_table_names_the_function() {
    let Some((dir, offset)) = build("table", &["-g0"]) else { return };
    let frames = frames(&dir.0.join("demo"), offset, &ID, true);
    assert_eq!(frames.len(), 1);
    assert_eq!(frames[0].function.as_deref(), Some("outer"));
    assert_eq!((frames[0].file.as_deref(), frames[0].inlined), (None, false));
}

#[test]
fn a_file_that_was_replaced_is_not_believed() {
    let Some((dir, offset)) = build("replaced", &[]) else { return };
    let path = dir.0.join("demo");
    let other = frames(&path, offset, &[1, 2, 3], true);
    assert_eq!(other[0].function.as_deref(), Some("from_the_recording"));
    assert_eq!((other[0].function_offset, other.len()), (Some(0x20), 1));
    let none = frames(&path, offset, &[1, 2, 3], false);
    assert_eq!((none[0].function.as_deref(), none.len()), (None, 1));
    assert_eq!(none[0].offset.as_deref(), Some(format!("{offset:#x}").as_str()));
    let gone = frames(Path::new("/nonexistent/demo"), offset, &ID, true);
    assert_eq!(gone[0].function.as_deref(), Some("from_the_recording"));
}

#[test]
fn damaged_files_do_no_harm() {
    let Some((dir, offset)) = build("damaged", &[]) else { return };
    let path = dir.0.join("demo");
    let good = std::fs::read(&path).expect("the program");
    let mut r = common::Random(77);
    for round in 0..150 {
        let mut bad = good.clone();
        match round % 3 {
            0 => bad.truncate(r.below(good.len() as u64) as usize),
            // The section headers and what they point to
            _ => (0..40).for_each(|_| {
                let back = r.below(if round % 3 == 1 { 3000 } else { good.len() as u64 });
                bad[good.len() - 1 - back as usize] = r.next() as u8;
            }),
        }
        std::fs::write(&path, &bad).expect("written");
        for id in [&ID[..], &[]] {
            assert!(!frames(&path, offset, id, true).is_empty());
        }
    }
}

/// Returns options with a cache that keeps everything.
fn cached(folder: &Path) -> SymbolOptions {
    let cache = SymbolCache { folder: folder.to_owned(), worth: Duration::ZERO };
    SymbolOptions { cache: Some(cache), ..SymbolOptions::default() }
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut all: Vec<_> = entries.map(|e| e.path()).collect();
    all.sort();
    all
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).expect("is there").permissions().mode() & 0o777
}

#[test]
fn names_are_kept_for_the_next_time() {
    let Some((dir, offset)) = build("cache", &[]) else { return };
    let (demo, folder) = (dir.0.join("demo"), dir.0.join("cache/symbols"));
    let named = |options| with(&demo, offset, &ID, false, options).groups.remove(0).frames;
    assert_full(&named(cached(&folder)), &dir.0, offset);
    let kept = files(&folder);
    assert_eq!(kept.len(), 1, "{kept:?}");
    assert_eq!((mode(&folder), mode(&kept[0])), (0o700, 0o600));
    assert_full(&named(cached(&folder)), &dir.0, offset);
    // A changed name in the cache file shows that names come from there.
    let text = std::fs::read_to_string(&kept[0]).expect("JSON");
    std::fs::write(&kept[0], text.replace("\"outer\"", "\"kept\"")).expect("written");
    let functions = |options| -> Vec<_> {
        named(options).into_iter().map(|f| (f.function.unwrap_or_default(), f.inlined)).collect()
    };
    let is = |name: &str| [("inner".to_owned(), true), (name.to_owned(), false)];
    assert_eq!(functions(cached(&folder)), is("kept"));
    assert_eq!(functions(SymbolOptions::default()), is("outer"));
    // Short names have another key.
    let short = SymbolOptions { short_names: true, ..cached(&folder) };
    assert_eq!(functions(short), is("outer"));
    // Names that were found faster than `worth` are not cached.
    let elsewhere = dir.0.join("elsewhere");
    let worth = Duration::from_secs(3600);
    let cache = Some(SymbolCache { folder: elsewhere.clone(), worth });
    named(SymbolOptions { cache, ..SymbolOptions::default() });
    assert_eq!(files(&elsewhere), Vec::<PathBuf>::new());
}

#[test]
fn names_that_were_kept_are_not_used_for_other_files() {
    let Some((dir, offset)) = build("cache-stale", &[]) else { return };
    let (demo, folder) = (dir.0.join("demo"), dir.0.join("cache"));
    let outer = || {
        let frames = with(&demo, offset, &ID, false, cached(&folder)).groups.remove(0).frames;
        frames.last().and_then(|f| f.function.clone())
    };
    let spoil = || {
        for file in files(&folder) {
            let text = std::fs::read_to_string(&file).expect("JSON");
            std::fs::write(&file, text.replace("\"outer\"", "\"kept\"")).expect("written");
        }
    };
    assert_eq!(outer().as_deref(), Some("outer"));
    spoil();
    assert_eq!(outer().as_deref(), Some("kept"));
    // The same build with another time, and in another file.
    std::fs::copy(&demo, dir.0.join("copy")).expect("copied");
    std::fs::rename(dir.0.join("copy"), &demo).expect("renamed");
    assert_eq!(outer().as_deref(), Some("outer"));
    spoil();
    assert_eq!(outer().as_deref(), Some("kept"));
    // A debug file that was not there before.
    if run("objcopy", &["--only-keep-debug", "demo", "demo.debug"], &dir.0).is_none()
        || run("strip", &["demo"], &dir.0).is_none()
        || run("objcopy", &["--add-gnu-debuglink=demo.debug", "demo"], &dir.0).is_none()
    {
        eprintln!("not all: no objcopy and strip");
        return;
    }
    let link = dir.0.join("demo.debug");
    std::fs::rename(&link, dir.0.join("away")).expect("moved");
    assert_eq!(outer(), None);
    std::fs::rename(dir.0.join("away"), &link).expect("moved");
    assert_eq!(outer().as_deref(), Some("outer"));
    spoil();
    assert_eq!(outer().as_deref(), Some("kept"));
    std::fs::remove_file(&link).expect("removed");
    assert_eq!(outer(), None);
    // Split debug information is in files that the key does not name.
    let Some((dir, offset)) = build("cache-split", &["-gsplit-dwarf"]) else { return };
    let folder = dir.0.join("cache");
    let frames = with(&dir.0.join("demo"), offset, &ID, false, cached(&folder)).groups.remove(0);
    assert_full(&frames.frames, &dir.0, offset);
    assert_eq!(files(&folder), Vec::<PathBuf>::new());
}

#[test]
fn a_damaged_or_foreign_cache_does_no_harm() {
    let Some((dir, offset)) = build("cache-bad", &[]) else { return };
    let (demo, folder) = (dir.0.join("demo"), dir.0.join("cache"));
    let named = || with(&demo, offset, &ID, false, cached(&folder)).groups.remove(0).frames;
    named();
    let file = files(&folder).remove(0);
    let good = std::fs::read(&file).expect("JSON");
    let text = String::from_utf8(good.clone()).expect("UTF-8");
    let of_key = |was: &str, is: &str| {
        assert!(text.contains(was), "{text}");
        text.replace(was, is).into_bytes()
    };
    let hostile = [
        Vec::new(),
        b"{}".to_vec(),
        vec![b'['; 1 << 20],
        vec![0; 1 << 20],
        good[..good.len() / 2].to_vec(),
        of_key("\"version\":1", "\"version\":2"),
        of_key("\"key\":\"", "\"key\":\"other"),
        of_key("\"strings\":[", "\"strings\":[],\"more\":["),
    ];
    for bad in hostile {
        std::fs::write(&file, &bad).expect("written");
        assert_full(&named(), &dir.0, offset);
        // The damaged file is replaced.
        std::fs::write(&file, &good).expect("written");
    }
    let mut r = common::Random(5);
    for _ in 0..200 {
        let mut bad = good.clone();
        for _ in 0..=r.below(8) {
            let at = r.below(bad.len() as u64) as usize;
            bad[at] = r.next() as u8;
        }
        std::fs::write(&file, &bad).expect("written");
        assert!(!named().is_empty());
    }
    // A file that others may write to is ignored, and so is one that is not a regular file.
    std::fs::write(&file, of_key("\"outer\"", "\"kept\"")).expect("written");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o666)).expect("changed");
    assert_full(&named(), &dir.0, offset);
    std::fs::remove_file(&file).expect("removed");
    std::fs::create_dir(&file).expect("a folder");
    assert_full(&named(), &dir.0, offset);
    std::fs::remove_dir(&file).expect("removed");
    std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o777)).expect("changed");
    assert_full(&named(), &dir.0, offset);
    assert_eq!(files(&folder), Vec::<PathBuf>::new());
}
