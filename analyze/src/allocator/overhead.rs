//! Counts what blocks take beyond what was asked for.

use super::classes::{Classes, of_chunk};
use crate::index::{Block, Column, Index, ScanError};
use crate::query::{Query, SIZE_CLASSES, Selection, size_class};
use prof_trace::size::{GlibcChunks, Header};
use prof_trace::ticks::Ticks;
use serde::Serialize;

/// Sums over blocks: `taken_bytes` = `requested_bytes` + `rounding_bytes` + `header_bytes`. Blocks of which it is not
/// known are only counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct OverheadData {
    /// Number of blocks.
    pub count: u64,
    /// Bytes that were asked for.
    pub requested_bytes: u64,
    /// Bytes that the blocks take.
    pub taken_bytes: u64,
    /// Bytes that can be used beyond what was asked for.
    pub rounding_bytes: u64,
    /// Bytes of the allocator's headers.
    pub header_bytes: u64,
    /// The part of `taken_bytes` that was not asked for, from 0 to 1.
    pub overhead_part: f64,
    /// Number of further blocks of which it is not known.
    pub unknown_count: u64,
    /// Bytes that were asked for by these.
    pub unknown_bytes: u64,
}

/// Sums over the blocks of a range of sizes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SizeOverheadData {
    /// The smallest size.
    pub min_size: u64,
    /// The largest size.
    pub max_size: u64,
    /// Sums over the blocks.
    #[serde(flatten)]
    pub sum: OverheadData,
}

impl OverheadData {
    /// Returns the bytes that were not asked for.
    #[must_use]
    pub fn overhead_bytes(&self) -> u64 {
        self.rounding_bytes.saturating_add(self.header_bytes)
    }

    fn add_block(&mut self, size: u64, taken: Option<(u64, u64)>) {
        let Some((taken, header)) = taken else {
            self.unknown_count += 1;
            self.unknown_bytes = self.unknown_bytes.saturating_add(size);
            return;
        };
        self.count += 1;
        self.requested_bytes = self.requested_bytes.saturating_add(size);
        self.taken_bytes = self.taken_bytes.saturating_add(taken);
        self.header_bytes = self.header_bytes.saturating_add(header);
    }

    fn add(&mut self, o: &Self) {
        self.count += o.count;
        self.requested_bytes = self.requested_bytes.saturating_add(o.requested_bytes);
        self.taken_bytes = self.taken_bytes.saturating_add(o.taken_bytes);
        self.header_bytes = self.header_bytes.saturating_add(o.header_bytes);
        self.unknown_count += o.unknown_count;
        self.unknown_bytes = self.unknown_bytes.saturating_add(o.unknown_bytes);
    }

    fn finish(&mut self) {
        let overhead = self.taken_bytes.saturating_sub(self.requested_bytes);
        self.rounding_bytes = overhead.saturating_sub(self.header_bytes);
        let taken = self.taken_bytes.max(1) as f64;
        self.overhead_part = overhead as f64 / taken;
    }
}

/// Input of [`find`], besides the blocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ask {
    /// Ticks of the moment of the live blocks; `None`: the end.
    pub at: Option<Ticks>,
    /// Layout of glibc's chunks.
    pub chunks: GlibcChunks,
    /// Rule for blocks without one of glibc's headers.
    pub classes: Classes,
}

/// Result of [`find`].
#[derive(Clone, Debug, Default)]
pub(super) struct Found {
    pub live: OverheadData,
    pub all: OverheadData,
    pub by_size: Vec<SizeOverheadData>,
    /// Live blocks, and all blocks, of each group of the index.
    pub groups: Vec<(OverheadData, OverheadData)>,
    /// Most blocks have a header of glibc's.
    pub by_header: bool,
}

#[derive(Default)]
struct State {
    selection: Selection,
    columns: [Vec<u64>; 5],
    groups: Vec<(OverheadData, OverheadData)>,
    sizes: Vec<OverheadData>,
    with_header: u64,
}

/// Counts the selected blocks.
pub(super) fn find(index: &Index, query: &Query<'_>, ask: &Ask) -> Result<Found, ScanError> {
    let groups = index.analysis().groups().len();
    let state = || State {
        groups: vec![Default::default(); groups],
        sizes: vec![OverheadData::default(); SIZE_CLASSES],
        ..State::default()
    };
    let mut found = Found { groups: vec![Default::default(); groups], ..Found::default() };
    let mut sizes = vec![OverheadData::default(); SIZE_CLASSES];
    let mut with_header = 0;
    for s in index.scan(state, |s, block| collect(s, query, block, ask))? {
        for (to, from) in found.groups.iter_mut().zip(&s.groups) {
            to.0.add(&from.0);
            to.1.add(&from.1);
        }
        sizes.iter_mut().zip(&s.sizes).for_each(|(to, from)| to.add(from));
        with_header += s.with_header;
    }
    for (live, all) in &mut found.groups {
        found.live.add(live);
        found.all.add(all);
        live.finish();
        all.finish();
    }
    found.live.finish();
    found.all.finish();
    found.by_header = with_header > 0 && with_header * 2 >= found.all.count;
    found.by_size = sizes
        .into_iter()
        .enumerate()
        .filter(|(_, sum)| sum.count + sum.unknown_count > 0)
        .map(|(class, mut sum)| {
            sum.finish();
            let max = |class: usize| 1u64.checked_shl(class as u32 + 3).unwrap_or(u64::MAX);
            let min_size = class.checked_sub(1).map_or(0, |c| max(c).saturating_add(1));
            SizeOverheadData { min_size, max_size: max(class), sum }
        })
        .collect();
    Ok(found)
}

fn collect(s: &mut State, query: &Query<'_>, block: &mut Block<'_>, ask: &Ask) -> Option<()> {
    // A block that never ends has the end `u64::MAX`, later than any moment.
    let at = ask.at.unwrap_or(Ticks::LAST).min(Ticks::LAST);
    query.select(block, &mut s.selection)?;
    if s.selection.rows.is_empty() {
        return Some(());
    }
    const READ: [Column; 5] =
        [Column::Begin, Column::End, Column::Size, Column::Group, Column::Header];
    for (c, values) in READ.into_iter().zip(&mut s.columns) {
        block.read(c, values)?;
    }
    let [begins, ends, sizes, groups, headers] = &s.columns;
    for &i in &s.selection.rows {
        let i = i as usize;
        let (size, header) = (sizes[i], Header::from_code(headers[i] as u16));
        let taken = match header.is_known() {
            true => of_chunk(ask.chunks, size, header),
            false => ask.classes.taken(size),
        };
        s.with_header += u64::from(header.is_known());
        let taken = taken.map(|t| (t.bytes.max(size), t.header));
        let sums = s.groups.get_mut(groups[i] as usize)?;
        sums.1.add_block(size, taken);
        if begins[i] <= at.0 && ends[i] > at.0 {
            sums.0.add_block(size, taken);
            s.sizes.get_mut(size_class(size))?.add_block(size, taken);
        }
    }
    Some(())
}
