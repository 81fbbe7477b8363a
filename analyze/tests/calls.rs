//! Calls that change mappings are passed on in the order of time, with their files, and change no other figure.

mod common;

use common::{Maker, alloc, free, mmap, munmap};
use prof_analyze::load::{MapEvent, Op, Sink, Stream, calls};
use prof_analyze::rewrite::{self, Anonymize, PackOptions};
use prof_analyze::{Analysis, Index, IndexOptions, LoadOptions};

use prof_trace::records::{Call, CallFile, CallKind};

#[derive(Default)]
struct Seen {
    calls: Vec<MapEvent>,
    ops: usize,
}

impl Sink for Seen {
    fn take(&mut self, ops: &[Op]) {
        self.ops += ops.len();
    }

    fn take_calls(&mut self, calls: &[MapEvent]) {
        self.calls.extend_from_slice(calls);
    }
}

fn recording() -> Maker {
    let mut m = Maker::new();
    let file = CallFile { id: 1, device: 8 << 32 | 1, inode: 77, path: "/data/index".into() };
    m.thread(1, 11, "one").thread(2, 12, "two");
    m.pcs(&[[1, 0x5000, 0]]).nodes(&[[1, 0, 1], [2, 0, 1]]);
    m.pass(1000).call_file(&file);
    let of_file = Call { fd: 5, offset: 4096, file: 1, ..mmap(1500, 1600, 0x9000, 8192, 2) };
    m.calls(&[(1, mmap(1100, 1400, 0x1000, 4096, 1)), (2, of_file)]);
    m.events(1, &[alloc(1200, 0x40, 10, 1), free(1300, 0x40)]);
    // Written later, but from before: a release counts from its begin on.
    m.pass(1650).calls(&[(2, munmap(1390, 1700, 0x1000, 4096, 1))]);
    m.pass(2000).calls(&[(
        1,
        Call { name: "late".into(), kind: CallKind::NameVma, ..mmap(2100, 2200, 0x9000, 4096, 0) },
    )]);
    m.end(3000);
    m
}

#[test]
fn calls_come_in_the_order_of_time_with_their_files() {
    let file = recording().file();
    let mut seen = Seen::default();
    let mut stream = Stream::open(&file.0, &LoadOptions::default()).expect("a recording");
    stream.advance(&mut seen).and_then(|()| stream.finish(&mut seen)).expect("read");
    let at: Vec<_> = seen.calls.iter().map(|e| (e.call.at().0, e.thread, e.call.kind)).collect();
    assert_eq!(
        at,
        [
            (1390, 2, CallKind::Munmap),
            (1400, 1, CallKind::Mmap),
            (1600, 2, CallKind::Mmap),
            (2200, 1, CallKind::NameVma),
        ]
    );
    // Nodes 1 and 2 are the same stack.
    assert!(seen.calls[..3].iter().all(|e| e.call.node == 1));
    let file_of = seen.calls[2].file.as_ref().expect("the file");
    assert_eq!((file_of.path.as_str(), file_of.inode), ("/data/index", 77));
    assert!(seen.calls[1].file.is_none());
    assert_eq!((seen.calls[3].call.name.as_str(), seen.ops), ("late", 2));
    let mut alone = Vec::new();
    let meta = calls(&file.0, |e| alone.push(e.clone())).expect("read");
    assert_eq!((alone, meta.bad_chunks), (seen.calls, 0));
}

#[test]
fn blocks_do_not_depend_on_calls() {
    let a = recording().analysis();
    assert_eq!((a.events(), a.meta().bad_chunks), (2, 0));
}

#[test]
fn a_damaged_chunk_of_calls_is_counted() {
    let mut m = Maker::new();
    m.pass(1000).put(prof_trace::records::kind::CALLS, &[2, 200]).end(2000);
    let file = m.file();
    let mut n = 0;
    let meta = calls(&file.0, |_| n += 1).expect("read");
    assert_eq!((n, meta.bad_chunks), (0, 1));
}

/// Returns the calls of a recording that was made of another.
fn rewritten(write: impl FnOnce(&std::path::Path, &mut Vec<u8>)) -> Vec<MapEvent> {
    let (file, mut bytes) = (recording().file(), Vec::new());
    write(&file.0, &mut bytes);
    let (file, mut all) = (common::Temp::new(&bytes), Vec::new());
    let meta = calls(&file.0, |e| all.push(e.clone())).expect("a recording");
    assert_eq!(meta.bad_chunks, 0);
    all
}

#[test]
fn recordings_made_of_others_keep_calls_and_anonymized_ones_no_names() {
    let (file, mut before) = (recording().file(), Vec::new());
    calls(&file.0, |e| before.push(e.clone())).expect("a recording");
    let pack = |anonymize| {
        rewritten(|path, out| {
            let options = PackOptions { anonymize, ..PackOptions::default() };
            let analysis = Analysis::from_file(path, &LoadOptions::default()).expect("a recording");
            rewrite::pack(&analysis, &options, out).expect("packed");
        })
    };
    assert_eq!(pack(Anonymize::None), before);
    let partial = pack(Anonymize::Partial);
    assert_eq!(partial[2].file.as_ref().map(|f| f.path.as_str()), Some("index"));
    let full = pack(Anonymize::Full);
    let file = full[2].file.as_ref().expect("a file");
    assert_eq!((file.path.as_str(), file.device, file.inode), ("lib_0", 0, 1));
    assert_eq!(full[3].call.name, "map_0");
    let stripped = rewritten(|path, out| {
        let index = Index::open(path, &IndexOptions::default()).expect("an index");
        rewrite::strip(&index, 1, out).expect("stripped");
    });
    assert_eq!(stripped, before);
}
