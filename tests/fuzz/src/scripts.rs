//! Fuzzes scripts, with the limits that they have in a server.

use super::memory_file;
use prof_analyze::index::Keep;
use prof_analyze::{IndexOptions, LoadOptions};
use prof_script::{Limits, OutputLimits, Recording, Script, ScriptOptions, Virtual, on_stack};
use prof_trace::chunk;
use prof_trace::event::{Codec, MAX_EVENT};
use prof_trace::records::{End, Events, Nodes, Pass, Pcs, Target, Thread, kind};
use prof_trace::ticks::Ticks;
use std::io::Write;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// A script: checked, completed, and run on a small recording.
pub fn script(bytes: &[u8]) {
    static RECORDING: OnceLock<Arc<Recording>> = OnceLock::new();
    let Ok(code) = std::str::from_utf8(bytes) else { return };
    let data = RECORDING.get_or_init(recording);
    let run = || {
        let few = OutputLimits { lines: 100, text: 1 << 16, files: 4, bytes: 1 << 20 };
        let mut options = ScriptOptions::new(Box::new(Virtual::new(few, Box::new(|_| Ok(())))));
        options.data = vec![data.clone()];
        options.limits = Some(Limits {
            operations: 20_000,
            time: Duration::from_secs(10),
            selections: 1 << 16,
            memory: 1 << 28,
        });
        let mut script = Script::new(options);
        let _ = (script.is_unfinished(code), script.complete(code));
        if let Err(e) = script.run_and_print(code) {
            assert!(!e.message.contains("bug of prof"), "{e}");
        }
    };
    on_stack(run).expect("a thread");
}

/// Makes a recording of two hundred blocks of eight stacks, half of which are freed.
fn recording() -> Arc<Recording> {
    let mut out = chunk::file_header().to_vec();
    let start = 1000;
    let target = Target {
        pid: 1,
        exe: "/opt/server".into(),
        cmdline: vec!["server".into()],
        comm: "server".into(),
        arch: "x86_64".into(),
        prof_version: "0.1.0".into(),
        pointer_size: 8,
        page_size: 4096,
        start_ticks: Ticks(start),
        ticks_per_sec: 1_000_000_000,
        ..Target::default()
    };
    let mut put = |kind, payload: &[u8]| chunk::put(&mut out, kind, payload);
    put(kind::TARGET, &target.encode());
    put(kind::THREAD, &Thread { number: 1, tid: 1, name: "main".into() }.encode());
    put(kind::PCS, &Pcs { triples: (1..=8).flat_map(|n| [n, 0x1000 * n, 0]).collect() }.encode());
    put(kind::NODES, &Nodes { triples: (1..=8).flat_map(|n| [n, n / 2, n]).collect() }.encode());
    let pass = |number, ticks| Pass { number, ticks, ..Pass::default() }.encode();
    put(kind::PASS, &pass(0, Ticks(start)));
    let (mut codec, mut bytes, mut count) = (Codec::default(), Vec::new(), 0);
    for n in 1..=200u64 {
        let time = start + 10 * n;
        let mut buffer = [0u8; 2 * MAX_EVENT];
        // SAFETY: the buffer has room for two events.
        let length = unsafe {
            let first = codec.put_alloc(
                buffer.as_mut_ptr(),
                Ticks(time),
                64 * n,
                (8 * n).into(),
                1 + n as u32 % 8,
            );
            let to = buffer.as_mut_ptr().add(first);
            first + if n % 2 == 0 { codec.put_free(to, Ticks(time + 1), 64 * n, 0) } else { 0 }
        };
        count += 1 + u32::from(n % 2 == 0);
        bytes.extend_from_slice(&buffer[..length]);
    }
    put(kind::EVENTS, &Events { thread: 1, count, bytes, ..Events::default() }.encode());
    put(kind::PASS, &pass(1, Ticks(4000)));
    put(kind::END, &End { ticks: Ticks(4000), reason: "detached".into() }.encode());
    let (mut file, path) = memory_file(c"recording");
    file.write_all(&out).expect("memory");
    let options = IndexOptions { keep: Keep::Never, load: LoadOptions::default(), dir: None };
    let recording = Recording::open(&path, &options).expect("a recording");
    // Its path leads to the descriptor.
    std::mem::forget(file);
    recording
}
