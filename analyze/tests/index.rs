//! The index compared with a plain model, and the life of its file.

mod common;

use common::world::{Block, World, make, write};
use common::{Maker, Random, START, Temp, alloc, free, realloc};
use prof_analyze::index::{Column, IndexOptions, Keep, flags, path_of};
use prof_analyze::{Analysis, Follower, Growing, Index, LoadOptions, Note};
use prof_trace::pack::Compress;
use prof_trace::size::Header;
use std::fs;
use std::path::Path;

const ALWAYS: IndexOptions =
    IndexOptions { keep: Keep::Always, load: LoadOptions { pending_bytes: 64 << 20 }, dir: None };
const NEVER: IndexOptions = IndexOptions { keep: Keep::Never, ..ALWAYS };

fn random(seed: u64, steps: usize) -> (World, Maker) {
    let mut r = Random(seed * 0x9e37_79b9);
    let threads = 1 + r.below(7);
    let w = make(&mut r, steps, threads);
    let how = [Compress::None, Compress::Fast, Compress::Best][seed as usize % 3];
    let m = write(&mut r, &w, threads as u32, how);
    (w, m)
}

/// Returns all rows of an index in the form of the plain model.
fn blocks(index: &Index) -> Vec<Block> {
    const ALL: [Column; 12] = [
        Column::Addr,
        Column::Size,
        Column::Begin,
        Column::End,
        Column::Group,
        Column::ThreadIndex,
        Column::EndNode,
        Column::EndThreadIndex,
        Column::Flags,
        Column::Chain,
        Column::Position,
        Column::Header,
    ];
    let groups = index.analysis().groups();
    let states = index.scan(Vec::new, |out: &mut Vec<Block>, b| {
        let mut columns = ALL.map(|_| Vec::new());
        for (c, values) in ALL.into_iter().zip(&mut columns) {
            b.read(c, values)?;
            let range = b.range(c);
            assert!(values.iter().all(|v| (range.0..=range.1).contains(v)));
        }
        let life = |(b, e): (&u64, &u64)| if *e == u64::MAX { *e } else { e.saturating_sub(*b) };
        let [_, _, begins, ends, ..] = &columns;
        assert_eq!(begins.iter().zip(ends).map(life).max(), Some(b.longest()));
        (0..b.rows()).for_each(|i| {
            let [
                addr,
                size,
                begin,
                end,
                group,
                thread_index,
                node,
                end_thread_index,
                flags,
                chain,
                position,
                header,
            ] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11].map(|c: usize| columns[c][i]);
            assert!(node == 0 || flags & flags::CONTINUED != 0, "no free has a stack here");
            assert_eq!(flags & flags::LIVE != 0, end == u64::MAX);
            assert_eq!(flags & flags::REALLOCATED != 0, position > 0);
            let thread = |thread_index: u64| index.thread_numbers()[thread_index as usize];
            out.push(Block {
                begin,
                addr,
                size,
                node: groups[group as usize].node,
                thread: thread(thread_index),
                end: (end != u64::MAX).then(|| (end, thread(end_thread_index))),
                temporary: flags & flags::TEMPORARY != 0,
                continued: flags & flags::CONTINUED != 0,
                chain: chain as u32,
                position: position as u32,
                header: Header::from_code(header as u16),
            });
        });
        Some(())
    });
    let mut blocks = states.expect("readable").concat();
    blocks.sort();
    blocks
}

fn same(a: &Analysis, b: &Analysis) {
    assert_eq!(a.totals(), b.totals());
    assert_eq!(a.groups(), b.groups());
    assert_eq!(a.notes(), b.notes());
    assert_eq!((a.events(), a.complete()), (b.events(), b.complete()));
    assert_eq!(a.parts(), b.parts());
    assert_eq!(a.duration_ns(), b.duration_ns());
    assert_eq!(a.meta().threads, b.meta().threads);
}

#[test]
fn the_rows_are_those_of_a_plain_model() {
    for (seed, steps) in (1..40).map(|s| (s, 2000)).chain([(99, 30_000)]) {
        let (w, m) = random(seed, steps);
        let file = m.file();
        let mut expected = w.blocks.clone();
        expected.sort();
        let plain = Analysis::from_file(&file.0, &LoadOptions::default()).expect("a recording");
        for options in [NEVER, ALWAYS, ALWAYS] {
            let index = Index::open(&file.0, &options).expect("an index");
            same(index.analysis(), &plain);
            assert_eq!(index.rows(), expected.len() as u64);
            assert_eq!(index.chains(), u64::from(w.chains));
            assert_eq!(blocks(&index), expected, "seed {seed}");
        }
        fs::remove_file(path_of(&file.0)).expect("an index");
    }
}

/// A recording in a folder of its own.
struct Folder(std::path::PathBuf);

impl Folder {
    fn new(name: &str, bytes: &[u8]) -> Self {
        let dir = std::env::temp_dir().join(format!("prof-index-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir(&dir).expect("a folder");
        fs::write(dir.join("r.prof"), bytes).expect("written");
        Self(dir)
    }

    fn recording(&self) -> std::path::PathBuf {
        self.0.join("r.prof")
    }

    fn files(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).expect("a folder").flatten();
        let mut names: Vec<_> =
            entries.map(|e| e.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn an_index_is_used_again_until_the_recording_changes() {
    let (_, m) = random(3, 500);
    let f = Folder::new("again", &m.bytes);
    let path = f.recording();
    let open = |o: &IndexOptions| Index::open(&path, o).expect("an index");
    assert!(open(&ALWAYS).was_made());
    assert_eq!(f.files(), ["r.prof", "r.prof.idx"]);
    assert!(!open(&ALWAYS).was_made());
    assert!(!open(&IndexOptions::default()).was_made(), "one that is there is used");
    assert!(open(&NEVER).was_made());
    // Other contents of the same length.
    let (_, other) = random(4, 500);
    let mut bytes = other.bytes.clone();
    bytes.resize(m.bytes.len().max(bytes.len()), 0);
    fs::write(&path, &bytes).expect("written");
    let index = open(&ALWAYS);
    assert!(index.was_made());
    let plain = Analysis::from_file(&path, &LoadOptions::default()).expect("a recording");
    same(index.analysis(), &plain);
    // The temporary file of a killed prof is removed; that of a running one stays.
    fs::write(f.0.join("r.prof.idx.4194305.tmp"), "x").expect("written");
    fs::write(f.0.join("r.prof.idx.1.tmp"), "x").expect("written");
    fs::write(&path, &m.bytes).expect("written");
    assert!(open(&ALWAYS).was_made());
    assert_eq!(f.files(), ["r.prof", "r.prof.idx", "r.prof.idx.1.tmp"]);
}

#[test]
fn short_and_growing_recordings_leave_no_index_behind() {
    let (_, m) = random(5, 500);
    let f = Folder::new("short", &m.bytes);
    assert!(Index::open(&f.recording(), &IndexOptions::default()).expect("read").was_made());
    assert_eq!(f.files(), ["r.prof"]);

    let mut target = common::target();
    target.pid = std::process::id();
    target.exe = std::env::current_exe().expect("a path").to_string_lossy().into_owned();
    let mut m = Maker::of(&target);
    m.pass(START).events(1, &[alloc(START + 5, 16, 100, 1)]);
    let f = Folder::new("growing", &m.bytes);
    let index = Index::open(&f.recording(), &ALWAYS).expect("read");
    assert_eq!(index.analysis().notes(), [Note::Growing]);
    assert_eq!((index.rows(), index.path()), (1, None));
    assert_eq!(f.files(), ["r.prof"]);
}

#[test]
fn a_damaged_index_is_made_anew_or_named() {
    let (w, m) = random(6, 3000);
    let f = Folder::new("damaged", &m.bytes);
    let (path, idx) = (f.recording(), path_of(&f.recording()));
    let plain = Analysis::from_file(&path, &LoadOptions::default()).expect("a recording");
    Index::open(&path, &ALWAYS).expect("an index");
    let good = fs::read(&idx).expect("an index");
    let mut expected = w.blocks.clone();
    expected.sort();
    let mut r = Random(77);
    let (mut remade, mut named) = (0, 0);
    for i in 0..300 {
        let mut bad = good.clone();
        match i % 3 {
            0 => bad.truncate(r.below(good.len() as u64) as usize),
            1 => bad[r.below(600.min(good.len() as u64)) as usize] ^= 1 << r.below(8),
            _ => bad[r.below(good.len() as u64) as usize] ^= 1 << r.below(8),
        }
        fs::write(&idx, &bad).expect("written");
        let index = Index::open(&path, &ALWAYS).expect("an index");
        same(index.analysis(), &plain);
        let count = |n: &mut u64, b: &mut prof_analyze::index::Block<'_>| {
            let mut values = Vec::new();
            for c in [Column::Addr, Column::Size, Column::Begin, Column::Position] {
                b.read(c, &mut values)?;
            }
            *n += values.len() as u64;
            Some(())
        };
        match index.scan(|| 0u64, count) {
            Ok(n) => assert_eq!(n.iter().sum::<u64>(), expected.len() as u64),
            Err(e) => {
                named += 1;
                assert!(e.to_string().contains("r.prof.idx"), "{e}");
            }
        }
        remade += u64::from(index.was_made());
    }
    assert!(remade > 100 && named > 20, "{remade} {named}");
}

#[test]
fn without_a_place_for_it_the_index_is_somewhere_else_and_that_is_said() {
    let (w, m) = random(8, 500);
    let f = Folder::new("unwritable", &m.bytes);
    // Put a folder in its place, as root may write anywhere else.
    fs::create_dir(path_of(&f.recording())).expect("a folder");
    let index = Index::open(&f.recording(), &ALWAYS).expect("read");
    assert_eq!((index.rows(), index.path()), (w.blocks.len() as u64, None));
    let missing = Path::new("/nonexistent/x.prof");
    assert!(Index::open(missing, &ALWAYS).is_err());
}

#[test]
fn what_is_no_file_is_no_index() {
    let (_, m) = random(8, 500);
    let f = Folder::new("fifo", &m.bytes);
    let path = f.recording();
    let made = std::process::Command::new("mkfifo").arg(path_of(&path)).status();
    assert!(made.expect("mkfifo").success());
    // A FIFO without a writer, which must not be waited for.
    let i = Index::open(&path, &IndexOptions::default()).expect("a recording");
    assert!(i.was_made());
}

#[test]
fn chains_with_a_start_or_an_end_that_is_not_known() {
    let mut m = Maker::new();
    m.pass(START).events(
        1,
        &[
            realloc(1010, 1011, 0x500, 0x600, 10, 1), // of a block from before
            realloc(1020, 1021, 0x600, 0x700, 20, 1),
            alloc(1030, 0x800, 5, 1),
            realloc(1040, 1041, 0x800, 0, 30, 1), // to nothing, as nobody records it
            realloc(1050, 1051, 0x900, 0xa00, 40, 1),
            free(1060, 0xa00),
        ],
    );
    m.end(2000);
    let file: Temp = m.file();
    let index = Index::open(&file.0, &NEVER).expect("read");
    let rows: Vec<_> =
        blocks(&index).iter().map(|b| (b.addr, b.chain, b.position, b.continued)).collect();
    assert_eq!(
        rows,
        [(0x600, 1, 1, true), (0x700, 1, 2, false), (0x800, 2, 0, true), (0xa00, 0, 1, false)]
    );
}

/// Appends to a recording as a collector does.
fn append(path: &Path, bytes: &[u8]) {
    use std::io::Write;
    let mut file = fs::OpenOptions::new().append(true).open(path).expect("a recording");
    file.write_all(bytes).expect("written");
}

#[test]
fn the_index_of_a_growing_recording_is_kept_as_it_grows() {
    for (seed, steps, parts) in [(1, 2000, 9), (2, 3000, 40), (3, 500, 3), (4, 60_000, 5)] {
        let (w, m) = random(seed, steps);
        let (first, rest) = m.bytes.split_at(m.bytes.len() / parts);
        let f = Folder::new(&format!("grows-{seed}"), first);
        let path = f.recording();
        let mut growing = Growing::open(&path, &NEVER).expect("a recording").expect("a file");
        let mut follower = Follower::open(&path).expect("a recording");
        let mut looks: Vec<(Index, Vec<Block>)> = Vec::new();
        // The parts end anywhere, mostly in the middle of a chunk.
        for part in rest.chunks(rest.len() / parts + 1).map(Some).chain([None]) {
            let progress = follower.poll().expect("read");
            let index = growing.look().expect("read").expect("an index");
            let t = *index.analysis().totals();
            if !progress.finished {
                assert_eq!(t, progress.totals);
                assert_eq!(*index.course(), follower.course());
                assert_eq!(index.analysis().groups(), follower.groups());
            }
            let rows = blocks(&index);
            let live = rows.iter().filter(|b| b.end.is_none()).count() as u64;
            assert_eq!((rows.len() as u64, live), (t.figures.begun(), t.figures.live_count));
            looks.push((index, rows));
            part.inspect(|part| append(&path, part));
        }
        // A later look changes no earlier one.
        looks.iter().for_each(|(index, rows)| assert_eq!(blocks(index), *rows));
        let (index, rows) = looks.pop().expect("a look");
        let mut expected = w.blocks.clone();
        expected.sort();
        assert_eq!(rows, expected, "seed {seed}");
        let plain = Analysis::from_file(&path, &LoadOptions::default()).expect("a recording");
        same(index.analysis(), &plain);
        assert!(growing.look().expect("read").is_none(), "a finished recording is opened as such");
        assert_eq!(f.files(), ["r.prof"]);
    }
}

#[test]
fn a_recording_that_is_replaced_or_cut_is_not_followed() {
    let mut m = Maker::new();
    m.pass(START).events(1, &[alloc(START + 5, 16, 100, 1)]).pass(START + 10);
    let f = Folder::new("replaced", &m.bytes);
    let path = f.recording();
    let open = || Growing::open(&path, &NEVER).expect("a recording").expect("a file");
    let mut growing = open();
    assert!(growing.look().expect("read").is_some());
    fs::write(f.0.join("other"), &m.bytes).expect("written");
    fs::rename(f.0.join("other"), &path).expect("renamed");
    assert!(growing.look().expect("read").is_none(), "another file has the name");
    let mut growing = open();
    assert!(growing.look().expect("read").is_some());
    let file = fs::OpenOptions::new().write(true).open(&path).expect("a recording");
    file.set_len(100).expect("cut");
    assert!(growing.look().expect("read").is_none(), "it has become shorter");
}
