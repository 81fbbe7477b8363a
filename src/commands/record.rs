//! Options that all recordings have in common, and how their values are parsed.

use super::bounds::BoundArgs;
use super::collect::Writing;
use clap::{Args, ValueEnum};
use prof_inject::{Named, Role};
use prof_os::Pid;
use prof_trace::capture::{BUDGET_DISTANCE, Capture, FIRST_DISTANCE};
use prof_trace::pack::Compress;
use prof_trace::values::parse::{self, size};
use prof_trace::values::text::bytes;
use std::path::PathBuf;
use std::time::Duration;

/// Options that all recordings have in common.
#[derive(Args, Clone, Debug)]
pub(crate) struct RecordArgs {
    /// The file to record to; it must not exist, unless it is the recording of this process whose collector was killed:
    /// `prof attach` goes on in that
    /// [default: ./prof.NAME.PID.TIME.prof]
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Size of the memory that holds events on their way to the file
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = size)]
    pub ring_size: u64,
    /// Behaviour of a thread when that memory is full: wait for a while, or drop its event at once
    /// (dropped events are counted)
    #[arg(long, value_name = "WHAT", value_enum, default_value_t = OnFull::Wait)]
    pub on_full: OnFull,
    /// Write no line to the system's log (authpriv) at the attach and the detach
    #[arg(long)]
    pub no_log: bool,
    /// Record the stack of each free, too
    #[arg(long)]
    pub free_stacks: bool,
    /// Record a sample: on average one block per BYTES allocated, larger blocks more likely [without a value, or auto:
    /// as fine as the program's allocation rate allows at little cost]
    #[arg(
        long,
        value_name = "BYTES",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "auto",
        value_parser = parse_sample,
        conflicts_with = "sample_rate"
    )]
    pub sample: Option<Sample>,
    /// Record a sample: one of every N consecutive allocations of each thread
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub sample_rate: Option<u64>,
    /// Record no smaller blocks
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub min_size: Option<u64>,
    /// Record no larger blocks
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub max_size: Option<u64>,
    /// Compression of the recording, when there is time for it
    #[arg(long, value_name = "HOW", value_enum, default_value_t = Compress::Fast)]
    pub compress: Compress,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub bounds: BoundArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub functions: FunctionArgs,
    /// Compare each stack with a full unwind (slow; for testing prof)
    #[arg(long, hide = true)]
    pub verify_stacks: bool,
}

impl RecordArgs {
    /// Returns the default options, but without a line in the system's log, for recording a process of prof's own.
    pub(crate) fn unlogged(output: PathBuf, ring_size: u64) -> Self {
        Self {
            output: Some(output),
            ring_size,
            on_full: OnFull::Wait,
            no_log: true,
            free_stacks: false,
            sample: None,
            sample_rate: None,
            min_size: None,
            max_size: None,
            compress: Compress::Fast,
            bounds: BoundArgs::default(),
            functions: FunctionArgs::default(),
            verify_stacks: false,
        }
    }

    /// Returns the default options.
    pub(crate) fn plain() -> Self {
        Self { output: None, no_log: false, ..Self::unlogged(PathBuf::new(), 64 << 20) }
    }

    /// Checks for options that contradict each other, which the parser can't do.
    ///
    /// # Errors
    /// A message that says what is wrong.
    pub(crate) fn check(&self) -> Result<(), String> {
        self.bounds.check()?;
        let c = self.capture();
        if self.bounds.goes_over().is_some() && c.is_sampled() {
            return Err("--on-limit aggregate makes figures of all blocks; with --sample, --sample-rate, --max-cpu and \
                        --max-overhead they would be estimates: leave out one of the two, or take --on-limit drop-oldest"
                .into());
        }
        if c.max_size == 0 {
            return Err("--max-size 0 leaves nothing to record".into());
        }
        if c.min_size > c.max_size {
            return Err(format!(
                "--min-size ({}) is larger than --max-size ({}): nothing would be recorded",
                bytes(c.min_size),
                bytes(c.max_size)
            ));
        }
        Ok(())
    }

    /// Returns how the recording is written.
    pub(crate) fn writing(&self) -> Writing {
        Writing {
            compress: self.compress,
            limits: self.bounds.limits(),
            cull: self.bounds.cull(),
            aggregate: self.bounds.aggregate(),
            goes_over: self.bounds.goes_over(),
            drop_oldest: self.bounds.folds().then_some(self.bounds.fold_memory),
            budget: self.bounds.budget(),
            reports: None,
        }
    }

    /// Returns which blocks are to be recorded.
    pub(crate) fn capture(&self) -> Capture {
        let budget = self.bounds.budget();
        Capture {
            sample_bytes: match self.sample {
                None if budget.is_some() => BUDGET_DISTANCE,
                None => 0,
                Some(Sample::Auto) => FIRST_DISTANCE,
                Some(Sample::Fixed(n)) => n,
            },
            adapts: self.sample == Some(Sample::Auto) || budget.is_some(),
            sample_every: self.sample_rate.unwrap_or(0),
            min_size: self.min_size.unwrap_or(0),
            max_size: self.max_size.unwrap_or(u64::MAX),
        }
    }
}

/// Options that choose the hooked functions.
#[derive(Args, Clone, Debug, Default, PartialEq)]
pub(crate) struct FunctionArgs {
    /// Look for the allocator in this module only: a file name such as libjemalloc.so.2, with or without what follows
    /// .so, or a path (may be given again)
    #[arg(long, help_heading = "Functions", value_name = "MODULE")]
    pub obj: Vec<String>,
    /// Prefix that the allocator's functions have before their usual names, such as je_
    #[arg(long, help_heading = "Functions", value_name = "PREFIX")]
    pub symbols_prefix: Option<String>,
    /// Another function that allocates, such as 'libpool.so:pool_alloc(2)', with the number of the argument that is the
    /// size, counted from 1 (may be given again)
    #[arg(
        long,
        help_heading = "Functions",
        value_name = "MODULE:FUNCTION(SIZE)",
        value_parser = |s: &str| Named::parse(Role::Alloc, s)
    )]
    pub alloc_fn: Vec<Named>,
    /// Another function that resizes a block, with the numbers of the arguments that are the block and the size
    #[arg(
        long,
        help_heading = "Functions",
        value_name = "MODULE:FUNCTION(BLOCK,SIZE)",
        value_parser = |s: &str| Named::parse(Role::Realloc, s)
    )]
    pub realloc_fn: Vec<Named>,
    /// Another function that frees a block, with the number of the argument that is the block
    #[arg(
        long,
        help_heading = "Functions",
        value_name = "MODULE:FUNCTION(BLOCK)",
        value_parser = |s: &str| Named::parse(Role::Free, s)
    )]
    pub free_fn: Vec<Named>,
    /// Do not record the calls that change mappings or the allocator's settings: mmap, munmap, mremap, brk, sbrk,
    /// shmat, shmdt, madvise, mprotect, mallopt, malloc_trim, malloc_info and mallctl
    #[arg(long, help_heading = "Functions")]
    pub no_maps: bool,
}

/// Behaviour of a thread when the ring is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnFull {
    /// Wait for up to a tenth of a second, then drop events until there is room
    Wait,
    /// Drop the event
    Drop,
}

/// The value of `--sample`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sample {
    /// The distance follows the program's allocation rate.
    Auto,
    /// The distance in bytes.
    Fixed(u64),
}

/// Parses a sampling distance: `auto`, or a size that is not 0.
///
/// # Errors
/// A message that says what is wrong with it.
pub(crate) fn parse_sample(text: &str) -> Result<Sample, String> {
    if text == "auto" {
        return Ok(Sample::Auto);
    }
    match parse::size(text).map_err(|e| format!("{e}, or auto"))? {
        0 => Err("0 bytes between samples is no sampling; leave the option out".into()),
        n => Ok(Sample::Fixed(n)),
    }
}

/// Parses a duration, as [`parse::duration`] does.
///
/// # Errors
/// A message that says what is wrong with it.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    parse::duration(text).map(Duration::from_nanos)
}

/// Parses the ID of a process.
///
/// # Errors
/// A message with how to find one.
pub(crate) fn pid(text: &str) -> Result<Pid, String> {
    text.parse().ok().filter(|pid| *pid > Pid::NONE).ok_or_else(|| {
        format!(
            "{text:?} is not the ID of a process; `pgrep NAME` prints the IDs of those with a name"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[test]
    fn samples_and_times_are_understood() {
        assert_eq!(parse_sample("auto"), Ok(Sample::Auto));
        assert_eq!(parse_sample("1.5M"), Ok(Sample::Fixed(3 << 19)));
        assert!(parse_sample("0").is_err() && parse_sample("often").is_err());
        assert_eq!(parse_duration("1.5m"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_duration("30"), Ok(Duration::from_secs(30)));
    }

    #[derive(Debug, clap::Parser)]
    struct Wanted {
        #[arg(value_parser = pid)]
        pid: Pid,
        #[command(flatten)]
        record: RecordArgs,
    }

    fn record(args: &[&str]) -> Result<(Pid, RecordArgs), String> {
        let parsed = Wanted::try_parse_from(["attach"].iter().chain(args));
        let wanted = parsed.map_err(|e| e.to_string().replace('\n', " "))?;
        wanted.record.check()?;
        Ok((wanted.pid, wanted.record))
    }

    #[test]
    fn samples_and_limits_are_understood() {
        let capture = |args: &[&str]| record(args).map(|(pid, r)| (pid, r.capture()));
        let (all, seven) = (Capture::default(), Pid::from_raw(7));
        assert_eq!(capture(&["7"]), Ok((seven, all)));
        let auto = Capture { sample_bytes: FIRST_DISTANCE, adapts: true, ..all };
        assert_eq!(capture(&["--sample", "7"]), Ok((seven, auto)));
        assert_eq!(capture(&["--sample=auto", "7"]), Ok((seven, auto)));
        let sampled = Capture { sample_bytes: 1 << 20, ..all };
        assert_eq!(capture(&["--sample=1MiB", "7"]), Ok((seven, sampled)));
        let every = Capture { sample_every: 100, min_size: 1024, max_size: 1 << 20, ..all };
        let args = ["7", "--sample-rate", "100", "--min-size=1K", "--max-size", "1M"];
        assert_eq!(capture(&args), Ok((seven, every)));
        for (args, part) in [
            (&["--sample", "--sample-rate", "5", "7"][..], "--sample-rate"),
            (&["--sample=0", "7"], "leave the option out"),
            (&["--sample-rate", "0", "7"], "0"),
            (&["--min-size", "2K", "--max-size", "1K", "7"], "larger than --max-size"),
            (&["--max-size", "0", "7"], "leaves nothing to record"),
            (&["--compress", "more", "7"], "more"),
        ] {
            let e = capture(args).expect_err("wrong");
            assert!(e.contains(part) && !e.contains('\n'), "{args:?}: {e}");
        }
        assert_eq!(record(&["7"]).map(|r| r.1.compress), Ok(Compress::Fast));
    }
}
