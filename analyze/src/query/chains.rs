//! Applies filters to whole chains of reallocations.

use super::filter::{Filter, Lifetime};
use crate::index::{Block, Column, Index, ScanError, flags};
use prof_trace::ticks::Ticks;
use std::sync::Mutex;

/// Number of chains that are examined in one pass over the index.
const WINDOW: usize = 1 << 20;

/// The chains that a filter selects.
pub(super) struct Chains {
    /// A bit for each chain: selected.
    selected: Vec<u64>,
    filter: Wanted,
}

/// The conditions on chains.
struct Wanted {
    filter: Filter,
    leaked: bool,
    clock: crate::load::Clock,
    end: Ticks,
}

/// Figures of a chain.
#[derive(Clone, Copy)]
struct Chain {
    length: u64,
    /// Position, begin and size of its first block.
    first: (u64, u64, u64),
    /// Position, end and size of its last block.
    last: (u64, u64, u64),
}

const NONE: Chain = Chain { length: 0, first: (u64::MAX, 0, 0), last: (0, 0, 0) };

impl Wanted {
    fn has(&self, c: &Chain) -> bool {
        let f = &self.filter;
        let (begin, end) = (c.first.1, c.last.1);
        let lifetime =
            || self.clock.between(Ticks(begin), Ticks(end).min(self.end.max(Ticks(begin))));
        (!self.leaked || end == u64::MAX)
            && f.chain_length.has(c.length)
            && f.first_size.has(c.first.2)
            && f.last_size.has(c.last.2)
            && (f.chain_lifetime.is_all() || f.chain_lifetime.has(lifetime()))
    }
}

/// Finds the chains that a filter selects.
pub(super) fn find(index: &Index, filter: &Filter) -> Result<Chains, ScanError> {
    let analysis = index.analysis();
    let wanted = Wanted {
        leaked: filter.lifetimes.contains(&Lifetime::ChainLeaked),
        filter: filter.clone(),
        clock: analysis.meta().clock.clone(),
        end: analysis.end_ticks(),
    };
    let all = usize::try_from(index.chains()).unwrap_or(0);
    let mut selected = vec![0u64; all / 64 + 1];
    for from in (1..=all).step_by(WINDOW) {
        let to = (from + WINDOW - 1).min(all);
        let chains = Mutex::new(vec![NONE; to - from + 1]);
        index.scan(
            || [const { Vec::new() }; 5],
            |columns, block| collect(block, columns, (from as u64, to as u64), &chains),
        )?;
        let chains = chains.into_inner().unwrap_or_else(|e| e.into_inner());
        for (i, c) in chains.iter().enumerate() {
            let id = from + i;
            selected[id / 64] |= u64::from(wanted.has(c)) << (id % 64);
        }
    }
    Ok(Chains { selected, filter: wanted })
}

/// Adds the rows of a block of rows to their chains.
fn collect(
    block: &mut Block<'_>,
    columns: &mut [Vec<u64>; 5],
    (from, to): (u64, u64),
    chains: &Mutex<Vec<Chain>>,
) -> Option<()> {
    let (min, max) = block.range(Column::Chain);
    if max < from || min > to {
        return Some(());
    }
    const READ: [Column; 5] =
        [Column::Chain, Column::Position, Column::Begin, Column::End, Column::Size];
    for (c, values) in READ.into_iter().zip(columns.iter_mut()) {
        block.read(c, values)?;
    }
    let [ids, positions, begins, ends, sizes] = columns;
    let mut chains = chains.lock().unwrap_or_else(|e| e.into_inner());
    for i in 0..ids.len() {
        let Some(c) = ids[i].checked_sub(from).and_then(|n| chains.get_mut(n as usize)) else {
            continue;
        };
        c.length += 1;
        if positions[i] <= c.first.0 {
            c.first = (positions[i], begins[i], sizes[i]);
        }
        if positions[i] >= c.last.0 {
            c.last = (positions[i], ends[i], sizes[i]);
        }
    }
    Some(())
}

impl Chains {
    /// Keeps the rows whose chains are selected. A block that was never reallocated is a chain by itself.
    pub(super) fn keep(
        &self,
        block: &mut Block<'_>,
        rows: &mut Vec<u32>,
        ids: &mut Vec<u64>,
    ) -> Option<()> {
        block.read(Column::Chain, ids)?;
        let mut columns = [const { Vec::new() }; 4];
        const READ: [Column; 4] = [Column::Begin, Column::End, Column::Size, Column::Flags];
        if rows.iter().any(|&i| ids[i as usize] == 0) {
            for (c, values) in READ.into_iter().zip(&mut columns) {
                block.read(c, values)?;
            }
        }
        rows.retain(|&i| {
            let i = i as usize;
            if let id @ 1.. = ids[i] {
                return self
                    .selected
                    .get(id as usize / 64)
                    .is_some_and(|w| w >> (id % 64) & 1 != 0);
            }
            let [begins, ends, sizes, flag] = &columns;
            debug_assert_eq!(flag[i] & flags::CONTINUED, 0);
            self.filter.has(&Chain {
                length: 1,
                first: (0, begins[i], sizes[i]),
                last: (0, ends[i], sizes[i]),
            })
        });
        Some(())
    }
}
