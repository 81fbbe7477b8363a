//! Fuzzes readers of ELF files, on disk and in the memory of a process.

use super::memory_file;
use prof_analyze::report::{Report, ReportOptions};
use prof_analyze::{Analysis, LoadOptions};
use prof_collect::{Output, write_prologue};
use prof_inject::process::elf as modules;
use prof_inject::process::elf_file::ElfFile;
use prof_inject::{RemoteAddr, RemoteMemory};
use prof_os::Pid;
use prof_os::maps::Map;
use prof_trace::chunk;
use prof_trace::event::{Codec, Event};
use prof_trace::records::{Hooks, Module, Nodes, Pass, Pcs, Target, Toggle, kind};
use prof_trace::ticks::Ticks;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Reads the input as a file, as a module of this process, as a module in its memory, and as a file that a recording
/// names.
pub fn elf(bytes: &[u8]) {
    static FILE: OnceLock<(File, PathBuf)> = OnceLock::new();
    let (file, path) = FILE.get_or_init(|| memory_file(c"module"));
    file.set_len(0).expect("cut");
    file.write_all_at(bytes, 0).expect("write");
    injector(bytes, path);
    let build_id = prof_collect::module_symbols(file).map(|(id, symbols)| {
        assert_eq!(symbols.map_or(0, |s| s.symbols.len()) % 4, 0);
        id
    });
    for id in [build_id.unwrap_or_default(), Vec::new()] {
        analyser(path, bytes.len() as u64, id);
    }
}

fn injector(bytes: &[u8], path: &Path) {
    if let Some(file) = ElfFile::of_bytes(bytes.to_vec()) {
        let _ = (file.find(b"ret"), file.code(), file.section(".eh_frame"));
    }
    let pid = Pid::this();
    let Ok(mem) = RemoteMemory::open(pid) else { return };
    let mut copy = bytes.to_vec();
    copy.resize(bytes.len().next_multiple_of(4096), 0);
    let start = RemoteAddr(copy.as_ptr() as u64);
    let map = Map {
        start,
        end: start.plus(copy.len() as u64),
        read: true,
        write: false,
        exec: true,
        shared: false,
        offset: 0,
        device: (8, 1),
        inode: 1,
        name: path.as_os_str().as_encoded_bytes().to_vec(),
    };
    if map.is_empty() {
        return;
    }
    for m in modules::modules(&mem, &[map]) {
        let _ = m.symbols(pid, &mem, |n| n.len() < 20);
        let _ = m.data_symbol(pid, &mem, "_r_debug");
        let _ = modules::r_debug(&mem, &[m]);
    }
}

/// Reports on a recording whose only stacks lead into the file.
fn analyser(path: &Path, len: u64, build_id: Vec<u8>) {
    let (mut file, recording) = memory_file(c"recording");
    write_prologue(
        &mut file,
        &Target { arch: "x86_64".into(), ticks_per_sec: 1, ..Target::default() },
        &Hooks::default(),
    )
    .expect("prologue");
    let mut out = Output::new(file.try_clone().expect("descriptor")).expect("output");
    let module = Module {
        number: 1,
        end: len.max(1 << 20),
        path: path.display().to_string(),
        build_id,
        ..Module::default()
    };
    out.put(kind::PASS, &Pass { ticks: Ticks(1), ..Pass::default() }.encode());
    out.put(kind::TOGGLE, &Toggle { ticks: Ticks(1), on: 1 }.encode());
    out.put(kind::MODULE, &module.encode());
    let (mut pcs, mut nodes, mut events) = (Vec::new(), Vec::new(), Vec::new());
    let mut codec = Codec::default();
    for i in 0..16u64 {
        let id = i + 1;
        pcs.extend([id, len * i / 16 + i, 1]);
        nodes.extend([id, 0, id]);
        let e =
            Event::Alloc { time: Ticks(2 + i), addr: 4096 * id, size: 8.into(), node: id as u32 };
        let Event::Alloc { time, addr, size, node } = e else { return };
        let mut b = [0u8; 64];
        // SAFETY: an event takes at most 64 bytes.
        let n = unsafe { codec.put_alloc(b.as_mut_ptr(), time, addr, size, node) };
        events.extend_from_slice(&b[..n]);
    }
    out.put(kind::PCS, &Pcs { triples: pcs }.encode());
    out.put(kind::NODES, &Nodes { triples: nodes }.encode());
    out.put_events(1, &Codec::default(), 16, &events);
    out.put(kind::PASS, &Pass { number: 1, ticks: Ticks(100), ..Pass::default() }.encode());
    out.flush();
    assert!(out.failure().is_none() && out.len() > chunk::FILE_HEADER as u64);
    let analysis = Analysis::from_file(&recording, &LoadOptions::default()).expect("a recording");
    let options = ReportOptions { top: 0, ..ReportOptions::default() };
    let _ = Report::new(&analysis, &options).json();
}
