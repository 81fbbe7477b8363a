//! Options that bound what a recording takes of the disk.

use clap::{Args, ValueEnum};
use prof_analyze::rewrite::{AggregateOptions, CullOptions};
use prof_collect::{Budget, Limits, Room};
use prof_trace::values::parse::{duration, millionths, size};
use prof_trace::values::text::bytes;

/// Options that bound what a recording takes of the disk.
#[derive(Args, Clone, Debug)]
pub(crate) struct BoundArgs {
    /// Let the recording become no larger than this
    #[arg(long, help_heading = "Bounds", value_name = "SIZE", value_parser = size)]
    pub max_disk: Option<u64>,
    /// Leave this much of the recording's file system free: a size, or a part of the file system
    #[arg(long, help_heading = "Bounds", value_name = "SIZE|PERCENT", default_value_t = Room::Usual)]
    pub keep_free: Room,
    /// What to do at a bound
    #[arg(long, help_heading = "Bounds", value_name = "WHAT", value_enum, default_value_t = OnLimit::Stop)]
    pub on_limit: OnLimit,
    /// Memory that the process which drops the oldest part may take; if it needs more, it is tried again later
    #[arg(long, help_heading = "Bounds", value_name = "SIZE", value_parser = size, default_value = "1GiB")]
    pub fold_memory: u64,
    /// Count blocks that lived shorter than this, but do not write them
    #[arg(long, help_heading = "Bounds", value_name = "TIME", value_parser = duration)]
    pub cull: Option<u64>,
    /// Memory of the collector for events that wait beside the live blocks; if it is full, the oldest are written
    #[arg(long, help_heading = "Bounds", value_name = "SIZE", value_parser = size, requires = "cull", default_value = "64MiB")]
    pub cull_pending: u64,
    /// Let the collector and the hook take at most this much of a processor: record a sample as soon as all blocks would
    /// take more, and as coarse a one as is needed
    #[arg(long, help_heading = "Bounds", value_name = "PERCENT", value_parser = part_of_time, conflicts_with_all = ["aggregate", "sample", "sample_rate"])]
    pub max_cpu: Option<u64>,
    /// Let the hook take at most this much of the processor time that the program uses itself, likewise
    #[arg(long, help_heading = "Bounds", value_name = "PERCENT", value_parser = part_of_time, conflicts_with_all = ["aggregate", "sample", "sample_rate"])]
    pub max_overhead: Option<u64>,
    /// Record no blocks, but for each call stack what it holds and has had: live, peak, allocated, temporary, sizes and
    /// lifetimes
    #[arg(long, help_heading = "Bounds", conflicts_with_all = ["cull", "sample", "sample_rate"])]
    pub aggregate: bool,
    /// With --aggregate and --on-limit aggregate, write these figures at this interval; at a longer one, if they would
    /// become more than 1 GiB in 30 days
    #[arg(long, help_heading = "Bounds", value_name = "TIME", value_parser = duration, default_value = "10s")]
    pub every: u64,
}

/// Default of `--cull-pending`.
pub(crate) const CULL_PENDING: u64 = 64 << 20;

/// Default of `--fold-memory`.
const FOLD_MEMORY: u64 = 1 << 30;

/// Default of `--every`.
const EVERY_NS: u64 = 10_000_000_000;
/// Least value of `--every`.
const LEAST_EVERY_NS: u64 = 100_000_000;

impl Default for BoundArgs {
    fn default() -> Self {
        Self {
            max_disk: None,
            keep_free: Room::Usual,
            on_limit: OnLimit::Stop,
            fold_memory: FOLD_MEMORY,
            cull: None,
            cull_pending: CULL_PENDING,
            max_cpu: None,
            max_overhead: None,
            aggregate: false,
            every: EVERY_NS,
        }
    }
}

impl BoundArgs {
    /// Returns the bounds.
    pub(crate) fn limits(&self) -> Limits {
        Limits { max_disk: self.max_disk, keep_free: self.keep_free }
    }

    /// Returns what recording may cost, if that is bounded.
    pub(crate) fn budget(&self) -> Option<Budget> {
        let (cpu, overhead) = (self.max_cpu, self.max_overhead);
        (cpu.is_some() || overhead.is_some()).then_some(Budget { cpu, overhead })
    }

    /// Returns which blocks are not written.
    pub(crate) fn cull(&self) -> Option<CullOptions> {
        let pending = self.cull_pending;
        self.cull.filter(|ns| *ns > 0).map(|threshold_ns| CullOptions { threshold_ns, pending })
    }

    /// Returns how figures by stack are written in place of blocks.
    pub(crate) fn aggregate(&self) -> Option<AggregateOptions> {
        self.aggregate.then_some(AggregateOptions { every_ns: self.every })
    }

    /// Returns how figures by stack are written from a bound on.
    pub(crate) fn goes_over(&self) -> Option<AggregateOptions> {
        let every_ns = self.every;
        (self.on_limit == OnLimit::Aggregate).then_some(AggregateOptions { every_ns })
    }

    /// Returns whether the recording becomes shorter at a bound.
    pub(crate) fn folds(&self) -> bool {
        self.on_limit != OnLimit::Stop
    }

    /// Checks for values that leave no room for a recording.
    ///
    /// # Errors
    /// A message that says what is wrong.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.every < LEAST_EVERY_NS {
            return Err("--every: give at least 100ms".into());
        }
        let has_figures = self.aggregate || self.goes_over().is_some();
        if self.every != EVERY_NS && !has_figures {
            return Err("--every says when figures by stack are written; it goes with --aggregate or --on-limit \
                        aggregate"
                .into());
        }
        if self.folds() && (self.aggregate || self.cull().is_some()) {
            let what = match self.goes_over() {
                Some(_) => "--on-limit aggregate is for recordings of all blocks",
                None => "--on-limit drop-oldest is for recordings of all blocks or a sample",
            };
            return Err(format!(
                "{what}: with --cull or --aggregate most blocks are figures already; leave out one of the two"
            ));
        }
        match self.max_disk {
            Some(n) if n < Limits::LEAST => Err(format!(
                "--max-disk {} leaves no room for a recording; give at least {}",
                bytes(n),
                bytes(Limits::LEAST)
            )),
            _ => Ok(()),
        }
    }
}

/// Least value of `--max-cpu` and `--max-overhead`, in millionths: the collector's looks alone take some 0.1 %.
const LEAST_PART: u64 = 1000;

/// Parses a part of a processor's or of a program's time. Returns millionths.
fn part_of_time(text: &str) -> Result<u64, String> {
    match millionths(text)? {
        n if n < LEAST_PART => Err("give at least 0.1%".into()),
        n => Ok(n),
    }
}

/// Reaction to a recording that reaches a bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnLimit {
    /// Finish the recording, and detach
    Stop,
    /// Of the blocks that ended in the oldest part keep only the figures, and go on; stop if that frees too little
    DropOldest,
    /// Make figures by stack of all blocks, as --aggregate has them, and go on with figures alone
    Aggregate,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Bounded {
        #[command(flatten)]
        bounds: BoundArgs,
        /// Options of other groups that bounds do not go with.
        #[arg(long)]
        sample: bool,
        #[arg(long)]
        sample_rate: bool,
    }

    #[test]
    fn bounds_are_understood() {
        let of = |args: &[&str]| {
            let parsed = Bounded::try_parse_from(["attach"].iter().chain(args));
            let b = parsed.map_err(|e| e.to_string())?.bounds;
            b.check().map(|()| b.limits())
        };
        assert_eq!(of(&[]), Ok(BoundArgs::default().limits()));
        let both = Limits { max_disk: Some(200 << 20), keep_free: Room::Bytes(1 << 30) };
        assert_eq!(of(&["--max-disk", "200MiB", "--keep-free=1GiB"]), Ok(both));
        let figures = of(&["--on-limit", "aggregate", "--every", "1s"]);
        assert_eq!(figures, Ok(BoundArgs::default().limits()));
        for (args, part) in [
            (["--max-disk", "1K"], "at least 1.0 MiB"),
            (["--keep-free", "101%"], "0% to 100%"),
            (["--on-limit", "explode"], "possible values"),
            (["--on-limit=drop-oldest", "--aggregate"], "--aggregate"),
            (["--on-limit=drop-oldest", "--cull=1ms"], "--cull"),
            (["--on-limit=aggregate", "--aggregate"], "figures already"),
            (["--on-limit=stop", "--every=1s"], "--on-limit aggregate"),
        ] {
            assert!(of(&args).is_err_and(|e| e.contains(part)), "{args:?}");
        }
    }
}
