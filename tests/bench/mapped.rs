//! Makes a recording of a number of pairs of mmap and munmap, and reads its mappings: mapped FILE PAIRS [make]
//!
//! Prints the time, and the most memory that was resident meanwhile, of each step. With `make` it only makes the file.

use prof_analyze::maps::Maps;
use prof_analyze::{Index, IndexOptions};
use prof_trace::chunk;
use prof_trace::records::{
    Call, CallKind, Calls, End, MAPPINGS_ANEW, MappingLine, Mappings, Nodes, Pass, Pcs, Target,
    Thread, kind, perms,
};
use prof_trace::ticks::Ticks;
use std::error::Error;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::time::Instant;

/// Threads that map and unmap.
const THREADS: u32 = 8;
/// Pairs of each thread between two passes.
const PAIRS: u64 = 500;

fn put(out: &mut impl Write, kind: u16, payload: &[u8]) -> std::io::Result<()> {
    let mut bytes = Vec::new();
    chunk::put(&mut bytes, kind, payload);
    out.write_all(&bytes)
}

fn make(path: &str, pairs: u64) -> Result<(), Box<dyn Error>> {
    let mut out = BufWriter::new(File::create(path)?);
    out.write_all(&chunk::file_header())?;
    let target = Target {
        pid: 4_000_001,
        comm: "mapped".into(),
        arch: "x86_64".into(),
        pointer_size: 8,
        page_size: 4096,
        ticks_per_sec: 1_000_000_000,
        ..Target::default()
    };
    put(&mut out, kind::TARGET, &target.encode())?;
    let triples = vec![1, 0, 1, 2, 1, 2, 3, 1, 3];
    put(&mut out, kind::NODES, &Nodes { triples }.encode())?;
    put(&mut out, kind::PCS, &Pcs { triples: vec![1, 0x10, 0, 2, 0x20, 0, 3, 0x30, 0] }.encode())?;
    for number in 1..=THREADS {
        put(
            &mut out,
            kind::THREAD,
            &Thread { number, tid: 100 + number, name: "t".into() }.encode(),
        )?;
    }
    let mut first =
        Mappings { begun: Ticks(1), ticks: Ticks(2), flags: MAPPINGS_ANEW, ..Mappings::default() };
    let line =
        MappingLine { start: 0x1000, end: 0x9000, perms: perms::READ, ..MappingLine::default() };
    first.put(&line, &mut 0);
    put(&mut out, kind::MAPPINGS, &first.encode())?;
    let (mut made, mut time, mut number, mut random) = (0, 1000u64, 0, 88_172_645_463_325_252u64);
    while made < pairs {
        let pass = Pass { number, ticks: Ticks(time), clock_ns: time, rss_pages: 0, vss_pages: 0 };
        put(&mut out, kind::PASS, &pass.encode())?;
        number += 1;
        let mut end = time;
        for thread in 1..=THREADS {
            let (mut calls, mut t) = (Vec::new(), time);
            for _ in 0..PAIRS {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                let addr = (u64::from(thread) << 36) + (random >> 20 & 63) * 0x10_000;
                let len = 0x1000 << (random >> 40 & 3);
                let call = Call { addr, len, fd: -1, ..Call::default() };
                calls.push((
                    thread,
                    Call {
                        kind: CallKind::Mmap,
                        begin: Ticks(t),
                        end: Ticks(t + 700),
                        prot: 3,
                        flags: 0x22,
                        node: 2,
                        ..call.clone()
                    },
                ));
                t += 1500 + (random >> 50);
                calls.push((
                    thread,
                    Call {
                        kind: CallKind::Munmap,
                        begin: Ticks(t),
                        end: Ticks(t + 900),
                        node: 3,
                        ..call
                    },
                ));
                t += 1000;
            }
            end = end.max(t);
            put(&mut out, kind::CALLS, &Calls { calls }.encode())?;
            made += PAIRS;
        }
        time = end + 1000;
    }
    let pass = Pass { number, ticks: Ticks(time), clock_ns: time, rss_pages: 0, vss_pages: 0 };
    put(&mut out, kind::PASS, &pass.encode())?;
    put(&mut out, kind::END, &End { ticks: Ticks(time), reason: "detached".into() }.encode())?;
    Ok(out.flush()?)
}

/// Returns the most memory that was ever resident, in MiB.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    line.and_then(|l| l.trim().split(' ').next()?.parse::<u64>().ok()).unwrap_or(0) / 1024
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [path, pairs, rest @ ..] = &args[..] else { return Err("mapped FILE PAIRS [make]".into()) };
    if rest.first().is_some_and(|w| w == "make") {
        make(path, pairs.parse()?)?;
        println!("{} MiB", std::fs::metadata(path)?.len() >> 20);
        return Ok(());
    }
    let step = |name: &str, since: Instant| {
        println!("{name:<20} {:>6.2} s  at most {} MiB", since.elapsed().as_secs_f64(), peak());
    };
    let since = Instant::now();
    let index = Index::open(path.as_ref(), &IndexOptions::default())?;
    step("the recording", since);
    let since = Instant::now();
    let maps = Maps::of(index.analysis())?;
    step("its mappings", since);
    let since = Instant::now();
    let (mut n, mut bytes) = (0u64, 0u64);
    maps.each(|m| {
        n += 1;
        bytes = bytes.wrapping_add(m.size);
    });
    step("a look at each", since);
    println!("{n} mappings of {bytes} bytes in all");
    Ok(())
}
