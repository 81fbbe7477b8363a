//! Measures how small events become and at what cost: packs the events of recordings again.
//!
//!     prof run --compress none -o a.prof -- sqlite3 :memory: ...
//!     cargo run --release -p prof-trace --features std --example pack a.prof ...

use prof_trace::chunk::{self, Next};
use prof_trace::event::Codec;
use prof_trace::pack::{Compress, Packed, Packer, Unpacker};
use prof_trace::records::{Events, kind};
use std::hint::black_box;
use std::time::{Duration, Instant};

fn main() -> std::io::Result<()> {
    for path in std::env::args().skip(1) {
        let file = std::fs::read(&path)?;
        let (mut at, mut runs) = (chunk::FILE_HEADER, Vec::new());
        while let Next::Chunk(k, payload, n) = chunk::next(&file[at..]) {
            at += n;
            runs.extend((k == kind::EVENTS).then(|| Events::decode(payload)).flatten());
        }
        let events: u64 = runs.iter().map(|r| u64::from(r.count)).sum();
        let bytes: usize = runs.iter().map(|r| r.bytes.len()).sum();
        if events == 0 {
            println!("{path}: no events that are not packed");
            continue;
        }
        let per = |d: Duration| d.as_nanos() as f64 / events as f64;
        let size = |n: usize| n as f64 / events as f64;
        let scan = best(|| {
            for r in &runs {
                let (mut codec, mut at) = (r.codec(), 0);
                while let Some((e, n)) = codec.get(&r.bytes[at..]) {
                    black_box(e.node());
                    at += n;
                }
            }
        });
        println!("{path}: {events} events, {:.2} bytes, read {:.1} ns", size(bytes), per(scan));
        for how in [Compress::None, Compress::Fast, Compress::Best] {
            let mut payloads = Vec::new();
            let took = best(|| payloads = pack(&runs, how));
            let small = payloads.iter().map(Vec::len).sum::<usize>();
            let mut unpacker = Unpacker::default();
            let back = best(|| {
                for p in &payloads {
                    if let Some(p) = Packed::read(p) {
                        unpacker.unpack(&p, |_, e| {
                            black_box(e);
                        });
                    }
                }
            });
            let name = if how == Compress::None { "columns" } else { how.name() };
            println!(
                "  {name:<8} {:.2} bytes, read and packed in {:.1} ns, unpacked in {:.1} ns",
                size(small),
                per(took),
                per(back)
            );
        }
    }
    Ok(())
}

fn pack(runs: &[Events], how: Compress) -> Vec<Vec<u8>> {
    let (mut packer, mut out) = (Packer::new(), Vec::new());
    let mut payload = Vec::new();
    for r in runs {
        if !packer.has_room(r.bytes.len()) {
            packer.finish(how, &mut payload);
            out.push(std::mem::take(&mut payload));
        }
        let mut codec: Codec = r.codec();
        packer.run(r.thread, &mut codec, &r.bytes, |n| {
            black_box(n);
        });
    }
    packer.finish(how, &mut payload);
    out.push(payload);
    out
}

/// Returns the shortest time of five runs.
fn best(mut f: impl FnMut()) -> Duration {
    let one = |_| {
        let t = Instant::now();
        f();
        t.elapsed()
    };
    (0..5).map(one).min().unwrap_or_default()
}
