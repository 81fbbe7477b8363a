//! Sets of rows, the address space and the follower, compared with a naive evaluation.

mod common;

use common::world::{Block, World, make, write};
use common::{Random, START};
use prof_analyze::answers::{BlocksAsk, SpaceAsk};
use prof_analyze::index::{IndexOptions, Keep};
use prof_analyze::query::{Filter, Query, RowSet, Span};
use prof_analyze::{Follower, Index};
use prof_trace::pack::Compress;
use std::collections::BTreeSet;
use std::io::Write;
use std::sync::Arc;

const NEVER: IndexOptions = IndexOptions {
    keep: Keep::Never,
    load: prof_analyze::LoadOptions { pending_bytes: 64 << 20 },
    dir: None,
};

fn recording(seed: u64, steps: usize) -> (World, Index) {
    let mut r = Random(seed * 0x9e37_79b9);
    let w = make(&mut r, steps, 4);
    let file = write(&mut r, &w, 4, Compress::None).file();
    let index = Index::open(&file.0, &NEVER).expect("an index");
    (w, index)
}

fn query<'a>(index: &'a Index, given: &[(&str, String)]) -> Query<'a> {
    let mut f = Filter::default();
    given.iter().for_each(|(name, text)| f.set(name, text).expect("a filter"));
    Query::new(index, &f).expect("a query")
}

/// Returns the times at which the blocks of a set begin, which no two blocks have in common.
fn begins(index: &Index, set: &RowSet) -> BTreeSet<u64> {
    let rows: Vec<u64> = set.iter().collect();
    assert_eq!(rows.len() as u64, set.len());
    assert!(rows.iter().all(|r| set.contains(*r)) && rows.is_sorted());
    let blocks = index.block_rows(&rows).expect("readable");
    blocks.iter().map(|b| b.begin_ns + START).collect()
}

#[test]
fn sets_of_rows_are_those_of_their_blocks() {
    // Two blocks of rows, the second of which is not full.
    let (w, index) = recording(1, 20_000);
    assert!(index.rows() > 8192 && !index.rows().is_multiple_of(64));
    let large = query(&index, &[("min-size", "2500".into())]).rows().expect("rows");
    let leaked = query(&index, &[("lifetime", "leaked".into())]).rows().expect("rows");
    let of = |is: &dyn Fn(&Block) -> bool| -> BTreeSet<u64> {
        w.blocks.iter().filter(|b| is(b)).map(|b| b.begin).collect()
    };
    let (is_large, is_leaked) = (|b: &Block| b.size >= 2500, |b: &Block| b.end.is_none());
    assert_eq!(begins(&index, &large), of(&is_large));
    assert_eq!(begins(&index, &leaked), of(&is_leaked));
    assert_eq!(begins(&index, &large.and(&leaked)), of(&|b| is_large(b) && is_leaked(b)));
    assert_eq!(begins(&index, &large.or(&leaked)), of(&|b| is_large(b) || is_leaked(b)));
    assert_eq!(begins(&index, &large.minus(&leaked)), of(&|b| is_large(b) && !is_leaked(b)));
    assert_eq!(begins(&index, &large.not()), of(&|b| !is_large(b)));
    assert_eq!(RowSet::all(&index).len(), index.rows());
    assert_eq!(RowSet::none(&index).not(), RowSet::all(&index));
    assert!(large.and(&large.not()).is_empty() && !large.contains(index.rows()));
    // A query within a set is the query of its blocks.
    let set = Arc::new(large.or(&leaked));
    let within = query(&index, &[("max-size", "4000".into())]).within(set);
    let is = |b: &Block| b.size <= 4000 && (is_large(b) || is_leaked(b));
    assert_eq!(begins(&index, &within.rows().expect("rows")), of(&is));
    let figures = within.analysis(None).expect("figures").totals().figures;
    let blocks: Vec<&Block> = w.blocks.iter().filter(|b| is(b)).collect();
    assert_eq!(figures.allocated_bytes, blocks.iter().map(|b| b.size).sum::<u64>());
    assert_eq!(figures.live_count, blocks.iter().filter(|b| b.end.is_none()).count() as u64);
    let page = within.blocks(&BlocksAsk { count: 5, ..BlocksAsk::default() }).expect("a page");
    assert_eq!(page.total, blocks.len() as u64);
    let again = within.within(Arc::new(leaked)).rows().expect("rows");
    assert_eq!(begins(&index, &again), of(&|b| is(b) && is_leaked(b)));
    // The nth in the order of time.
    let query = query(&index, &[("min-size", "4000".into())]);
    let all: Vec<u64> = of(&|b| b.size >= 4000).into_iter().collect();
    for n in [0, 1, 7, all.len() / 2, all.len() - 1] {
        let row = query.nth(n as u64).expect("readable").expect("a block");
        assert_eq!(index.block_rows(&[row]).expect("readable")[0].begin_ns + START, all[n]);
    }
    assert_eq!(query.nth(all.len() as u64).expect("readable"), None);
}

#[test]
fn the_address_space_is_that_of_the_live_blocks() {
    let (w, index) = recording(2, 3000);
    let end = index.analysis().duration_ns();
    let query = query(&index, &[("min-size", "100".into())]);
    for at_ns in [None, Some(end / 3)] {
        let at = at_ns.map_or(u64::MAX - 1, |ns| ns + START);
        let live: Vec<&Block> = w
            .blocks
            .iter()
            .filter(|b| b.size >= 100 && b.begin <= at && b.end.is_none_or(|e| e.0 > at))
            .collect();
        for (from, to, bins) in
            [(None, None, 7), (Some(1000), Some(4001), 13), (Some(3000), None, 8192)]
        {
            let space = query.space(&SpaceAsk { at_ns, from, to, bins }).expect("readable");
            let low = live.iter().map(|b| b.addr).min().expect("blocks");
            let high = live.iter().map(|b| b.addr + b.size).max().expect("blocks");
            assert_eq!((space.from, space.to), (from.unwrap_or(low), to.unwrap_or(high)));
            assert!(space.bytes.len() <= bins);
            for i in 0..space.bytes.len() as u64 {
                let from = space.from + i * space.bin_bytes;
                let to = (from + space.bin_bytes).min(space.to);
                let part = |b: &&Block| (b.addr + b.size).min(to).saturating_sub(b.addr.max(from));
                let bytes: u64 = live.iter().map(part).sum();
                let here = || live.iter().filter(|b| (from..to).contains(&b.addr));
                let i = i as usize;
                assert_eq!((space.bytes[i], space.blocks[i]), (bytes, here().count() as u64));
                assert_eq!(space.oldest_ns[i], here().map(|b| b.begin - START).min());
            }
        }
    }
    for granule in [1, 64] {
        let mut taken = BTreeSet::new();
        for b in w.blocks.iter().filter(|b| b.size >= 100) {
            taken.extend(b.addr / granule..(b.addr + b.size).div_ceil(granule));
        }
        let mut expected: Vec<(u64, u64)> = Vec::new();
        for g in taken {
            match expected.last_mut() {
                Some(last) if last.1 == g * granule => last.1 += granule,
                _ => expected.push((g * granule, (g + 1) * granule)),
            }
        }
        assert_eq!(query.regions(granule).expect("readable"), expected);
    }
}

#[test]
fn a_follower_has_the_figures_of_what_it_has_read() {
    let mut r = Random(4);
    let w = make(&mut r, 4000, 4);
    let m = write(&mut r, &w, 4, Compress::None);
    let file = m.file();
    let index = Index::open(&file.0, &NEVER).expect("an index");
    let whole = std::fs::read(&file.0).expect("a recording");
    let mut out = std::fs::File::create(&file.0).expect("a file");
    out.write_all(&whole[..whole.len() / 2]).expect("written");
    let mut f = Follower::open(&file.0).expect("a recording");
    let half = f.poll().expect("readable");
    assert!(!half.finished && half.totals.figures.allocations > 100);
    let span = Span { from_ns: 0, to_ns: f.duration_ns(), width: 20 };
    let t = f.timeline(&span);
    assert_eq!(t.live_bytes.last[19], half.totals.figures.live_bytes);
    assert_eq!(t.allocations.iter().sum::<u64>(), half.totals.figures.allocations);
    let live: u64 = f.groups().iter().map(|g| g.figures.live_bytes).sum();
    assert_eq!(live, half.totals.figures.live_bytes);
    assert_eq!(f.analysis().expect("an analysis").totals(), &half.totals);
    out.write_all(&whole[whole.len() / 2..]).expect("written");
    assert!(f.poll().expect("readable").finished);
    let span = Span { from_ns: 0, to_ns: f.duration_ns(), width: 50 };
    let expected = query(&index, &[]).timeline(&span, false).expect("a timeline");
    assert_eq!(f.timeline(&span), expected);
    assert_eq!(f.groups(), index.analysis().groups());
}
