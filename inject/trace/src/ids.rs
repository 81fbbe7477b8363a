//! Types for the numbers of stack nodes and code addresses, of which several meet in one signature.

/// Number of a stack node in one segment, from 1 in the order of the definitions there; 0: none, or the root. A recording
/// has ids of its own, which are plain numbers: only the collector, which translates the one to the other, sees both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct SegmentNode(pub u32);

impl SegmentNode {
    /// No node; as a parent: the root.
    pub const NONE: Self = Self(0);
}

impl From<u32> for SegmentNode {
    #[inline(always)]
    fn from(number: u32) -> Self {
        Self(number)
    }
}

/// Id of a code address: its position in the table, plus one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct PcId(pub u32);

impl PcId {
    /// No code address.
    pub const NONE: Self = Self(0);

    /// Returns the position in the table; `None` for [`PcId::NONE`].
    #[inline(always)]
    pub fn position(self) -> Option<usize> {
        (self.0 as usize).checked_sub(1)
    }
}
