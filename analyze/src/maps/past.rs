//! Holds what is over: mappings that have ended, and earlier regions of others, a few bytes each.
//!
//! A program may map and unmap all the time, so there may be millions of these. They are encoded as integers of variable
//! length, most as the difference to the one before, and compressed in blocks. All of it can be read again.

use super::{Map, MapEnd, Perms, Region, RegionEnd, Source, UnmapSource, Usage};
use crate::maps::Kind;
use prof_trace::ticks::Ticks;
use std::collections::HashMap;
use std::sync::Arc;

/// Bytes of a block before it is compressed.
const BLOCK: usize = 256 << 10;
/// zstd's level: higher ones take longer than reading the recording.
const LEVEL: i32 = 1;

/// Something that is over.
pub(super) trait Over: Sized {
    /// Number of its mapping.
    fn map(&self) -> u32;
    /// Appends it.
    fn put(&self, w: &mut Out);
    /// Reads it back; `None` if there is no more.
    fn get(r: &mut In<'_>) -> Option<Self>;
}

/// A compressed block.
#[derive(Clone, Debug)]
struct Block {
    bytes: Box<[u8]>,
    /// Length before compression.
    len: usize,
    names: Box<[Arc<str>]>,
    rows: u32,
    /// The smallest and the largest number of their mappings.
    ids: (u32, u32),
}

/// Values of the row before, from which the next ones are told.
type Last = [u64; 4];

/// Items of the past, in the order in which they were added.
#[derive(Clone, Debug)]
pub(super) struct Past<T> {
    blocks: Vec<Block>,
    open: Out,
    rows: u32,
    ids: (u32, u32),
    of: std::marker::PhantomData<T>,
}

impl<T> Default for Past<T> {
    fn default() -> Self {
        Self {
            blocks: Vec::new(),
            open: Out::default(),
            rows: 0,
            ids: (u32::MAX, 0),
            of: std::marker::PhantomData,
        }
    }
}

/// A block that is written.
#[derive(Clone, Debug, Default)]
pub(super) struct Out {
    bytes: Vec<u8>,
    names: Vec<Arc<str>>,
    known: HashMap<Arc<str>, u64>,
    last: Last,
}

/// A block that is read.
pub(super) struct In<'a> {
    bytes: &'a [u8],
    names: &'a [Arc<str>],
    last: Last,
}

impl Out {
    fn int(&mut self, mut v: u64) {
        while v >= 0x80 {
            self.bytes.push(v as u8 | 0x80);
            v >>= 7;
        }
        self.bytes.push(v as u8);
    }

    /// Appends the difference to the last value of a column.
    fn delta(&mut self, column: usize, v: u64) {
        let d = v.wrapping_sub(std::mem::replace(&mut self.last[column], v)) as i64;
        self.int(((d << 1) ^ (d >> 63)) as u64);
    }

    /// Appends a number of bytes or an address, mostly a multiple of a page.
    fn pages(&mut self, v: u64) {
        self.int(v.rotate_right(12));
    }

    fn name(&mut self, name: &Arc<str>) {
        let next = self.names.len() as u64;
        let n = *self.known.entry(name.clone()).or_insert(next);
        if n == next {
            self.names.push(name.clone());
        }
        self.int(n);
    }
}

impl In<'_> {
    fn int(&mut self) -> Option<u64> {
        let (mut v, mut shift) = (0u64, 0);
        loop {
            let (b, rest) = self.bytes.split_first()?;
            self.bytes = rest;
            v |= u64::from(b & 0x7f).checked_shl(shift)?;
            if b & 0x80 == 0 {
                return Some(v);
            }
            shift += 7;
        }
    }

    fn small(&mut self) -> Option<u32> {
        self.int().map(|v| v as u32)
    }

    fn delta(&mut self, column: usize) -> Option<u64> {
        let z = self.int()?;
        let d = ((z >> 1) as i64) ^ -((z & 1) as i64);
        self.last[column] = self.last[column].wrapping_add(d as u64);
        Some(self.last[column])
    }

    fn pages(&mut self) -> Option<u64> {
        self.int().map(|v| v.rotate_left(12))
    }

    fn name(&mut self) -> Option<Arc<str>> {
        let n = self.int()?;
        self.names.get(usize::try_from(n).ok()?).cloned()
    }
}

impl<T: Over> Past<T> {
    /// Adds something.
    pub(super) fn push(&mut self, row: &T) {
        row.put(&mut self.open);
        self.rows += 1;
        self.ids = (self.ids.0.min(row.map()), self.ids.1.max(row.map()));
        if self.open.bytes.len() >= BLOCK {
            self.close();
        }
    }

    fn close(&mut self) {
        let open = std::mem::take(&mut self.open);
        // Compression into memory does not fail.
        let Ok(bytes) = zstd::bulk::compress(&open.bytes, LEVEL) else { return };
        self.blocks.push(Block {
            bytes: bytes.into(),
            len: open.bytes.len(),
            names: open.names.into(),
            rows: std::mem::take(&mut self.rows),
            ids: std::mem::replace(&mut self.ids, (u32::MAX, 0)),
        });
    }

    /// Returns the bytes that they take in memory.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.blocks.iter().map(|b| b.bytes.len()).sum::<usize>() + self.open.bytes.len()
    }

    /// Calls `take` with all of the mappings whose numbers `wanted` accepts as a range, in their order.
    pub(super) fn each(&self, wanted: impl Fn(u32, u32) -> bool, mut take: impl FnMut(T)) {
        for b in self.blocks.iter().filter(|b| wanted(b.ids.0, b.ids.1)) {
            let plain = zstd::bulk::decompress(&b.bytes, b.len).unwrap_or_default();
            read(&plain, &b.names, b.rows, &mut take);
        }
        if self.rows > 0 && wanted(self.ids.0, self.ids.1) {
            read(&self.open.bytes, &self.open.names, self.rows, &mut take);
        }
    }
}

fn read<T: Over>(bytes: &[u8], names: &[Arc<str>], rows: u32, take: &mut impl FnMut(T)) {
    let mut r = In { bytes, names, last: Last::default() };
    (0..rows).map_while(|_| T::get(&mut r)).for_each(take);
}

const READ: u64 = 1;
const WRITE: u64 = 2;
const EXECUTE: u64 = 4;
const SHARED: u64 = 8;

fn perm_bits(p: Perms) -> u64 {
    let bits = [(p.read, READ), (p.write, WRITE), (p.execute, EXECUTE), (p.shared, SHARED)];
    bits.iter().filter(|b| b.0).map(|b| b.1).sum()
}

fn perms_of(bits: u64) -> Perms {
    let has = |bit| bits & bit != 0;
    Perms { read: has(READ), write: has(WRITE), execute: has(EXECUTE), shared: has(SHARED) }
}

/// Appends a call that was made at a known time.
fn put_source(w: &mut Out, s: &Source) {
    w.int(s.thread.into());
    w.int(s.node.into());
}

fn get_source(r: &mut In<'_>, ticks: Ticks) -> Option<Source> {
    Some(Source { ticks, thread: r.small()?, node: r.small()? })
}

// Columns of the values that are told by their differences.
const ID: usize = 0;
const ADDRESS: usize = 1;
const BEGUN: usize = 2;
const ENDED: usize = 3;

// Bits of a mapping's flags above those of its permissions.
const BEFORE: u64 = 1 << 4;
const CAUGHT: u64 = 1 << 5;
const END_CAUGHT: u64 = 1 << 6;
const OURS: u64 = 1 << 7;
const HAS_THREAD: u64 = 1 << 8;
/// Flag: the mapping has one region, with the same range and times.
const SIMPLE: u64 = 1 << 9;
const HAS_FILE: u64 = 1 << 10;
const KIND: u32 = 11;

/// Returns the only region of a mapping, if it ended as a whole and all else follows from the mapping.
fn simple(m: &Map, end: &MapEnd) -> Option<Region> {
    let [r] = &m.regions[..] else { return None };
    let whole = UnmapSource { address: m.address, length: m.size, source: end.source };
    let follows = Region {
        address: m.address,
        size: m.size,
        begun: m.begun,
        perms: m.perms,
        name: m.name.clone(),
        end: Some(RegionEnd { ticks: end.ticks, sources: vec![whole] }),
        ..r.clone()
    };
    let same = follows == *r && m.peak_size == m.size && m.past_regions == 0;
    same.then_some(follows)
}

impl Over for Map {
    fn map(&self) -> u32 {
        self.id
    }

    fn put(&self, w: &mut Out) {
        let end = self.end.unwrap_or(MapEnd { ticks: self.begun, source: None });
        let only = simple(self, &end);
        let has_file =
            only.as_ref().is_some_and(|r| (r.inode, r.offset, r.major, r.minor) != (0, 0, 0, 0));
        let flags = [
            (self.before, BEFORE),
            (self.source.is_some(), CAUGHT),
            (end.source.is_some(), END_CAUGHT),
            (self.ours, OURS),
            (self.thread.is_some(), HAS_THREAD),
            (only.is_some(), SIMPLE),
            (has_file, HAS_FILE),
        ];
        let flags: u64 = flags.iter().filter(|f| f.0).map(|f| f.1).sum();
        w.int(flags | perm_bits(self.perms) | (self.kind as u64) << KIND);
        w.delta(ID, self.id.into());
        w.delta(ADDRESS, self.address.rotate_right(12));
        w.pages(self.size);
        w.delta(BEGUN, self.begun.0);
        w.delta(ENDED, end.ticks.wrapping_since(self.begun));
        self.source.iter().chain(&end.source).for_each(|s| put_source(w, s));
        w.name(&self.name);
        w.pages(self.peak_rss);
        if let Some(tid) = self.thread {
            w.int(tid);
        }
        w.int(self.usage.len() as u64);
        self.usage.iter().for_each(|u| put_usage(w, u));
        match only.filter(|_| has_file) {
            Some(r) => put_file(w, &r),
            None if flags & SIMPLE == 0 => {
                w.pages(self.peak_size);
                w.int(self.past_regions.into());
                w.int(self.regions.len() as u64);
                self.regions.iter().for_each(|r| put_region(w, r));
            }
            None => {}
        }
    }

    fn get(r: &mut In<'_>) -> Option<Self> {
        let flags = r.int()?;
        let has = |bit| flags & bit != 0;
        let id = r.delta(ID)? as u32;
        let address = r.delta(ADDRESS)?.rotate_left(12);
        let size = r.pages()?;
        let begun = r.delta(BEGUN)?;
        let ticks = begun.wrapping_add(r.delta(ENDED)?);
        let source = if has(CAUGHT) { Some(get_source(r, Ticks(begun))?) } else { None };
        let by = if has(END_CAUGHT) { Some(get_source(r, Ticks(ticks))?) } else { None };
        let name = r.name()?;
        let peak_rss = r.pages()?;
        let thread = if has(HAS_THREAD) { Some(r.int()?) } else { None };
        let usage = (0..r.int()?).map(|_| get_usage(r)).collect::<Option<Vec<_>>>()?;
        let mut m = Self {
            id,
            address,
            size,
            peak_size: size,
            begun: Ticks(begun),
            before: has(BEFORE),
            source,
            end: Some(MapEnd { ticks: Ticks(ticks), source: by }),
            perms: perms_of(flags),
            name,
            kind: *Kind::ALL.get((flags >> KIND) as usize)?,
            thread,
            peak_rss,
            ours: has(OURS),
            regions: Vec::new(),
            past_regions: 0,
            usage,
        };
        if has(SIMPLE) {
            let (offset, inode, major, minor) =
                if has(HAS_FILE) { get_file(r)? } else { (0, 0, 0, 0) };
            let whole = UnmapSource { address, length: size, source: by };
            let end = Some(RegionEnd { ticks: Ticks(ticks), sources: vec![whole] });
            let (perms, name) = (m.perms, m.name.clone());
            m.regions = vec![Region {
                address,
                size,
                begun: Ticks(begun),
                perms,
                offset,
                inode,
                major,
                minor,
                name,
                end,
            }];
            return Some(m);
        }
        m.peak_size = r.pages()?;
        m.past_regions = r.small()?;
        m.regions = (0..r.int()?).map(|_| get_region(r)).collect::<Option<Vec<_>>>()?;
        Some(m)
    }
}

fn put_usage(w: &mut Out, u: &Usage) {
    w.int(u.ticks.0);
    let all = [
        u.address_space,
        u.rss,
        u.anonymous,
        u.shared_clean,
        u.shared_dirty,
        u.private_clean,
        u.private_dirty,
        u.swap,
        u.huge,
    ];
    all.iter().for_each(|n| w.pages(*n));
}

fn get_usage(r: &mut In<'_>) -> Option<Usage> {
    Some(Usage {
        ticks: Ticks(r.int()?),
        address_space: r.pages()?,
        rss: r.pages()?,
        anonymous: r.pages()?,
        shared_clean: r.pages()?,
        shared_dirty: r.pages()?,
        private_clean: r.pages()?,
        private_dirty: r.pages()?,
        swap: r.pages()?,
        huge: r.pages()?,
    })
}

fn put_file(w: &mut Out, r: &Region) {
    [r.offset, r.inode, r.major.into(), r.minor.into()].iter().for_each(|n| w.int(*n));
}

fn get_file(r: &mut In<'_>) -> Option<(u64, u64, u32, u32)> {
    Some((r.int()?, r.int()?, r.small()?, r.small()?))
}

fn put_region(w: &mut Out, r: &Region) {
    w.pages(r.address);
    w.pages(r.size);
    w.int(r.begun.0);
    w.int(perm_bits(r.perms) | u64::from(r.end.is_some()) << 4);
    put_file(w, r);
    w.name(&r.name);
    let Some(e) = &r.end else { return };
    w.int(e.ticks.0);
    w.int(e.sources.len() as u64);
    for s in &e.sources {
        w.pages(s.address);
        w.pages(s.length);
        w.int(s.source.is_some().into());
        if let Some(s) = &s.source {
            w.int(s.ticks.0);
            put_source(w, s);
        }
    }
}

fn get_region(r: &mut In<'_>) -> Option<Region> {
    let (address, size, begun, bits) = (r.pages()?, r.pages()?, r.int()?, r.int()?);
    let (offset, inode, major, minor) = get_file(r)?;
    let name = r.name()?;
    let mut end = None;
    if bits & 16 != 0 {
        let (ticks, count) = (r.int()?, r.int()?);
        let mut sources = Vec::new();
        for _ in 0..count {
            let (address, length, caught) = (r.pages()?, r.pages()?, r.int()?);
            let source = match caught {
                0 => None,
                _ => {
                    let ticks = r.int()?;
                    Some(get_source(r, Ticks(ticks))?)
                }
            };
            sources.push(UnmapSource { address, length, source });
        }
        end = Some(RegionEnd { ticks: Ticks(ticks), sources });
    }
    let perms = perms_of(bits);
    Some(Region {
        address,
        size,
        begun: Ticks(begun),
        perms,
        offset,
        inode,
        major,
        minor,
        name,
        end,
    })
}

/// An earlier region of a mapping that has many.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PastRegion {
    /// Number of the mapping.
    pub map: u32,
    pub region: Region,
}

impl Over for PastRegion {
    fn map(&self) -> u32 {
        self.map
    }

    fn put(&self, w: &mut Out) {
        w.delta(ID, self.map.into());
        put_region(w, &self.region);
    }

    fn get(r: &mut In<'_>) -> Option<Self> {
        Some(Self { map: r.delta(ID)? as u32, region: get_region(r)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(id: u32) -> Map {
        let n = u64::from(id);
        let source = (!id.is_multiple_of(3)).then_some(Source {
            ticks: Ticks(100 + n),
            thread: id % 5,
            node: 7,
        });
        let by = (!id.is_multiple_of(4)).then_some(Source {
            ticks: Ticks(150 + n),
            thread: 1,
            node: id % 9,
        });
        let name: Arc<str> = if id.is_multiple_of(10) { "/a file".into() } else { "".into() };
        let perms = Perms { read: true, write: id.is_multiple_of(2), ..Perms::default() };
        let (address, size) = (0x7f00_0000_0000 + n * 0x3000, 0x2000);
        let whole = UnmapSource { address, length: size, source: by };
        let region = Region {
            address,
            size,
            begun: Ticks(100 + n),
            perms,
            offset: 0,
            inode: if id.is_multiple_of(10) { 77 } else { 0 },
            major: 0,
            minor: 3,
            name: name.clone(),
            end: Some(RegionEnd { ticks: Ticks(150 + n), sources: vec![whole] }),
        };
        let mut regions = vec![region];
        if id.is_multiple_of(50) {
            let part = Region { address: 1, end: None, ..regions[0].clone() };
            let end = Some(RegionEnd { ticks: Ticks(3), sources: Vec::new() });
            regions.insert(0, Region { end, ..part });
        }
        let usage =
            (0..n % 3).map(|i| Usage { ticks: Ticks(i), rss: 4096 * i + 1, ..Usage::default() });
        Map {
            id,
            address,
            size,
            peak_size: size + if id.is_multiple_of(50) { 1 } else { 0 },
            begun: Ticks(100 + n),
            before: id.is_multiple_of(7),
            source,
            end: Some(MapEnd { ticks: Ticks(150 + n), source: by }),
            perms,
            name,
            kind: Kind::ALL[id as usize % Kind::ALL.len()],
            thread: id.is_multiple_of(11).then_some(n),
            peak_rss: n * 100,
            ours: id.is_multiple_of(13),
            regions,
            past_regions: if id.is_multiple_of(50) { 5 } else { 0 },
            usage: usage.collect(),
        }
    }

    #[test]
    fn what_is_over_comes_back() {
        let mut past = Past::default();
        let all: Vec<Map> = (0..30_000).map(map).collect();
        all.iter().for_each(|m| past.push(m));
        assert!(past.blocks.len() > 1);
        let mut back = Vec::new();
        past.each(|_, _| true, |m| back.push(m));
        assert_eq!(back, all);
        let mut some = Vec::new();
        past.each(|a, b| (a..=b).contains(&17), |m: Map| some.push(m.id));
        assert!(some.contains(&17) && some.len() < 30_000);
    }

    #[test]
    fn regions_come_back() {
        let mut past = Past::default();
        let all: Vec<PastRegion> = (0..1000)
            .flat_map(|i| {
                map(i).regions.into_iter().map(move |region| PastRegion { map: i, region })
            })
            .collect();
        all.iter().for_each(|r| past.push(r));
        let mut back = Vec::new();
        past.each(|_, _| true, |r| back.push(r));
        assert_eq!(back, all);
    }

    #[test]
    fn a_pair_of_calls_takes_a_few_bytes() {
        let mut past = Past::default();
        for i in 0..200_000u32 {
            let n = u64::from(i);
            let (begun, ended) = (n * 1000 + n * n % 97, n * 1000 + 400 + n % 89);
            let (address, size) = (0x7f12_3456_0000 - n % 5 * 0x10_000, 0x10_000);
            let source = Some(Source { ticks: Ticks(begun), thread: i % 8, node: 40 + i % 3 });
            let by = Some(Source { ticks: Ticks(ended), thread: i % 8, node: 50 });
            let whole = UnmapSource { address, length: size, source: by };
            let mut m = Map { id: i, address, size, begun: Ticks(begun), source, ..map(1) };
            m.end = Some(MapEnd { ticks: Ticks(ended), source: by });
            m.peak_size = size;
            m.usage.clear();
            let end = Some(RegionEnd { ticks: Ticks(ended), sources: vec![whole] });
            m.regions = vec![Region {
                address,
                size,
                begun: Ticks(begun),
                end,
                minor: 0,
                ..m.regions[0].clone()
            }];
            past.push(&m);
        }
        let each = past.bytes() / 200_000;
        assert!(each <= 12, "{each} bytes");
    }
}
