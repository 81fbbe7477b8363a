//! The state of a recorded process at a moment, as far as it is known.

/// Figures of a stack, a thread, or a sum of them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RowStats {
    /// Live bytes.
    pub live: u64,
    /// Number of live blocks.
    pub blocks: u64,
    /// Greatest number of live bytes at any time; 0 if it is not known.
    pub peak: u64,
    /// Number of allocations, reallocations included.
    pub allocations: u64,
    /// Growth in bytes a second.
    pub growth: f32,
    /// Allocations a second.
    pub rate: f32,
    /// Age of the oldest live block in nanoseconds; 0 if there is none.
    pub age: u64,
}

impl RowStats {
    /// Adds those of others. Peaks are at different moments, so the sum has none.
    pub fn add(&mut self, other: &Self) {
        self.live = self.live.saturating_add(other.live);
        self.blocks = self.blocks.saturating_add(other.blocks);
        self.allocations = self.allocations.saturating_add(other.allocations);
        self.growth += other.growth;
        self.rate += other.rate;
        self.age = self.age.max(other.age);
        self.peak = 0;
    }
}

/// A thread with what its allocations hold.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Thread {
    /// The thread's id; 0 if it is not known.
    pub tid: u32,
    /// Name of the thread.
    pub name: String,
    /// The thread's figures.
    pub figures: RowStats,
}

/// The cost of the recording, as far as it is known.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// Part of a processor that the collector has used lately.
    pub collector: Option<f32>,
    /// Part of a processor that the process itself has used lately, hooks included.
    pub target: Option<f32>,
    /// Part of a processor that this view has used lately.
    pub own: Option<f32>,
    /// Resident bytes of the collector.
    pub collector_rss: Option<u64>,
    /// Resident bytes of this view.
    pub own_rss: Option<u64>,
}

/// A moment of the timeline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moment {
    /// Nanoseconds since the start of the recording.
    pub at_ns: u64,
    /// Live bytes.
    pub live: u64,
    /// Resident bytes of the process; 0 if they are not known.
    pub rss: u64,
}

/// The end of a recording.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ended {
    /// The reason, as a sentence without a full stop.
    pub why: String,
}

/// The state of a recorded process at a moment, as far as it is known.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot {
    /// The moment, in nanoseconds since the start of the recording.
    pub at_ns: u64,
    /// Recording is on.
    pub is_on: bool,
    /// Figures are estimates.
    pub is_sample: bool,
    /// Only blocks that lived at least so long are recorded, in nanoseconds; 0: all are.
    pub culled_ns: u64,
    /// Since when the recording has figures by stack alone, if it had blocks before, in nanoseconds since its start.
    pub figures_since_ns: Option<u64>,
    /// Figures of all blocks.
    pub total: RowStats,
    /// Events a second.
    pub events: f64,
    /// Number of events lost.
    pub lost: u64,
    /// Resident bytes of the process.
    pub rss: Option<u64>,
    /// Length of the recording in bytes.
    pub written: u64,
    /// The cost of the recording.
    pub cost: Cost,
    /// Figures by stack. The index is the stack's number in the book of names.
    pub stacks: Vec<RowStats>,
    /// Figures by thread.
    pub threads: Vec<Thread>,
    /// Why no more is to come.
    pub ended: Option<Ended>,
}
