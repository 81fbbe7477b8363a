//! Addresses of a real program, named.

mod common;

use common::{Maker, alloc};
use prof_analyze::report::{FrameData, Report, ReportOptions};
use prof_trace::records::Module;
use std::path::{Path, PathBuf};
use std::process::Command;

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

/// A folder that goes away.
struct Dir(PathBuf);

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs a tool; `None` if it isn't there or fails.
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

/// The frames of a stack of that one address.
fn frames(path: &Path, offset: u64, id: &[u8], recorded: bool) -> Vec<FrameData> {
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
    let mut report = Report::new(&m.analysis(), &ReportOptions::default());
    report.groups.remove(0).frames
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
    // A debug file of another build is not believed.
    let Some((other, _)) = build("other", &["-Wl,--build-id=0x01020304"]) else { return };
    std::fs::copy(other.0.join("demo"), dir.0.join(".debug/demo.debug")).expect("copied");
    let frames = frames(&demo, offset, &ID, false);
    assert!(frames.len() == 1 && frames[0].line.is_none(), "{frames:?}");
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
