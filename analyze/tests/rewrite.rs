//! Recordings made from others: what is removed, what is kept, and what hostile ones can do.

mod common;

use common::remade::{blocks, by_node, open};
use common::world::{make, write};
use common::{Maker, Random, Temp, alloc, free, realloc};
use prof_analyze::export::{Cost, Format, Source};
use prof_analyze::heap::Totals;
use prof_analyze::query::{Filter, Query};
use prof_analyze::rewrite::{
    Anonymize, ExtractOptions, PackOptions, RewriteError, extract, pack, strip,
};
use prof_analyze::{Analysis, Index, LoadOptions, Note};
use prof_trace::chunk;
use prof_trace::derived::Zipped;
use prof_trace::pack::Compress;
use prof_trace::records::{FilePart, Module, Stripped, kind};
use std::collections::HashMap;
use std::path::{Path, PathBuf};

fn stripped(index: &Index, threshold: u64) -> Temp {
    let mut out = Vec::new();
    strip(index, threshold, &mut out).expect("stripped");
    Temp::new(&out)
}

/// Reads a recording.
fn read(path: &std::path::Path) -> Analysis {
    Analysis::from_file(path, &LoadOptions::default()).expect("a recording")
}

#[test]
fn totals_and_stacks_stay_and_only_long_lived_blocks() {
    for (seed, threshold) in (1..25u64).flat_map(|s| [(s, 40), (s, 400), (s, 1 << 40)]) {
        let mut r = Random(seed * 0x51_7cc1_b727);
        let w = make(&mut r, 1500, 4);
        let m = write(&mut r, &w, 4, Compress::Fast);
        let file = m.file();
        let index = open(&file);
        let short = stripped(&index, threshold);
        let after = open(&short);
        let (a, b): (&Analysis, &Analysis) = (index.analysis(), after.analysis());
        assert_eq!((a.totals(), by_node(a.groups())), (b.totals(), by_node(b.groups())));
        assert!(b.complete() && a.duration_ns() == b.duration_ns());
        // Find the blocks that stay, naively.
        let mut chains: HashMap<u32, (u64, Option<u64>)> = HashMap::new();
        let end_of = |b: &common::world::Block| b.end.map(|e| e.0);
        for b in w.blocks.iter().filter(|b| b.chain != 0) {
            let c = chains.entry(b.chain).or_insert((b.begin, Some(0)));
            c.0 = c.0.min(b.begin);
            c.1 = c.1.zip(end_of(b)).map(|(x, y)| x.max(y));
        }
        let stays = |b: &common::world::Block| {
            let own = (b.begin, end_of(b));
            let (begin, end) = chains.get(&b.chain).filter(|_| b.chain != 0).unwrap_or(&own);
            end.is_none_or(|e| e - begin >= threshold)
        };
        let wanted: std::collections::HashSet<_> =
            w.blocks.iter().filter(|b| stays(b)).map(|b| (b.begin, b.addr)).collect();
        let before = blocks(&index);
        let key = |l: &String| {
            let mut c = l.split(',');
            let addr = c.next().and_then(|a| u64::from_str_radix(&a[2..], 16).ok());
            let begin = c.nth(1).and_then(|t| t.parse::<u64>().ok());
            (begin.expect("a time") + common::START, addr.expect("an address"))
        };
        let kept: Vec<_> = before.into_iter().filter(|l| wanted.contains(&key(l))).collect();
        assert_eq!(blocks(&after), kept, "seed {seed}, threshold {threshold}");
        // A second strip changes nothing.
        let again = open(&stripped(&after, threshold));
        assert_eq!((again.analysis().totals(), again.rows()), (b.totals(), after.rows()));
        let note = |a: &Analysis| a.notes().iter().any(|n| matches!(n, Note::Stripped { .. }));
        assert!(!note(a) && note(b));
        let whole = Analysis::from_file(&short.0, &LoadOptions::default()).expect("a recording");
        assert_eq!(whole.totals(), a.totals());
    }
}

#[test]
fn ends_that_went_unseen_are_kept() {
    let mut m = Maker::new();
    m.pass(1000).events(
        1,
        &[
            alloc(1001, 0x1000, 10, 0),
            alloc(1002, 0x2000, 20, 0),
            // A block that lived long; its end is implied by one that is removed.
            alloc(5000, 0x1000, 30, 0),
            free(5001, 0x1000),
            // A block whose end is implied by one that stays.
            alloc(6000, 0x2000, 40, 0),
            // A block returned by realloc, whose old block is not known.
            realloc(6001, 6002, 0x9000, 0x3000, 50, 0),
            // Not temporary, as another event is in between.
            alloc(6003, 0x4000, 60, 0),
            alloc(6004, 0x5000, 70, 0),
            free(6005, 0x5000),
            free(9000, 0x4000),
        ],
    );
    m.end(10_000);
    let (file, wanted) = (m.file(), [30, 70]);
    let index = open(&file);
    let after = open(&stripped(&index, 1000));
    let gone = |l: &String| wanted.iter().any(|s| l.contains(&format!(",{s},")));
    let before: Vec<String> = blocks(&index).into_iter().filter(|l| !gone(l)).collect();
    assert_eq!(blocks(&after), before);
    assert_eq!(after.rows(), 5);
    let totals = |i: &Index| -> Totals { *i.analysis().totals() };
    assert_eq!(totals(&index), totals(&after));
}

/// Makes a recording with two stacks and symbols, of a program that does not exist.
fn named() -> Maker {
    let mut m = Maker::new();
    m.thread(1, 501, "worker");
    let path = "/opt/demo/libsecret.so".to_owned();
    let build_id = vec![1, 2, 3, 4];
    m.module(&Module {
        number: 1,
        start: 0x7000,
        end: 0x9000,
        bias: 0x7000,
        path,
        build_id,
        ..Module::default()
    });
    m.symbols(1, &[(0x100, 0x100, "outer_secret"), (0x200, 0x100, "_ZN5inner3runEv")]);
    m.pcs(&[[1, 0x7108, 1], [2, 0x7208, 1], [3, 0x123_4567, 0]]);
    m.nodes(&[[1, 0, 1], [2, 1, 2], [3, 0, 3]]);
    m.hooks(&["malloc"], &[("free", "/opt/demo is too short")]);
    m.pass(1000).events(1, &[alloc(1001, 0x1000, 10, 2), alloc(1002, 0x2000, 20, 3)]);
    m.pass(2000).events(1, &[free(2001, 0x1000)]);
    m.end(3000);
    m
}

fn packed(m: &Maker, anonymize: Anonymize) -> Temp {
    let mut out = Vec::new();
    let options = PackOptions { anonymize, files: false };
    let done = pack(&read(&m.file().0), &options, &mut out).expect("packed");
    assert_eq!((done.addresses, done.unknown), (3, 1));
    Temp::new(&out)
}

fn folded(index: &Index) -> String {
    let query = Query::new(index, &Filter::default()).expect("no filter");
    let (cost, filter, mut out) = (Cost::Allocated, Vec::new(), Vec::new());
    let source = Source { index, query: &query, at: None, cost, filter, held: None };
    source.write(Format::Folded, &mut out).expect("folded");
    String::from_utf8(out).expect("UTF-8")
}

#[test]
fn packed_recordings_say_the_same() {
    for seed in 1..10u64 {
        let mut r = Random(seed * 0x2545_f491);
        let w = make(&mut r, 2000, 3);
        let compress = [Compress::None, Compress::Fast, Compress::Best][seed as usize % 3];
        let m = write(&mut r, &w, 3, compress);
        let (file, mut out) = (m.file(), Vec::new());
        pack(&read(&file.0), &PackOptions::default(), &mut out).expect("packed");
        let after = Temp::new(&out);
        let (a, b) = (open(&file), open(&after));
        assert_eq!(a.analysis().totals(), b.analysis().totals());
        assert_eq!(a.analysis().groups(), b.analysis().groups());
        assert_eq!(blocks(&a), blocks(&b));
        assert_eq!(a.analysis().events(), b.analysis().events());
        assert!(b.analysis().complete() && b.analysis().notes().is_empty());
    }
}

#[test]
fn names_are_in_a_packed_recording_or_not() {
    let m = named();
    let before = folded(&open(&m.file()));
    let want = "(libsecret.so)";
    assert!(before.contains("outer_secret [libsecret.so];inner::run()"), "{before} {want}");
    // The packed recording has the same names.
    let all = packed(&m, Anonymize::None);
    assert_eq!(folded(&open(&all)), before);
    let partial = packed(&m, Anonymize::Partial);
    assert_eq!(folded(&open(&partial)), before);
    let index = open(&partial);
    let meta = index.analysis().meta();
    assert_eq!((meta.target.exe.as_str(), meta.target.cmdline.len()), ("server", 1));
    assert_eq!(meta.modules[&1].path, "libsecret.so");
    let full = packed(&m, Anonymize::Full);
    let text = folded(&open(&full));
    assert!(text.contains("[lib_0]") && text.contains("fn_"), "{text}");
    let bytes = |t: &Temp| std::fs::read(&t.0).expect("a file");
    let has = |t: &Temp, name: &str| {
        let mut chunks = Vec::new();
        let all = bytes(t);
        let mut rest = &all[chunk::FILE_HEADER..];
        while let chunk::Next::Chunk(k, payload, n) = chunk::next(rest) {
            chunks.extend_from_slice(payload);
            if k == kind::ZIPPED {
                chunks.extend(Zipped::decode(payload).and_then(|z| z.unzip()).expect("a chunk"));
            }
            rest = &rest[n..];
        }
        chunks.windows(name.len()).any(|w| w == name.as_bytes())
    };
    for name in ["secret", "inner", "server", "demo", "worker", "malloc", "\x01\x02\x03\x04"] {
        assert!(has(&all, name) && !has(&full, name), "{name:?}");
    }
    for name in ["/opt", "--fast"] {
        assert!(has(&all, name) && !has(&partial, name), "{name:?}");
    }
    // A packed recording can be packed again, with fewer names, and stripped.
    let mut out = Vec::new();
    let options = PackOptions { anonymize: Anonymize::Full, files: false };
    pack(&read(&all.0), &options, &mut out).expect("packed");
    assert_eq!(folded(&open(&Temp::new(&out))), text);
    assert_eq!(folded(&open(&stripped(&open(&all), 1 << 40))).lines().count(), 2);
}

fn put_file(m: &mut Maker, path: &str, length: u64, offset: u64, bytes: &[u8]) {
    let part = FilePart { path: path.into(), length, offset, bytes: bytes.to_vec() };
    let zipped = Zipped::encode(kind::FILE, &part.encode()).expect("compressed");
    m.put(kind::ZIPPED, &zipped);
}

/// A temporary folder that contains another one to write to.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("prof-extract-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn extracted_files_stay_in_their_folder() {
    let mut m = named();
    put_file(&mut m, "/usr/lib/good.so", 8, 0, b"half");
    put_file(&mut m, "/usr/lib/good.so", 8, 4, b"done");
    put_file(&mut m, "../../../escaped", 1, 0, b"x");
    put_file(&mut m, "/etc/../../../..//root", 1, 0, b"x");
    put_file(&mut m, "usr/lib/good.so/below", 1, 0, b"x");
    put_file(&mut m, "usr/./lib/good.so", 1, 0, b"again");
    put_file(&mut m, "..", 1, 0, b"x");
    put_file(&mut m, "/cut", 100, 0, b"x");
    put_file(&mut m, "/moved", 100, 7, b"x");
    put_file(&mut m, "/gap", 2, 0, b"x");
    put_file(&mut m, "/gap", 2, 100, b"y");
    let (file, folder) = (m.file(), Folder::new("stay"));
    let dir = folder.0.join("a/b").join("out");
    std::fs::create_dir_all(folder.0.join("a/b")).expect("folders");
    let options = ExtractOptions { most: 1 << 20 };
    let done = extract(&file.0, &dir, &options).expect("extracted");
    // Only their owner may read them, as the recording.
    let mode = |path: &std::path::Path| {
        let meta = std::fs::metadata(path).expect("there");
        std::os::unix::fs::PermissionsExt::mode(&meta.permissions()) & 0o777
    };
    assert_eq!((mode(&dir), mode(&dir.join("modules.txt"))), (0o700, 0o600));
    let text = |p: &str| std::fs::read_to_string(dir.join(p)).expect("a file");
    assert_eq!(text("files/usr/lib/good.so"), "halfdone");
    assert_eq!((text("files/escaped"), text("files/etc/root")), ("x".into(), "x".into()));
    let table = text("symbols/1-libsecret.so.txt");
    assert!(
        table.contains("0x0000000000000100 0x100 outer_secret") && table.contains("inner::run()")
    );
    assert!(text("modules.txt").contains("0x7000-0x9000"));
    for part in
        ["cut is cut off: 1 B of 100 B", "moved", "piece of", "below", "\"..\"", "usr/lib/good.so"]
    {
        let part = part.trim_matches('"');
        assert!(done.notes.iter().any(|n| n.contains(part)), "{part} in {:#?}", done.notes);
    }
    // Nothing else was created.
    let beside = |p: &Path| std::fs::read_dir(p).expect("a folder").count();
    assert_eq!(
        (beside(&folder.0), beside(&folder.0.join("a")), beside(&folder.0.join("a/b"))),
        (1, 1, 1)
    );
    assert!(matches!(extract(&file.0, &dir, &options), Err(RewriteError::Write(..))));
    let less = ExtractOptions { most: 9 };
    let e = extract(&file.0, &folder.0.join("less"), &less);
    assert!(matches!(e, Err(RewriteError::TooMuch(t)) if t.contains("--max-size")));
}

#[test]
fn a_small_file_does_not_become_a_large_one() {
    let mut m = named();
    // Endless symbols, compressed to some kilobytes each.
    let zipped = Zipped::encode(kind::SYMBOLS, &vec![0; 60 << 20]).expect("compressed");
    assert!(zipped.len() < 100 << 10);
    for _ in 0..17 {
        m.put(kind::ZIPPED, &zipped);
    }
    let index = open(&m.file());
    assert!(!index.analysis().notes().iter().any(|n| matches!(n, Note::BadChunks(_))));
    m.put(kind::ZIPPED, &zipped);
    let index = open(&m.file());
    assert!(index.analysis().notes().iter().any(|n| matches!(n, Note::BadChunks(1))));
    assert_eq!(index.analysis().groups().len(), 2);
}

#[test]
fn hostile_chunks_are_passed_over() {
    let mut m = named();
    let figures = |m: &Maker| {
        let i = open(&m.file());
        (*i.analysis().totals(), i.analysis().groups().to_vec(), folded(&i))
    };
    let before = figures(&m);
    let bad = |i: &Index| i.analysis().notes().iter().any(|n| matches!(n, Note::BadChunks(_)));
    for (kind, payload) in [
        (kind::ZIPPED, &b"nonsense"[..]),
        (kind::ZIPPED, &[16, 0xff, 0xff, 0xff, 0x7f, 1, 2]),
        (kind::FRAMES, &[1]),
        (kind::FRAMES, &[0xff, 0xff, 0xff, 0xff, 0x0f]),
        (kind::STRIPPED, &[1, 2]),
        (kind::MEMORY, &[1]),
    ] {
        m.put(kind, payload);
        assert!(bad(&open(&m.file())));
    }
    assert_eq!(figures(&m), before);
    // Figures that are empty, too few, or of stacks that do not exist.
    m.put(
        kind::STRIPPED,
        &Stripped { totals: vec![1; 5], groups: vec![7; 99], ..Stripped::default() }.encode(),
    );
    assert_eq!(figures(&m), before);
    let mut m = named();
    m.put(
        kind::STRIPPED,
        &Stripped { totals: vec![u64::MAX; 22], groups: vec![9; 99], ..Stripped::default() }
            .encode(),
    );
    let after = figures(&m);
    assert_eq!((after.0.figures.live_bytes, after.1.len()), (u64::MAX, before.1.len() + 1));
    // The recording can be read, stripped and packed nevertheless.
    let file = m.file();
    stripped(&open(&file), 10);
    packed(&m, Anonymize::None);
}
