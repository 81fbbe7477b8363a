//! The segments of mimalloc 2, and the pages that they consist of.
//!
//! A segment is memory from the kernel that begins at a multiple of 32 MiB with a description of its slices of 64 KiB. A
//! page is one slice or several, and has blocks of one size. A block of more than 16 MiB has a segment of its own.

use super::form::{HEAD, Layout, Links, More, PageForm, SIZE, Starts};
use crate::view::{Memory as _, View, WORD, words};
use prof_os::maps::Map;
use std::ops::Range;

/// Bytes of a slice, and of a segment of pages, whose address is a multiple of it.
pub(super) const SLICE: u64 = 64 << 10;
pub(super) const SEGMENT: u64 = 32 << 20;
/// Greatest number of slices that are described.
const SLICES: u64 = SEGMENT / SLICE;
/// Greatest number of slices that a segment's own data take.
const MOST_INFO: u64 = 16;
/// Bits of an address.
pub(super) const ADDRESS: u32 = 47;
/// The size in a page's description from which on its block takes the whole page.
const HUGE: u64 = 2 << 30;
/// Bit of a page's flags: one of its blocks begins later than its place.
const SHIFTED: u64 = 2;
/// Greatest number of places that are looked at as segments: 32 TiB of memory.
const MOST_PLACES: usize = 1 << 20;

/// The data at the start of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub at: u64,
    /// Number of slices, of those that are described, and of those of the segment's own data.
    pub slices: u64,
    pub entries: u64,
    pub info: u64,
    /// Number of pages.
    pub used: u64,
    /// Whether it has a single block.
    pub is_huge: bool,
    /// Alignment of that block, if that is why it has a segment.
    pub alignment: Option<u64>,
    /// The thread that it belongs to; 0: that has ended.
    pub thread: u64,
}

/// Returns the secret number that all segments of one mimalloc have in common, if one begins with these words.
fn secret(at: u64, head: &[u64; HEAD], layout: Layout) -> Option<u64> {
    let cookie = head[layout.form.segment.cookie];
    (cookie != 0).then_some(cookie ^ at)
}

impl Head {
    /// Reads what a segment begins with; `None` if it makes no sense.
    fn of(at: u64, head: &[u64; HEAD], layout: Layout) -> Option<Self> {
        let form = &layout.form.segment;
        let (slices, info, entries) = (head[form.slices], head[form.info], head[form.entries]);
        let kind = head[form.kind] & u64::from(u32::MAX);
        // The last slice is not used where a guard page ends the segment.
        let fits = (1..=MOST_INFO).contains(&info)
            && info < entries
            && entries <= slices.min(SLICES)
            && slices <= 1 << ADDRESS >> SLICE.trailing_zeros()
            && at.checked_add(slices * SLICE).is_some_and(|end| end >> ADDRESS == 0)
            && (kind == 1 || kind == 0 && slices == SLICES && entries + 1 >= SLICES);
        // Only the bytes of the segment tell 2.1.2 from versions before it.
        let (has_size, alignment) = match form.more {
            More::Size(n) => (head[n] == slices.wrapping_mul(SLICE), None),
            More::Alignment(n, from) => (
                head[SIZE] == slices.wrapping_mul(SLICE),
                Some(head[n]).filter(|n| head[from] != 0 && n.is_power_of_two()),
            ),
        };
        (fits && has_size == matches!(form.more, More::Size(_))).then_some(Self {
            at,
            slices,
            entries,
            info,
            used: head[form.used],
            is_huge: kind == 1,
            alignment,
            thread: head[form.thread],
        })
    }

    /// Returns the segment's memory.
    pub(super) fn range(&self) -> Range<u64> {
        self.at..self.at + self.slices * SLICE
    }

    /// Returns the address of the description of a slice.
    pub(super) fn description(&self, slice: u64, layout: Layout) -> u64 {
        self.at + layout.form.segment.len * WORD + slice * layout.described()
    }

    /// Reads the descriptions of all slices; `None` if they can't be read.
    pub(super) fn descriptions(&self, view: &mut View<'_>, layout: Layout) -> Option<Vec<u8>> {
        let range = self.description(0, layout)..self.description(self.entries, layout);
        let bytes = view.all(range.clone());
        (bytes.len() as u64 == range.end - range.start).then_some(bytes)
    }

    /// Returns how many pages have the number of places that there is room for, if the descriptions of slices lead from
    /// each page to the next, up to the end.
    fn fit(&self, view: &mut View<'_>, layout: Layout) -> Option<u64> {
        let bytes = self.descriptions(view, layout)?;
        let (mut slice, mut fit) = (0, 0);
        while slice < self.entries {
            let from = (slice * layout.described()) as usize;
            let page = PageHead::of(&bytes[from..], layout);
            if page.slices == 0 || page.offset != 0 || slice == 0 && page.slices != self.info {
                return None;
            }
            let start = self.at + slice * SLICE;
            let is_page = slice > 0 && page.size != 0;
            fit += u64::from(is_page && page.places(start, layout).is_some());
            slice += page.slices;
        }
        (slice == self.entries || self.is_huge).then_some(fit)
    }
}

/// The description of a page, or of free slices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PageHead {
    /// Number of slices, and the distance to the first description of the page, which has 0.
    pub slices: u64,
    pub offset: u32,
    /// Number of places for blocks that were ever used, and that there are.
    pub capacity: u64,
    pub reserved: u64,
    /// Whether a block may begin later than its place, as it is aligned.
    pub is_shifted: bool,
    /// Bytes of a block; 0 if the slices are free.
    pub size: u64,
    /// Number of places that are on neither of the owner's two lists.
    pub used: u64,
    /// The first blocks of the lists of free ones: the owner's two, and that of blocks that other threads have freed.
    pub free: u64,
    pub local: u64,
    pub others: u64,
    pub keys: [u64; 2],
    /// Address of the first place, in versions that say it.
    pub start: u64,
    /// The heap that it belongs to.
    pub heap: u64,
}

impl PageHead {
    /// Reads a description.
    pub(super) fn of(bytes: &[u8], layout: Layout) -> Self {
        let fields = Fields(bytes);
        let is_late = layout.form.page == PageForm::Late;
        let head = Self {
            slices: fields.four(0),
            offset: fields.four(4) as u32,
            capacity: fields.half(10),
            reserved: fields.half(12),
            is_shifted: fields.half(14) & SHIFTED != 0,
            free: fields.word(16),
            ..Self::default()
        };
        let (head, behind) = match is_late {
            true => (
                Self {
                    local: fields.word(24),
                    used: fields.half(32),
                    size: fields.word(40),
                    start: fields.word(48),
                    ..head
                },
                56,
            ),
            false => (
                Self {
                    used: fields.four(24),
                    size: fields.four(28),
                    local: fields.word(32),
                    ..head
                },
                40,
            ),
        };
        let (keys, behind) = match layout.links {
            Links::Plain => ([0; 2], behind),
            Links::Encoded => ([0, 8].map(|k| fields.word(behind + k)), behind + 16),
        };
        // The low bits say how other threads are to free.
        let others = fields.word(behind) & !3;
        Self { keys, others, heap: fields.word(behind + 8), ..head }
    }

    /// Returns where the places of a page begin whose first slice begins at `first`, and the bytes of each; `None` if they do
    /// not fit into its slices.
    pub(super) fn places(&self, first: u64, layout: Layout) -> Option<(u64, u64)> {
        let room = self.slices.checked_mul(SLICE)?;
        let starts = layout.form.starts;
        let size = if starts != Starts::Said && self.size >= HUGE { room } else { self.size };
        let behind = match starts {
            Starts::Said => self.start.checked_sub(first)?,
            starts => starts.behind(size),
        };
        let places = room.checked_sub(behind)?.checked_div(size)?;
        // The number of places is the only trace of how far behind they begin.
        let is_exact = starts == Starts::Said || !Starts::SIZES.contains(&size);
        let fits = size >= WORD
            && self.capacity <= self.reserved
            && (self.reserved == places || is_exact && self.reserved < places)
            && self.used <= self.capacity;
        fits.then_some((first + behind, size))
    }
}

/// The bytes of a description, of which missing ones are zero.
pub(super) struct Fields<'a>(pub &'a [u8]);

impl Fields<'_> {
    fn part<const N: usize>(&self, at: usize) -> [u8; N] {
        let bytes = self.0.get(at..).and_then(|b| b.first_chunk());
        bytes.copied().unwrap_or([0; N])
    }

    pub(super) fn half(&self, at: usize) -> u64 {
        u64::from(u16::from_ne_bytes(self.part(at)))
    }

    pub(super) fn four(&self, at: usize) -> u64 {
        u64::from(u32::from_ne_bytes(self.part(at)))
    }

    pub(super) fn word(&self, at: usize) -> u64 {
        words(&self.part::<{ WORD as usize }>(at)).next().unwrap_or(0)
    }
}

/// Calls `take` with each place at which a segment may lie, and the words there. Returns whether all were looked at.
pub(super) fn each_head(
    view: &mut View<'_>,
    maps: &[Map],
    mut take: impl FnMut(&mut View<'_>, u64, &[u64; HEAD]),
) -> bool {
    let mut looked = 0;
    for m in maps.iter().filter(|m| m.read && m.write && !m.shared && m.inode == 0) {
        let Some(mut at) = m.start.0.checked_next_multiple_of(SEGMENT) else { continue };
        while at < m.end.0 {
            if looked >= MOST_PLACES || view.is_late() {
                return false;
            }
            looked += 1;
            if let Some(head) = view.words::<HEAD>(at) {
                take(view, at, &head);
            }
            let Some(next) = at.checked_add(SEGMENT) else { break };
            at = next;
        }
    }
    true
}

/// Finds what looks like segments by any layout, and their secret numbers, with how many pages make sense.
pub(super) fn each_secret(
    view: &mut View<'_>,
    maps: &[Map],
    mut take: impl FnMut(u64, Layout, u64),
) {
    each_head(view, maps, |view, at, words| {
        for layout in Layout::all() {
            let found = secret(at, words, layout).zip(Head::of(at, words, layout));
            if let Some((secret, head)) = found
                && let Some(fit) = head.fit(view, layout)
            {
                take(secret, layout, fit);
            }
        }
    });
}

/// Finds the segments that have a secret number, in the order of their addresses. Also returns the addresses of those that
/// have it, and make no sense else, and whether all memory was looked at.
pub(super) fn with_secret(
    view: &mut View<'_>,
    maps: &[Map],
    layout: Layout,
    wanted: u64,
) -> (Vec<Head>, Vec<u64>, bool) {
    let (mut all, mut bad) = (Vec::new(), Vec::new());
    let whole = each_head(view, maps, |_, at, words| {
        if secret(at, words, layout) == Some(wanted) {
            match Head::of(at, words, layout) {
                Some(head) => all.push(head),
                None => bad.push(at),
            }
        }
    });
    (all, bad, whole)
}
