//! Finds resident memory that no live block accounts for.
//!
//! It answers two questions. *Pages*: an allocator can't return a page while a block is on it. So for each page with
//! live blocks: how much of it they use, and which stacks they belong to. A stack that alone keeps many sparsely used
//! pages is the one to look at. *Reconciliation*: resident memory as the kernel counts it, broken down into live
//! blocks, the rest of their pages, other pages of the heap, and all other mappings.

mod account;
mod course;
mod pages;
mod text;

use crate::Index;
use crate::index::ScanError;
use crate::maps::Maps;
use crate::query::Query;
use crate::report::{FilterData, FrameData, Head, frames_of};
use crate::symbols::Symbolizer;
use account::AnonymousMemory;
use pages::Ask;
use prof_trace::size::GlibcChunks;
use prof_trace::ticks::Ticks;
use serde::Serialize;

pub use account::{Account, FilesData, MapData};
pub(crate) use pages::used_pieces;
pub use pages::{Pages, STEPS};

/// Options of the fragmentation report.
#[derive(Clone, Debug)]
pub struct FragmentationOptions {
    /// Number of stacks to show; 0: all.
    pub top: usize,
    /// A page is sparse if less than this part of it is used.
    pub sparse: f64,
    /// Ticks of the moment to report; `None`: that of the last resident set recorded, or the end.
    pub at: Option<Ticks>,
    /// The filter in effect, to be named in the output.
    pub filter: Vec<FilterData>,
}

/// Why there is no fragmentation report.
#[derive(Debug, thiserror::Error)]
pub enum FragmentationError {
    /// The index could not be read.
    #[error(transparent)]
    Scan(#[from] ScanError),
    /// A sample does not have all blocks of a page.
    #[error(
        "the recording is a sample (--sample, --sample-rate): most blocks of each page are not in it; \
         record all of them to see who keeps pages"
    )]
    Sampled,
}

/// The blocks on pages, and the breakdown of resident memory.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Fragmentation {
    /// Version of this format: 1.
    pub version: u32,
    /// Describes the recording.
    #[serde(flatten)]
    pub head: Head,
    /// The moment reported, in nanoseconds since the start.
    pub moment_ns: u64,
    /// Breakdown of resident memory; `None` if the recording does not have it.
    pub account: Option<Account>,
    /// The pages with live blocks.
    pub pages: Pages,
    /// The stacks, ordered by the unused bytes of pages that they alone keep, most first.
    pub stacks: Vec<StackData>,
    /// Number of stacks that are not shown.
    pub other_stacks: u64,
}

/// The pages that a stack keeps.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StackData {
    /// Number of the stack in this recording, for `--stacks`.
    pub id: u32,
    /// Number of its live blocks.
    pub live_count: u64,
    /// Bytes of its live blocks.
    pub live_bytes: u64,
    /// Number of pages with at least one of its blocks.
    pub pages: u64,
    /// Number of pages that have blocks of no other stack.
    pub alone: u64,
    /// Number of pages of `alone` that are sparse.
    pub sparse_alone: u64,
    /// Bytes of the pages of `alone` that its blocks do not use.
    pub unused_alone_bytes: u64,
    /// The stack was cut short: outer frames are missing.
    pub truncated: bool,
    /// The frames, innermost first.
    pub frames: Vec<FrameData>,
}

/// Returns the page size in bytes; 4096 if the recording's value is implausible.
fn page_size(index: &Index) -> u64 {
    let size = u64::from(index.analysis().meta().target.page_size);
    if size.is_power_of_two() && (1024..=1 << 21).contains(&size) { size } else { 4096 }
}

/// Returns for how many nanoseconds recording was off at a moment.
fn unrecorded(index: &Index, at: Ticks) -> u64 {
    let (meta, end) = (index.analysis().meta(), index.analysis().end_ticks());
    let parts = meta.parts(end.max(at));
    let before = parts.iter().filter(|p| p.start <= at).map(|p| p.end.min(at)).max();
    before.map_or(0, |end| meta.clock.ns(at).saturating_sub(meta.clock.ns(end)))
}

impl Fragmentation {
    /// Computes the report for the selected blocks.
    ///
    /// # Errors
    /// If the recording is a sample, or the index can't be read.
    pub fn new(
        index: &Index,
        query: &Query<'_>,
        options: &FragmentationOptions,
    ) -> Result<Self, FragmentationError> {
        let analysis = index.analysis();
        if analysis.capture().is_sampled() {
            return Err(FragmentationError::Sampled);
        }
        let meta = analysis.meta();
        let memory = meta.memory.last.as_ref().filter(|_| options.at.is_none());
        let at = options.at.or(memory.map(|m| m.ticks));
        let page = page_size(index);
        let anonymous = memory.map(AnonymousMemory::of).unwrap_or_default();
        let heaps = anonymous.heaps();
        let ask = Ask {
            at,
            page,
            sparse: options.sparse,
            chunks: GlibcChunks::of(meta.target.pointer_size),
            ranges: &anonymous.ranges,
            heaps: &heaps,
            time: anonymous.time(),
        };
        let found = pages::find(index, query, &ask)?;
        // The breakdown needs all blocks on the heap, whatever the filter selects.
        let account = match memory {
            Some(m) => {
                let all = Query::new(index, &crate::query::Filter::default());
                let all = all.ok().filter(|_| !query.is_all());
                let all = all.map(|q| pages::find(index, &q, &ask)).transpose()?;
                let used = anonymous.used(index)?;
                let first = meta.memory.first.as_ref();
                let found = all.as_ref().unwrap_or(&found);
                let mut account = anonymous.account(m, first, found, page, &used);
                if let Ok(maps) = Maps::of(analysis)
                    && let Some(t) = maps.totals_at(m.ticks).filter(|t| t.ticks == m.ticks)
                {
                    account.divide_files(t);
                }
                account.unrecorded_ns = unrecorded(index, m.ticks);
                // Blocks whose events were lost are counted as older ones, and nothing says how large they were.
                account.before_between_bytes.take_if(|_| meta.counters.lost > 0);
                Some(account)
            }
            None => None,
        };
        let mut order: Vec<usize> =
            (0..found.groups.len()).filter(|i| found.groups[*i].blocks > 0).collect();
        order.sort_by_key(|i| {
            let g = &found.groups[*i];
            (std::cmp::Reverse((g.unused_alone, g.bytes)), *i)
        });
        let most = if options.top == 0 { order.len() } else { options.top.min(order.len()) };
        let mut symbols = Symbolizer::new(analysis);
        let stack = |i: &usize| {
            let (g, node) = (&found.groups[*i], analysis.groups()[*i].node);
            StackData {
                id: node,
                live_count: g.blocks,
                live_bytes: g.bytes,
                pages: g.pages,
                alone: g.alone,
                sparse_alone: g.sparse_alone,
                unused_alone_bytes: g.unused_alone,
                truncated: meta.is_cut(node),
                frames: frames_of(analysis, node, &mut symbols),
            }
        };
        Ok(Self {
            version: 1,
            head: Head::new(&query.analysis(None)?, &options.filter),
            moment_ns: meta.clock.ns(at.unwrap_or_else(|| analysis.end_ticks())),
            account,
            stacks: order[..most].iter().map(stack).collect(),
            other_stacks: (order.len() - most) as u64,
            pages: found.pages,
        })
    }

    /// Returns the report as JSON.
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }
}
