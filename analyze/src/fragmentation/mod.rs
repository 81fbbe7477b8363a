//! Where resident memory goes that no live block accounts for.
//!
//! Two questions. *Pages*: an allocator can't give a page back while a block is on it, so for each page with
//! live blocks: how much of it they use, and which stack's they are. A stack that alone keeps many pages
//! that are hardly used is what to look at. *Reconciliation*: what the kernel counts as resident, taken
//! apart into live blocks, the rest of their pages, other pages of the heap, and all other mappings.

mod account;
mod pages;
mod text;

use crate::Index;
use crate::index::Damaged;
use crate::query::Query;
use crate::report::{FilterData, FrameData, Head, frames_of};
use crate::symbols::Symbolizer;
use account::Places;
use pages::Ask;
use prof_trace::size::Chunks;
use serde::Serialize;

pub use account::{Account, MapData};
pub use pages::{Pages, STEPS};

/// How to look.
#[derive(Clone, Debug)]
pub struct FragmentationOptions {
    /// How many stacks; 0: all.
    pub top: usize,
    /// Pages are sparse of which less than this part is used.
    pub sparse: f64,
    /// Ticks of the moment; `None`: that of the kernel's last word, or the end.
    pub at: Option<u64>,
    /// The filter, to be named.
    pub filter: Vec<FilterData>,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum FragmentationError {
    /// The index can't be read.
    #[error(transparent)]
    Damaged(#[from] Damaged),
    /// A sample doesn't say what is on a page.
    #[error(
        "the recording is a sample (--sample, --sample-rate): most blocks of each page are not in it; \
         record all of them to see who keeps pages"
    )]
    Sampled,
}

/// What is on the pages, and what is resident.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Fragmentation {
    /// Version of this format: 1.
    pub version: u32,
    /// Which recording.
    #[serde(flatten)]
    pub head: Head,
    /// The moment, in nanoseconds since the start.
    pub moment_ns: u64,
    /// Resident memory, taken apart; `None` if the recording does not have it.
    pub account: Option<Account>,
    /// The pages with live blocks.
    pub pages: Pages,
    /// Stacks, those first that alone keep the most bytes that nobody uses.
    pub stacks: Vec<StackData>,
    /// Stacks that are not shown.
    pub other_stacks: u64,
}

/// What a stack keeps.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StackData {
    /// Its number in this recording, for `--stacks`.
    pub id: u32,
    /// Its live blocks.
    pub live_count: u64,
    /// Their bytes.
    pub live_bytes: u64,
    /// Pages that it has blocks on.
    pub pages: u64,
    /// Pages that no other stack has blocks on.
    pub alone: u64,
    /// Those of them that are sparse.
    pub sparse_alone: u64,
    /// Bytes of the pages that it alone keeps which are not of its blocks.
    pub unused_alone_bytes: u64,
    /// The stack was cut short.
    pub truncated: bool,
    /// The frames, innermost first.
    pub frames: Vec<FrameData>,
}

/// Bytes of a page. A recording can say anything.
fn page_size(index: &Index) -> u64 {
    let size = u64::from(index.analysis().meta().target.page_size);
    if size.is_power_of_two() && (1024..=1 << 21).contains(&size) { size } else { 4096 }
}

impl Fragmentation {
    /// Looks at the blocks that are meant.
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
        let places = memory.map(Places::of).unwrap_or_default();
        let ask = Ask {
            at,
            page,
            sparse: options.sparse,
            chunks: Chunks::of(meta.target.pointer_size),
            ranges: &places.ranges,
        };
        let found = pages::find(index, query, &ask)?;
        // All blocks are on the heap, whatever the filter says.
        let account = match memory {
            Some(m) => {
                let all = Query::new(index, &crate::query::Filter::default());
                let all = all.ok().filter(|_| !query.is_all());
                let all = all.map(|q| pages::find(index, &q, &ask)).transpose()?;
                let used = places.used(index)?;
                let first = meta.memory.first.as_ref();
                Some(places.account(m, first, all.as_ref().unwrap_or(&found), page, &used))
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

    /// As JSON.
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }
}
