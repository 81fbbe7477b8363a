//! How fast recordings are read: makes one of many events in memory-like patterns and analyses it.
//!
//!     cargo run --release -p prof-analyze --example speed [EVENTS [THREADS [LIVE [none|fast|best]]]]

use prof_analyze::{Analysis, LoadOptions};
use prof_trace::chunk;
use prof_trace::event::{Codec, MAX_EVENT};
use prof_trace::pack::{Compress, Packer};
use prof_trace::records::{Events, Pass, Target, kind};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::time::Instant;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let how = std::env::args().nth(4).map_or(Some(Compress::None), |a| Compress::from_name(&a));
    let how = how.ok_or("none, fast or best")?;
    let mut args = std::env::args().skip(1).take(3).map(|a| a.parse::<u64>());
    let mut next = |default| args.next().transpose().map(|v| v.unwrap_or(default));
    let (events, threads, live) = (next(10_000_000)?, next(4)?, next(100_000)?);
    let path = std::env::temp_dir().join(format!("prof-speed-{}.prof", std::process::id()));
    write(&path, events, threads.max(1), live.max(1), how)?;
    let bytes = path.metadata()?.len();
    for _ in 0..3 {
        let (start, cpu) = (Instant::now(), cpu_seconds());
        let a = Analysis::from_file(&path, &LoadOptions::default())?;
        let took = start.elapsed().as_secs_f64();
        let cpu = cpu_seconds() - cpu;
        let (n, f) = (a.events() as f64, a.totals().figures);
        println!(
            "{:.1} M events, {threads} threads, {} live at most, {:.1} bytes/event: {:.2} s ({:.2} s of CPU), {:.1} M events/s",
            n / 1e6,
            f.peak_count,
            bytes as f64 / n,
            took,
            cpu,
            n / took / 1e6,
        );
    }
    std::fs::remove_file(&path)?;
    Ok(())
}

/// Processor time of this process, user's and system's.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let rest = stat.rsplit(')').next().unwrap_or_default();
    let fields = rest.split_whitespace().skip(11).take(2);
    fields.filter_map(|f| f.parse::<f64>().ok()).sum::<f64>() / 100.0
}

/// Threads take turns of some events; blocks are freed by whoever comes, in a random order, once
/// `live` of them are there. A pass every 200,000 events.
fn write(path: &Path, events: u64, threads: u64, live: u64, how: Compress) -> std::io::Result<()> {
    let mut out = BufWriter::new(File::create(path)?);
    let mut buf = chunk::file_header().to_vec();
    let mut pack = (how, Packer::new());
    let target = Target {
        pid: 1,
        ticks_per_sec: 1_000_000_000,
        arch: "x86_64".into(),
        ..Default::default()
    };
    chunk::put(&mut buf, kind::TARGET, &target.encode());
    let mut x = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = move |n: u64| {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        (x >> 11) % n
    };
    let mut blocks: Vec<u64> = Vec::new();
    let mut unused: Vec<u64> = (1..=live + 1).rev().map(|i| 0x7f00_0000_0000 + i * 64).collect();
    let mut lanes: Vec<Lane> = vec![Default::default(); threads as usize];
    let (mut time, mut lane) = (0, 0);
    for i in 0..events {
        if i % 200_000 == 0 {
            for (t, l) in lanes.iter_mut().enumerate() {
                flush(&mut buf, t as u32, l, &mut pack);
            }
            end_pack(&mut buf, &mut pack);
            let pass =
                Pass { number: i, ticks: time + 1, clock_ns: time + 1, ..Default::default() };
            chunk::put(&mut buf, kind::PASS, &pass.encode());
            out.write_all(&buf)?;
            buf.clear();
        }
        if random(4) == 0 {
            lane = random(threads) as usize;
        }
        time += 50 + random(200);
        let l = &mut lanes[lane];
        let at = l.3.len();
        l.3.resize(at + MAX_EVENT, 0);
        let p = l.3[at..].as_mut_ptr();
        let full = blocks.len() as u64 >= live || (!blocks.is_empty() && random(100) < 45);
        // SAFETY: MAX_EVENT bytes were added above.
        let n = unsafe {
            if full {
                let addr = blocks.swap_remove(random(blocks.len() as u64) as usize);
                unused.push(addr);
                l.1.put_free(p, time, addr, 0)
            } else {
                let addr = unused.pop().unwrap_or(64);
                blocks.push(addr);
                l.1.put_alloc(p, time, addr, 16 + random(1000), 1 + random(5000) as u32)
            }
        };
        l.3.truncate(at + n);
        l.2 += 1;
        if l.3.len() > 16_000 {
            flush(&mut buf, lane as u32, l, &mut pack);
        }
    }
    for (t, l) in lanes.iter_mut().enumerate() {
        flush(&mut buf, t as u32, l, &mut pack);
    }
    end_pack(&mut buf, &mut pack);
    out.write_all(&buf)?;
    out.flush()
}

type Lane = (Codec, Codec, u32, Vec<u8>);

fn flush(out: &mut Vec<u8>, thread: u32, l: &mut Lane, pack: &mut (Compress, Packer)) {
    let bytes = std::mem::take(&mut l.3);
    let from = std::mem::replace(&mut l.0, l.1);
    let count = std::mem::take(&mut l.2);
    if pack.0 == Compress::None {
        let (time, addr, node) = (from.time, from.addr, from.node);
        let e = Events { thread, time, addr, node, count, bytes };
        return chunk::put(out, kind::EVENTS, &e.encode());
    }
    if !pack.1.has_room(bytes.len()) {
        end_pack(out, pack);
    }
    let mut codec = from;
    pack.1.run(thread, &mut codec, &bytes, |_| {});
}

fn end_pack(out: &mut Vec<u8>, (how, packer): &mut (Compress, Packer)) {
    let mut payload = Vec::new();
    packer.finish(*how, &mut payload);
    if !payload.is_empty() {
        chunk::put(out, kind::PACKED, &payload);
    }
}
