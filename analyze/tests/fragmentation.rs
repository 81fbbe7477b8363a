//! Tests which stacks keep pages, and the breakdown of resident memory.

mod common;

use common::{Maker, Random, alloc, free};
use prof_analyze::fragmentation::{Fragmentation, FragmentationError, FragmentationOptions};
use prof_analyze::query::{Filter, Query};
use prof_analyze::report::Style;
use prof_analyze::{Index, IndexOptions};
use prof_trace::records::{Memory, Target, Toggle, kind, map_kind, part_kind};
use prof_trace::size::{GlibcChunks, Header};
use prof_trace::ticks::Ticks;
use std::collections::{HashMap, HashSet};

const PAGE: u64 = 4096;

fn look(
    m: &Maker,
    filter: &Filter,
    at: Option<Ticks>,
) -> Result<Fragmentation, FragmentationError> {
    let file = m.file();
    let index = Index::open(&file.0, &IndexOptions::default()).expect("a recording");
    let query = Query::new(&index, filter).expect("a filter");
    let options = FragmentationOptions { top: 0, sparse: 0.25, at, filter: Vec::new() };
    Fragmentation::new(&index, &query, &options)
}

#[test]
fn pages_are_counted_as_a_naive_walk_counts_them() {
    for seed in 1..6u64 {
        let mut r = Random(seed * 0x1234_5677);
        let mut m = Maker::new();
        m.pass(1000);
        // Blocks that don't overlap, some across pages; two thirds are freed later.
        let (mut addr, mut now, mut live) = (0x10_0000u64, 2000, Vec::new());
        for _ in 0..400 {
            addr += 16 * r.below(200);
            let size = if r.below(10) == 0 { r.below(30_000) } else { r.below(600) };
            let node = 1 + r.below(5) as u32;
            now += 1;
            m.events(1, &[alloc(now, addr, size, node)]);
            live.push((addr, size, node));
            addr = (addr + size.max(1)).next_multiple_of(16);
        }
        let moment = now;
        let kept: Vec<_> = live.iter().filter(|_| r.below(3) == 0).copied().collect();
        for b in live.iter().filter(|b| !kept.contains(b)) {
            now += 1;
            m.events(1, &[free(now, b.0)]);
        }
        m.end(now + 1);
        for (at, blocks) in [(None, &kept), (Some(Ticks(moment)), &live)] {
            let found = look(&m, &Filter::default(), at).expect("an answer");
            let mut pages: HashMap<u64, (u64, HashSet<u32>)> = HashMap::new();
            for (addr, size, node) in blocks {
                for byte in *addr..addr + (*size).max(1) {
                    let p = pages.entry(byte / PAGE).or_default();
                    p.0 += 1;
                    p.1.insert(*node);
                }
            }
            let p = &found.pages;
            assert_eq!((p.count, p.live_count), (pages.len() as u64, blocks.len() as u64));
            let unused = |p: &(u64, HashSet<u32>)| PAGE - p.0;
            let sparse = |p: &(u64, HashSet<u32>)| p.0 < PAGE / 4;
            assert_eq!(p.unused_bytes, pages.values().map(unused).sum::<u64>());
            assert_eq!(p.sparse, pages.values().filter(|p| sparse(p)).count() as u64);
            assert_eq!(p.by_use.iter().sum::<u64>(), p.count);
            for s in &found.stacks {
                let of = || pages.values().filter(|p| p.1.contains(&s.id));
                let alone = || of().filter(|p| p.1.len() == 1);
                assert_eq!(s.pages, of().count() as u64);
                assert_eq!(s.alone, alone().count() as u64);
                assert_eq!(s.sparse_alone, alone().filter(|p| sparse(p)).count() as u64);
                assert_eq!(s.unused_alone_bytes, alone().map(unused).sum::<u64>());
                let own = blocks.iter().filter(|b| b.2 == s.id);
                assert_eq!(s.live_bytes, own.map(|b| b.1).sum::<u64>());
            }
            assert!(found.stacks.is_sorted_by_key(|s| std::cmp::Reverse(s.unused_alone_bytes)));
        }
    }
}

fn memory(ticks: u64, rss: u64, heaps: &[u64], maps: &[[u64; 3]]) -> Memory {
    Memory {
        ticks: Ticks(ticks),
        rss,
        heaps: heaps.to_vec(),
        maps: maps.concat(),
        ..Memory::default()
    }
}

#[test]
fn resident_memory_is_taken_apart() {
    let mut m = Maker::new();
    m.pass(1000);
    // At the attach, two pages of the heap were resident.
    m.put(kind::MEMORY, &memory(1001, 3 * PAGE, &[0x10_000, 0x20_000, 2 * PAGE], &[]).encode());
    m.events(
        1,
        &[
            alloc(1100, 0x14_000, 100, 1),
            alloc(1101, 0x15_000, 2 * PAGE, 1),
            // This one is not on the heap.
            alloc(1102, 0x90_000, PAGE, 2),
            free(2500, 0x15_000),
        ],
    );
    let heaps = [0x10_000, 0x20_000, 7 * PAGE, 0x40_000, 0x50_000, 3 * PAGE];
    let maps = [
        [map_kind::HEAP, 16 * PAGE, 7 * PAGE],
        [map_kind::ANONYMOUS, 16 * PAGE, 3 * PAGE],
        [map_kind::FILE, 99 * PAGE, 20 * PAGE],
        [77, 1, 1],
    ];
    m.put(kind::MEMORY, &memory(2000, 32 * PAGE, &heaps, &maps).encode());
    m.end(3000);
    let found = look(&m, &Filter::default(), None).expect("an answer");
    assert_eq!(found.moment_ns, 1000);
    let a = found.account.as_ref().expect("an account");
    assert_eq!((a.live_bytes, a.elsewhere_bytes), (100 + 2 * PAGE, PAGE));
    assert_eq!(a.live_bytes + a.beside_bytes, 3 * PAGE);
    assert_eq!((a.not_resident_bytes, a.before_bytes, a.slack_bytes), (0, 2 * PAGE, 5 * PAGE));
    assert_eq!((a.maps.len(), a.unexplained_bytes), (3, 2 * PAGE as i64));
    let others: u64 = a.maps[2..].iter().map(|m| m.rss_bytes).sum();
    let sum = a.live_bytes + a.beside_bytes - a.not_resident_bytes + a.before_bytes + a.slack_bytes;
    assert_eq!((sum + others) as i64 + a.unexplained_bytes, a.rss_bytes as i64);
    let text = found.text(Style::default());
    assert!(text.contains("unexplained") && text.contains("kept by the allocator"), "{text}");
    // At another moment the resident memory is not known, but the blocks on pages are.
    let later = look(&m, &Filter::default(), Some(Ticks(2600))).expect("an answer");
    assert_eq!((later.account, later.pages.count), (None, 2));
    // A filter selects stacks, but does not change what is resident.
    let mut filter = Filter::default();
    filter.set("max-size", "1000").expect("a size");
    let some = look(&m, &filter, None).expect("an answer");
    assert_eq!((some.pages.live_bytes, some.account.as_ref()), (100, found.account.as_ref()));
}

#[test]
fn blocks_in_use_are_bounded_by_what_was_live_while_the_arenas_were_read() {
    let chunk = |size: u64| GlibcChunks::of(8).bytes(size, Header::from_code(0));
    let mut m = Maker::of(&Target { pointer_size: 8, ..common::target() });
    m.pass(1000);
    let (stays, comes, goes) = (1000, 20_000, 50_000);
    m.events(
        1,
        &[
            alloc(1500, 0x10_1000, stays, 1),
            alloc(1501, 0x11_0000, goes, 1),
            // Not on the heap.
            alloc(1502, 0x90_0000, 70_000, 1),
            alloc(2050, 0x12_0000, comes, 2),
            free(2080, 0x11_0000),
            free(2090, 0x90_0000),
            free(2300, 0x12_0000),
        ],
    );
    let (system, in_use, unsure) = (1 << 20, 400_000, 300);
    // The last reading took longer, so it does not count.
    let walks = [[2000, 2100, system, system - in_use, unsure], [2100, 2900, system, system, 0]];
    let look = |ticks: u64| Memory {
        ticks: Ticks(ticks),
        rss: system,
        parts: vec![0x10_0000, 0x20_0000, system, part_kind::HEAP],
        arenas: vec![system, system - in_use, system - in_use],
        walks: walks.concat(),
        ..Memory::default()
    };
    m.put(kind::MEMORY, &look(2060).encode());
    m.end(3000);
    let found = self::look(&m, &Filter::default(), None).expect("an answer");
    let a = found.account.expect("an account");
    assert!(a.by_allocator);
    assert_eq!(a.before_bytes, in_use - chunk(stays) - chunk(goes) - chunk(comes));
    // Only what stays was in use at each moment of the reading.
    let most = in_use - chunk(stays);
    assert_eq!(a.before_between_bytes, Some([a.before_bytes - unsure, most]));
    assert_eq!(a.unrecorded_ns, 0);
    // Later, when recording was off.
    m.put(kind::TOGGLE, &Toggle { ticks: Ticks(2500), on: 0 }.encode());
    m.put(kind::MEMORY, &look(2_002_500).encode());
    m.end(2_003_000);
    let found = self::look(&m, &Filter::default(), None).expect("an answer");
    assert_eq!(found.account.as_ref().map(|a| a.unrecorded_ns), Some(2_000_000));
    let text = found.text(Style::default());
    assert!(text.contains("Recording had been off for 2.0 ms"), "{text}");
    assert!(text.contains("the program allocated and freed while"), "{text}");
}

#[test]
fn hostile_recordings_get_an_answer_or_a_reason() {
    let sampled = Maker::of(&Target { sample_every: 10, ..common::target() });
    assert!(matches!(look(&sampled, &Filter::default(), None), Err(FragmentationError::Sampled)));
    for page_size in [0, 1, 3, u32::MAX] {
        let mut m = Maker::of(&Target { page_size, ..common::target() });
        m.pass(1000).events(
            1,
            &[
                alloc(1001, 0x1000, (1 << 55) + 7, 1),
                alloc(1002, 0x2000, 1 << 55, 2),
                alloc(1003, (1 << 55) - 1, 0, 3),
                alloc(1004, 0x2000, 1, 3),
            ],
        );
        let max = u64::MAX;
        let bad = memory(max, max, &[0, max, max, 5, 1, max, max, 0, 0, 1], &[[0, max, max]; 9]);
        m.put(kind::MEMORY, &bad.encode());
        let found = look(&m, &Filter::default(), None).expect("an answer");
        assert_eq!((found.pages.size, found.pages.live_count), (4096, 3));
        assert!(found.text(Style::default()).contains("resident (RSS)"));
    }
    let empty = look(&Maker::new(), &Filter::default(), None).expect("an answer");
    assert_eq!((empty.pages.count, empty.stacks.len()), (0, 0));
}
