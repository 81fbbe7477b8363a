//! Fuzzes files derived from recordings: indexes, recordings made from others, cached names.

use super::Input;
use prof_analyze::allocator::{AllocatorOptions, AllocatorReport, OverheadSort};
use prof_analyze::export::{Cost, Format, Source};
use prof_analyze::fragmentation::{Fragmentation, FragmentationOptions};
use prof_analyze::index::{IndexOptions, Keep, path_of, reseal};
use prof_analyze::info::Info;
use prof_analyze::leaks::Leaks;
use prof_analyze::query::{Filter, Query};
use prof_analyze::report::{Report, ReportOptions};
use prof_analyze::rewrite::{ExtractOptions, PackOptions, extract, pack, strip};
use prof_analyze::symbols::{SymbolCache, SymbolOptions, Symbolizer};
use prof_analyze::{Analysis, Index, LoadOptions, load::Pc};
use prof_trace::chunk;
use prof_trace::event::{Codec, Event, MAX_EVENT};
use prof_trace::records::{Events, Module, NodeRun, Pass, Pcs, Symbols, Target, Thread, kind};
use prof_trace::ticks::Ticks;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

/// A temporary folder, which is removed on drop.
struct Dir(PathBuf);

impl Dir {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("prof-fuzz-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed));
        let shared = Path::new("/dev/shm");
        let base = if shared.is_dir() { shared.to_owned() } else { std::env::temp_dir() };
        let dir = base.join(name);
        fs::create_dir(&dir).expect("a folder");
        Self(dir)
    }

    fn put(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, bytes).expect("written");
        path
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Returns a recording of some hundred blocks of four stacks, including reallocated ones.
fn sample() -> &'static [u8] {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    BYTES.get_or_init(|| {
        let mut out = chunk::file_header().to_vec();
        let target = Target { pid: 4_000_001, ticks_per_sec: 1_000_000_000, ..Target::default() };
        chunk::put(&mut out, kind::TARGET, &target.encode());
        let module =
            Module { number: 1, end: 0x9000, path: "/lib/one.so".into(), ..Module::default() };
        chunk::put(&mut out, kind::MODULE, &module.encode());
        let mut symbols = Symbols { module: 1, ..Symbols::default() };
        for (n, name) in (1..).zip(["outer", "_ZN5inner4callEv", "third", "fourth"]) {
            let at = symbols.names.len() as u64;
            symbols.symbols.extend([n * 0x100, 0x100, at, name.len() as u64]);
            symbols.names.extend(name.as_bytes());
        }
        chunk::put(&mut out, kind::SYMBOLS, &symbols.encode());
        let pcs = (1..=4).flat_map(|n| [n, n * 0x100 + 8, 1]).collect();
        chunk::put(&mut out, kind::PCS, &Pcs { triples: pcs }.encode());
        let mut nodes = NodeRun::default();
        (1..=4).for_each(|n| nodes.push(n, n - 1, n));
        chunk::put(&mut out, kind::NODE_RUN, &nodes.encode());
        for t in 1..=2 {
            let thread = Thread { number: t, tid: 100 + t, name: format!("thread {t}") };
            chunk::put(&mut out, kind::THREAD, &thread.encode());
        }
        chunk::put(
            &mut out,
            kind::PASS,
            &Pass { number: 1, ticks: Ticks(1), ..Pass::default() }.encode(),
        );
        for thread in 1..=2 {
            let mut codec = Codec::default();
            let (mut bytes, mut count) = (Vec::new(), 0);
            for i in 0..300u64 {
                let (time, addr, node) =
                    (1000 * i + 7, 0x10000 * u64::from(thread) + 64 * (i % 90), 1 + i as u32 % 4);
                let event = match i % 7 {
                    0 | 2 | 4 => {
                        Event::Alloc { time: Ticks(time), addr, size: (i * 3).into(), node }
                    }
                    5 => Event::Realloc {
                        time_before: Ticks(time - 3),
                        time: Ticks(time),
                        old: addr - 64,
                        addr,
                        size: i.into(),
                        node,
                    },
                    _ => Event::Free { time: Ticks(time), addr: addr - 64, node: 0 },
                };
                let at = bytes.len();
                bytes.resize(at + MAX_EVENT, 0);
                let to = bytes[at..].as_mut_ptr();
                // SAFETY: MAX_EVENT bytes were added on the line before.
                let n = unsafe {
                    match event {
                        Event::Alloc { time, addr, size, node } => {
                            codec.put_alloc(to, time, addr, size, node)
                        }
                        Event::Free { time, addr, node } => codec.put_free(to, time, addr, node),
                        Event::Realloc { time_before, time, old, addr, size, node } => {
                            codec.put_realloc(to, time_before, time, old, addr, size, node)
                        }
                    }
                };
                bytes.truncate(at + n);
                count += 1;
            }
            let e = Events { thread, count, bytes, ..Events::default() };
            chunk::put(&mut out, kind::EVENTS, &e.encode());
        }
        out
    })
}

/// Makes all queries on an index.
fn ask(index: &Index, dir: &Dir) {
    for filter in [
        None,
        Some(("lifetime", "chain-leaked")),
        Some(("min-chain-length", "2")),
        Some(("from", "20%")),
    ] {
        let mut f = Filter::default();
        if let Some((name, value)) = filter {
            f.set(name, value).expect("a filter");
        }
        let Ok(query) = Query::new(index, &f) else { continue };
        if let Ok(analysis) = query.analysis(None) {
            let report = Report::new(&analysis, &ReportOptions::default());
            let _ = (report.text(Default::default()), report.json());
        }
        let _ = Leaks::new(index, &query, &Default::default()).map(|l| l.text(Default::default()));
        let sparse = FragmentationOptions { top: 5, sparse: 0.25, at: None, filter: Vec::new() };
        let _ = Fragmentation::new(index, &query, &sparse);
        let (sort, filter) = (OverheadSort::default(), Vec::new());
        let options = AllocatorOptions { top: 5, sort, at: None, filter };
        let _ = AllocatorReport::new(index, &query, &options)
            .map(|r| (r.text(Default::default()), r.json()));
        for format in [
            Format::Csv,
            Format::Json,
            Format::Replay,
            Format::Massif,
            Format::Heaptrack,
            Format::Pprof,
        ] {
            let source = Source {
                index,
                query: &query,
                at: None,
                cost: Cost::Live,
                filter: Vec::new(),
                held: None,
            };
            let _ = source.write(format, &mut std::io::sink());
        }
    }
    let _ = Info::new(index).map(|i| i.json());
    let mut stripped = Vec::new();
    if strip(index, 10_000, &mut stripped).is_ok() {
        let path = dir.put("stripped", &stripped);
        Analysis::from_file(&path, &LoadOptions::default())
            .expect("what strip writes is a recording");
    }
}

/// The index of a recording, with some bytes changed and its checksums corrected. The input consists of an offset
/// (three bytes) and a byte each.
pub fn index(bytes: &[u8]) {
    let dir = Dir::new();
    let path = dir.put("r.prof", sample());
    let options = IndexOptions { keep: Keep::Always, ..IndexOptions::default() };
    drop(Index::open(&path, &options).expect("an index"));
    let at = path_of(&path);
    let mut index = fs::read(&at).expect("an index");
    let mut input = Input(bytes);
    if input.int(1) == 1 {
        index.truncate(input.int(3) as usize % (index.len() + 1));
    }
    while !input.is_empty() && !index.is_empty() {
        let (place, byte) = (input.int(3) as usize % index.len(), input.int(1) as u8);
        index[place] = byte;
    }
    reseal(&mut index, &fs::File::open(&path).expect("the recording"));
    fs::write(&at, &index).expect("written");
    if let Ok(index) = Index::open(&path, &options) {
        ask(&index, &dir);
    }
}

/// Chunks as in [`recording`](super::recording), and the files derived from such a recording: stripped, packed,
/// anonymized, and extracted.
pub fn derived(bytes: &[u8]) {
    let dir = Dir::new();
    let mut input = Input(bytes);
    let mut whole = match input.int(1) {
        0 => chunk::file_header().to_vec(),
        _ => sample().to_vec(),
    };
    while !input.is_empty() {
        let (kind, len) = (input.int(1) as u16, input.int(2) as usize);
        chunk::put(&mut whole, kind, input.bytes(len));
    }
    let path = dir.put("r.prof", &whole);
    let load = LoadOptions::default();
    let never = IndexOptions { keep: Keep::Never, load, dir: None };
    let Ok(index) = Index::open(&path, &never) else { return };
    ask(&index, &dir);
    drop(index);
    for anonymize in [Default::default(), prof_analyze::rewrite::Anonymize::Full] {
        let mut packed = Vec::new();
        let options = PackOptions { anonymize, ..PackOptions::default() };
        let Ok(analysis) = Analysis::from_file(&path, &load) else { return };
        if pack(&analysis, &options, &mut packed).is_ok() {
            let packed = dir.put("packed", &packed);
            let index = Index::open(&packed, &never).expect("what pack writes is a recording");
            ask(&index, &dir);
        }
    }
    let options = ExtractOptions { most: 1 << 20 };
    let _ = extract(&path, &dir.0.join("out"), &options);
}

/// A file of cached names; `@KEY@` is replaced by the right key.
pub fn names(bytes: &[u8]) {
    let dir = Dir::new();
    // An empty program.
    let mut elf = [0u8; 64];
    elf[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
    elf[16..24].copy_from_slice(&[3, 0, 62, 0, 1, 0, 0, 0]);
    elf[52] = 64;
    let program = dir.put("program", &elf).to_string_lossy().into_owned();
    let mut recording = chunk::file_header().to_vec();
    let target = Target { pid: 4_000_001, ..Target::default() };
    chunk::put(&mut recording, kind::TARGET, &target.encode());
    let module = Module { number: 1, end: u64::MAX, path: program, ..Module::default() };
    chunk::put(&mut recording, kind::MODULE, &module.encode());
    let path = dir.put("r.prof", &recording);
    let mut analysis = Analysis::from_file(&path, &LoadOptions::default()).expect("a recording");
    let folder = dir.0.join("cache");
    let cache = SymbolCache { folder: folder.clone(), worth: Duration::ZERO };
    analysis.set_symbol_options(SymbolOptions { cache: Some(cache), ..SymbolOptions::default() });
    let ask = |from: u64| {
        let mut symbols = Symbolizer::new(&analysis);
        for address in from..from + 4 {
            let frames = symbols.frames(Pc { address, module: 1, exact: false });
            assert!(!frames.is_empty());
        }
    };
    ask(0);
    let kept = fs::read_dir(&folder).expect("a folder").flatten().next().expect("a file").path();
    let own = fs::read_to_string(&kept).expect("JSON");
    let key = own.split_once("\"key\":\"").and_then(|(_, rest)| rest.split_once('"'));
    let key = key.map_or("", |k| k.0);
    let mut file = Vec::new();
    let mut rest = bytes;
    while let Some(at) = rest.windows(5).position(|w| w == b"@KEY@") {
        file.extend_from_slice(&rest[..at]);
        file.extend_from_slice(key.as_bytes());
        rest = &rest[at + 5..];
    }
    file.extend_from_slice(rest);
    fs::write(&kept, &file).expect("written");
    ask(2);
    ask(4);
}
