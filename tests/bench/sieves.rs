//! Measures what a collector's work on each event costs: packed as in a whole recording, with short-lived blocks left
//! out, and as figures alone.
//!
//!     cargo run --release -p prof-analyze --example sieves -- FILE [SECONDS [ROUNDS [WHICH]]]
//!
//! FILE is a whole recording that was made with `--compress none`. SECONDS is the threshold of `--cull`, and WHICH one of
//! `packed`, `culled` and `aggregated`.

use prof_analyze::rewrite::{Aggregate, AggregateOptions, Cull, CullOptions};
use prof_trace::chunk::{self, Next};
use prof_trace::event::Event;
use prof_trace::pack::{Compress, Packer};
use prof_trace::records::{Events, Pass, Target, kind};
use prof_trace::sieve::{Sieve, Sieved};
use std::time::Instant;

/// Counts what is left of the recording.
#[derive(Default)]
struct Left {
    bytes: Vec<u8>,
    events: u64,
}

impl Sieved for Left {
    fn pass(&mut self, _: &Pass) {}

    fn events(&mut self, _: u32, events: &[Event]) {
        self.events += events.len() as u64;
    }
}

/// A chunk of the recording that matters here.
enum Part {
    Events(Events),
    Pass(Pass),
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let bytes = std::fs::read(args.next().ok_or("give a recording")?)?;
    let seconds: f64 = args.next().map_or(Ok(10.0), |s| s.parse())?;
    let rounds: usize = args.next().map_or(Ok(3), |s| s.parse())?;
    let only = args.next();
    let is_wanted = |name: &str| only.as_deref().is_none_or(|o| o == name);
    let (mut at, mut parts, mut target) = (chunk::file_header().len(), Vec::new(), None);
    while let Next::Chunk(k, payload, n) = chunk::next(&bytes[at..]) {
        at += n;
        match k {
            kind::EVENTS => {
                parts.push(Part::Events(Events::decode(payload).ok_or("damaged events")?));
            }
            kind::PASS => parts.push(Part::Pass(Pass::decode(payload).ok_or("a damaged pass")?)),
            kind::TARGET => target = Target::decode(payload),
            _ => {}
        }
    }
    let target = target.ok_or("no target")?;
    let count = |p: &Part| if let Part::Events(e) = p { u64::from(e.count) } else { 0 };
    let events: u64 = parts.iter().map(count).sum();
    if events == 0 {
        return Err("no plain events: record with --compress none".into());
    }
    println!("{events} events, {} chunks", parts.len());
    let cull = CullOptions { threshold_ns: (seconds * 1e9) as u64, pending: 64 << 20 };
    for _ in 0..rounds {
        if is_wanted("packed") {
            say("packed", events, || pack(&parts));
        }
        if is_wanted("culled") {
            say("culled", events, || sieve(&parts, &mut Cull::new(&target, cull)));
        }
        if is_wanted("aggregated") {
            let figures = AggregateOptions { every_ns: 10_000_000_000 };
            say("aggregated", events, || sieve(&parts, &mut Aggregate::new(&target, figures)));
        }
    }
    Ok(())
}

fn say(name: &str, events: u64, work: impl FnOnce() -> Left) {
    let begin = (Instant::now(), cpu_seconds());
    let out = work();
    let (wall, cpu) = (begin.0.elapsed().as_secs_f64(), cpu_seconds() - begin.1);
    println!(
        "{name:>12}: {:6.1} ns an event, {cpu:.3} s of CPU in {wall:.3} s; {} events and {} bytes are left",
        cpu * 1e9 / events as f64,
        out.events,
        out.bytes.len()
    );
}

fn pack(parts: &[Part]) -> Left {
    let (mut packer, mut out) = (Packer::new(), Left::default());
    for part in parts {
        let Part::Events(e) = part else { continue };
        if !packer.has_room(e.bytes.len()) {
            packer.finish(Compress::Fast, &mut out.bytes);
        }
        let mut codec = e.codec();
        let (n, _) = packer.run(e.thread, &mut codec, &e.bytes, |_| ());
        out.events += u64::from(n);
    }
    packer.finish(Compress::Fast, &mut out.bytes);
    out
}

fn sieve(parts: &[Part], sieve: &mut dyn Sieve) -> Left {
    let mut out = Left::default();
    for part in parts {
        match part {
            Part::Events(e) if sieve.takes_decoded() => {
                sieve.decoded(e.thread, e.decoded().unwrap_or_default());
            }
            Part::Events(e) => sieve.events(e.thread, &e.codec(), e.count, &e.bytes),
            Part::Pass(p) => sieve.pass(p, &mut out),
        }
    }
    sieve.finish(&mut out);
    for figures in sieve.figures() {
        out.bytes.extend_from_slice(&figures.encode().1);
    }
    out
}

fn cpu_seconds() -> f64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is a timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut now) };
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}
