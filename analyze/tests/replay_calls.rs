//! The calls of `prof export replay`, on random programs and on hostile files.

mod common;

use common::world::{make, write};
use common::{Maker, Random, alloc, free, realloc};
use prof_analyze::export::replay::{Call, Calls, CallsError, Sums};
use prof_analyze::export::{Cost, ExportError, Format, Source};
use prof_analyze::query::{Filter, Query};
use prof_analyze::{Index, IndexOptions};
use prof_trace::pack::Compress;
use prof_trace::records::Target;

fn export(m: &Maker, format: Format) -> Result<Vec<u8>, ExportError> {
    let file = m.file();
    let index = Index::open(&file.0, &IndexOptions::default()).expect("a recording");
    let query = Query::new(&index, &Filter::default()).expect("no filter");
    let mut out = Vec::new();
    let source = Source {
        index: &index,
        query: &query,
        at: None,
        cost: Cost::Live,
        filter: Vec::new(),
        held: None,
    };
    source.write(format, &mut out).map(|()| out)
}

fn read(bytes: &[u8]) -> Result<(Vec<Call>, Sums), CallsError> {
    let mut calls = Calls::new(bytes)?;
    let all = calls.by_ref().collect::<Result<Vec<_>, _>>()?;
    Ok((all, calls.sums()))
}

#[test]
fn a_random_programs_calls_come_back() {
    for seed in 1..20u64 {
        let mut r = Random(seed * 0x9e37_79b9_7f4a);
        let w = make(&mut r, 3000, 4);
        let bytes = export(&write(&mut r, &w, 4, Compress::Fast), Format::Replay).expect("calls");
        let (calls, sums) = read(&bytes).expect("good calls");
        let [mallocs, reallocs] = [w.counts[0], w.counts[2]];
        let count = |f: &dyn Fn(&Call) -> bool| calls.iter().filter(|c| f(c)).count() as u64;
        assert_eq!(count(&|c| matches!(c, Call::Malloc { .. })), mallocs);
        assert_eq!(count(&|c| matches!(c, Call::Realloc { .. })), reallocs);
        let ended = w.blocks.iter().filter(|b| b.end.is_some() && !b.continued).count() as u64;
        assert_eq!(count(&|c| matches!(c, Call::Free { .. })), ended);
        assert_eq!((sums.calls, sums.peak_bytes >= w.peak), (calls.len() as u64, true));
        // A naive allocator ends with the live blocks.
        let mut slots = vec![None; sums.slots as usize];
        for c in calls {
            match c {
                Call::Malloc { slot, size } => assert_eq!(slots[slot].replace(size), None),
                Call::Realloc { slot, size } => assert!(slots[slot].replace(size).is_some()),
                Call::Free { slot } => assert!(slots[slot].take().is_some()),
            }
        }
        assert_eq!(slots.iter().flatten().sum::<u64>(), w.live);
    }
}

#[test]
fn slots_are_used_again() {
    let mut m = Maker::new();
    m.pass(1000).events(
        1,
        &[
            alloc(1001, 0x1000, 10, 0),
            alloc(1002, 0x2000, 20, 0),
            free(1003, 0x1000),
            alloc(1004, 0x3000, 30, 0),
            realloc(1005, 1006, 0x2000, 0x4000, 40, 0),
            // The old block is from before the recording.
            realloc(1007, 1008, 0x9000, 0x5000, 50, 0),
            // The free of the block before was not recorded.
            alloc(1009, 0x3000, 60, 0),
        ],
    );
    m.end(2000);
    let (calls, sums) = read(&export(&m, Format::Replay).expect("calls")).expect("good calls");
    let want = [
        Call::Malloc { slot: 0, size: 10 },
        Call::Malloc { slot: 1, size: 20 },
        Call::Free { slot: 0 },
        Call::Malloc { slot: 0, size: 30 },
        Call::Realloc { slot: 1, size: 40 },
        Call::Malloc { slot: 2, size: 50 },
        Call::Free { slot: 0 },
        Call::Malloc { slot: 0, size: 60 },
    ];
    assert_eq!(calls, want);
    assert_eq!(sums, Sums { calls: 8, slots: 3, peak_bytes: 150 });
}

#[test]
fn hostile_files_are_refused() {
    let mut m = Maker::new();
    m.pass(1000).events(1, &[alloc(1001, 0x1000, 300, 0), free(1002, 0x1000)]);
    let good = export(&m, Format::Replay).expect("calls");
    assert!(read(&good).is_ok());
    for cut in 0..good.len() {
        assert!(read(&good[..cut]).is_err(), "{cut}");
    }
    let head = &good[..12];
    let with = |rest: &[u8]| [head, rest].concat();
    for bad in [
        &[2u8][..],                                                    // frees what is not there
        &[5, 10],                                                      // leaves a slot out
        &[1, 10, 1, 10],                                               // fills one twice
        &[3, 10],                                                      // resizes nothing
        &[1, 10, 0, 1, 1, 11],                                         // another sum
        &[4, 0, 0, 0],                                                 // an end with a slot
        &[0xff; 12],                                                   // no number
        &[1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1], // no size
    ] {
        assert!(matches!(read(&with(bad)), Err(CallsError::Damaged(_))), "{bad:?}");
    }
    let mut newer = good.clone();
    newer[8] = 2;
    assert!(matches!(read(&newer), Err(CallsError::Newer(2))));
    assert!(matches!(read(b"something else, and more of it"), Err(CallsError::NotCalls)));
    // The single calls of a sample can't be replayed.
    let sampled = Maker::of(&Target { sample_bytes: 4096, ..common::target() });
    assert!(matches!(export(&sampled, Format::Replay), Err(ExportError::Partial)));
}
