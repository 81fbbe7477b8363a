//! `prof reach`: which blocks nothing points to any more.

pub(crate) mod at_end;
pub(crate) mod before;
mod classes;
pub(crate) mod ledger;
mod looks;
mod report;
pub(crate) mod scan;

use super::input::{FilterArgs, SymbolArgs};
use super::record::pid;
use super::report::{Format, print};
use crate::failure::{FAILED, usage};
use crate::term;
use anyhow::Result;
use before::{BEFORE, LABEL};
use clap::{Args, ValueEnum};
use ledger::Ledger;
use looks::Looks;
use prof_analyze::live::{Names, Only};
use prof_analyze::report::Style;
use prof_os::Pid;
use prof_scan::{Limits, Stop, prove};
use prof_trace::values::parse::{self, size};
use prof_trace::values::text::{bytes, count};
use report::{ReachData, ReportOptions};
use scan::{ScanArgs, failed};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Number of stacks that are shown.
const TOP: usize = 10;
/// Number of passes that have to agree before the one that sees one moment, and where there is none.
pub(crate) const AGREE: u64 = 3;
pub(crate) const ALONE: u64 = 8;
/// Interval at which a rest between two looks sees whether the process has ended.
const BETWEEN: Duration = Duration::from_millis(200);
/// Longest stop unless the user asks for a longer one.
pub(crate) const SHORT: Duration = Duration::from_millis(250);

/// The way in which the last look at the process is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Snapshot {
    /// As `stop` where a pass takes no longer than 250 ms, else as `none`
    Auto,
    /// While it runs
    None,
    /// With all threads stopped for the time of one pass
    Stop,
    /// Of a copy of the memory, as fork makes it: all threads are stopped for a few ms a GiB
    Fork,
}

impl Snapshot {
    /// Returns whether all threads are stopped for a walk of the heap.
    pub(crate) fn of_census(self) -> prof_census::Snapshot {
        match self {
            Self::Auto => prof_census::Snapshot::Within(SHORT),
            Self::None => prof_census::Snapshot::Never,
            Self::Stop => prof_census::Snapshot::Always,
            Self::Fork => prof_census::Snapshot::Copied,
        }
    }

    /// Returns whether all threads are stopped for it.
    pub(crate) fn stop(self) -> Stop {
        match self {
            Self::Auto => Stop::Within(SHORT),
            Self::None => Stop::Never,
            Self::Stop => Stop::Always,
            Self::Fork => Stop::Copy,
        }
    }
}

/// Prove which blocks of a running, recorded process nothing points to any more
///
/// Reads the process's memory and registers from outside, while it runs, and follows all that looks like a pointer to a
/// recorded block. What no pass over the memory reaches is unreachable: the program can neither use nor free it. Only
/// blocks that were allocated since the attach are judged, or all with --census; other memory counts as in use.
#[derive(Args, Clone, Debug)]
pub(crate) struct ReachArgs {
    /// The id of a process that is being recorded
    #[arg(value_name = "PID", value_parser = pid)]
    pub pid: Pid,

    /// How many call stacks to show; 0 shows all
    #[arg(short = 'n', long, value_name = "N", default_value_t = TOP)]
    pub top: usize,

    /// Name each unreachable block above its stack
    #[arg(short = 'a', long)]
    pub show_blocks: bool,

    /// How the last pass is made: `stop` stops all threads for it, so that it sees one moment, and `fork` only until there is
    /// a copy of the memory. Without it, what the program moves about all the time is very likely seen, but not for certain
    #[arg(long, value_name = "HOW", value_enum, default_value_t = Snapshot::Auto)]
    pub snapshot: Snapshot,

    /// How many passes in a row have to agree [default: 3 before one with all threads stopped, 8 without]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=20))]
    pub passes: Option<u64>,

    /// Look again and again, with this much time in between, until the process ends, Ctrl-C, or a limit of --fail-if is
    /// exceeded; says between which two looks the last pointer to a block went
    #[arg(long, value_name = "TIME", value_parser = pause)]
    pub watch: Option<Duration>,

    /// Judge blocks from before the attach, too: all threads are stopped while the heap of glibc's allocator is walked
    #[arg(long)]
    pub census: bool,

    /// With --census and --show-blocks: don't show how blocks from before the attach begin
    #[arg(long, requires = "census")]
    pub no_content: bool,

    /// Time for everything, of each look; what is not decided by then is not proved
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = time_limit)]
    pub timeout: Duration,

    #[command(flatten)]
    #[allow(missing_docs)]
    pub scan: ScanArgs,

    /// Exit with 1 if this many bytes are exceeded, or if it was not decided: 'unreachable > 10MiB'; 'unreachable > 0' if there
    /// is any such block, of 0 bytes, too
    #[arg(long, value_name = "LIMIT", value_parser = parse_limit)]
    pub fail_if: Vec<Limit>,

    /// The format of the output
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t = Format::Text)]
    pub format: Format,

    #[command(flatten)]
    #[allow(missing_docs)]
    pub symbols: SymbolArgs,

    #[command(flatten)]
    #[allow(missing_docs)]
    pub filter: FilterArgs,
}

/// Parses the time that something may take.
///
/// # Errors
/// A message that says what is wrong with the text.
pub(crate) fn time_limit(text: &str) -> Result<Duration, String> {
    parse::duration(text).map(Duration::from_nanos)
}

/// Parses a time between looks.
///
/// # Errors
/// A message that says what is wrong with the text.
fn pause(text: &str) -> Result<Duration, String> {
    let time = time_limit(text)?;
    if time.is_zero() { Err("there must be some time between looks".into()) } else { Ok(time) }
}

/// The most bytes that may be unreachable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limit(u64);

/// Parses a limit: `unreachable > SIZE`, or `unreachable` (nothing may be).
///
/// # Errors
/// A message that says what is wrong with the text.
pub(crate) fn parse_limit(text: &str) -> Result<Limit, String> {
    let wrong = || format!("{text:?} is no limit; give one such as 'unreachable > 0'");
    let (what, most) = text.split_once('>').map_or((text, "0"), |(w, m)| (w, m));
    match (what.trim(), size(most.trim())) {
        ("unreachable", Ok(most)) => Ok(Limit(most)),
        _ => Err(wrong()),
    }
}

/// Runs the command.
///
/// # Errors
/// If the process is not recorded, can't be read, or its blocks are not known.
pub(crate) fn run(args: &ReachArgs) -> Result<ExitCode> {
    let only = Only::new(&args.filter.0).map_err(usage)?;
    if only.asks_for_threads() {
        return Err(usage("--thread: prof reach does not tell blocks by thread; use --function"));
    }
    let mut names = Names::new(args.symbols.options()?);
    let mut ledger = Ledger::to_prove(args.pid, Instant::now() + args.timeout)?;
    if args.census {
        ledger.add_census(args.snapshot.of_census())?;
        names.put_note(BEFORE, LABEL);
    }
    let style = Style { color: term::color(), width: term::width(), ..Style::default() };
    let content = args.census && !args.no_content;
    let options =
        ReportOptions { only: &only, top: args.top, list: args.show_blocks, content, style };
    let mut looks = args.watch.map(|_| Looks::default());
    loop {
        let report = look(args, &mut ledger, &mut names, &options, looks.as_mut())?;
        print(&match args.format {
            Format::Text => report.text(style),
            Format::Json => report.json(),
        })?;
        let code = exit_code(args, &report);
        let Some(rest) = args.watch.filter(|_| code == Exit::Fine && !report.scan.ended) else {
            return Ok(code.into());
        };
        if args.format == Format::Text {
            print("\n")?;
        }
        ledger.rest();
        let until = Instant::now() + rest;
        while Instant::now() < until {
            if prof_os::process::has_ended(args.pid) {
                return Ok(ExitCode::SUCCESS);
            }
            std::thread::sleep((until - Instant::now()).min(BETWEEN));
        }
        ledger.until = Instant::now() + args.timeout;
    }
}

/// Outcome of comparing a look with the limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Exit {
    Fine,
    Exceeded,
}

impl From<Exit> for ExitCode {
    fn from(e: Exit) -> Self {
        if e == Exit::Fine { Self::SUCCESS } else { Self::from(FAILED) }
    }
}

fn look(
    args: &ReachArgs,
    ledger: &mut Ledger,
    names: &mut Names,
    report: &ReportOptions<'_>,
    looks: Option<&mut Looks>,
) -> Result<ReachData> {
    let began = Instant::now();
    let mut scanner = args.scan.open(args.pid)?;
    let stop = args.snapshot.stop();
    let (agree, alone) = (args.passes.unwrap_or(AGREE), args.passes.unwrap_or(ALONE));
    let limits = Limits { agree, alone, stop, until: ledger.until };
    let proof = prove(&mut scanner, ledger, &limits).map_err(failed)?;
    let follower = &ledger.follower;
    let looks = looks.map(|looks| {
        let (clock, now) = (&follower.meta().clock, follower.now_ns());
        if proof.settled {
            let began = now.saturating_sub(looks::ns(began.elapsed()));
            let blocks = proof.unreachable.iter().map(|b| (*b, clock.ns(b.time)));
            looks.add((began, now), blocks);
        }
        &*looks
    });
    ReachData::new(ledger, &proof, &scanner.figures, names, report, looks)
}

fn exit_code(args: &ReachArgs, report: &ReachData) -> Exit {
    let mut code = Exit::Fine;
    if !report.scan.settled && !args.fail_if.is_empty() && args.watch.is_none() {
        term::line("prof reach: unreachable: not decided");
        return Exit::Exceeded;
    }
    if report.scan.settled && exceeded("prof reach", &args.fail_if, report) {
        code = Exit::Exceeded;
    }
    code
}

/// Returns whether a limit is exceeded, and says so.
fn exceeded(command: &str, limits: &[Limit], report: &ReachData) -> bool {
    let all = report.unreachable.all;
    let over = |limit: &&Limit| all.bytes > limit.0 || limit.0 == 0 && all.blocks > 0;
    let mut is_any = false;
    for Limit(most) in limits.iter().filter(over) {
        let has = format!("{} in {}", bytes(all.bytes), count(all.blocks, "block", "blocks"));
        term::line(&format!("{command}: unreachable: {has}, more than {}", bytes(*most)));
        is_any = true;
    }
    is_any
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_understood() {
        assert_eq!(parse_limit("unreachable > 0"), Ok(Limit(0)));
        assert_eq!(parse_limit("unreachable>1MiB"), Ok(Limit(1 << 20)));
        assert_eq!(parse_limit("unreachable"), Ok(Limit(0)));
        for bad in ["", "> 0", "growing > 0", "unreachable > x", "unreachable > "] {
            assert!(parse_limit(bad).is_err(), "{bad}");
        }
    }
}
