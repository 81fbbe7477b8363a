//! Makes recordings of figures alone.

use super::{Maker, Temp};
use prof_analyze::rewrite::{Aggregate, AggregateOptions};
use prof_trace::chunk::{self, Next};
use prof_trace::event::Event;
use prof_trace::records::{Events, Pass, Step, Target, ThreadsLeft, kind};
use prof_trace::sieve::{Figures, Sieve, Sieved};

/// Writes what a sieve lets through, which has no events.
struct Out(Maker);

impl Sieved for Out {
    fn pass(&mut self, pass: &Pass) {
        self.0.put(kind::PASS, &pass.encode());
    }

    fn events(&mut self, _: u32, events: &[Event]) {
        panic!("{} events", events.len());
    }
}

/// Makes the recording that a collector would have made of the same events, with a step after each `every`th pass. `end`:
/// it was finished.
pub(crate) fn aggregated(all: &[u8], every: u64, end: bool) -> (Temp, Vec<Step>) {
    let Next::Chunk(kind::TARGET, payload, _) = chunk::next(&all[chunk::file_header().len()..])
    else {
        panic!("no target")
    };
    let target = Target::decode(payload).expect("a target");
    let mut sieve = Aggregate::new(&target, AggregateOptions { every_ns: 1 });
    let mut out = Out(Maker::of(&target));
    out.0.put(kind::STRIPPED, &sieve.about().encode());
    let (mut at, mut last, mut passes, mut steps) =
        (chunk::file_header().len(), Vec::new(), 0u64, Vec::new());
    let mut put = |sieve: &mut Aggregate, out: &mut Out| {
        for record in sieve.figures() {
            let (kind, payload) = record.encode();
            out.0.put(kind, &payload);
            if let Figures::Step(s) = record {
                steps.push(s);
            }
        }
    };
    while let Next::Chunk(k, payload, n) = chunk::next(&all[at..]) {
        at += n;
        match k {
            kind::TARGET => {}
            kind::EVENTS => {
                let e = Events::decode(payload).expect("events");
                sieve.events(e.thread, &e.codec(), e.count, &e.bytes);
            }
            kind::THREADS_LEFT => {
                sieve.left(&ThreadsLeft::decode(payload).expect("threads").numbers);
            }
            kind::PASS => {
                // The sieve writes only the passes that tell the resident memory.
                let pass = Pass { rss_pages: 1, ..Pass::decode(payload).expect("a pass") };
                sieve.pass(&pass, &mut out);
                passes += 1;
                if passes.is_multiple_of(every) {
                    put(&mut sieve, &mut out);
                }
            }
            kind::END | kind::COUNTERS => last.push((k, payload.to_vec())),
            _ => _ = out.0.put(k, payload),
        }
    }
    if end {
        sieve.finish(&mut out);
        put(&mut sieve, &mut out);
    }
    for (k, payload) in last {
        out.0.put(k, &payload);
    }
    (out.0.file(), steps)
}
