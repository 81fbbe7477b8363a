//! `prof leaks --live`: what is outstanding, at each interval.

use super::leaks::{LeaksArgs, LiveArgs};
use super::record::{RecordArgs, pid};
use super::report::{Format, print};
use super::watched::{self, Watch, Watched};
use crate::failure::usage;
use crate::new_file::time_of_day;
use crate::term;
use anyhow::{Context, Result};
use prof_analyze::live::{Names, Only, Outstanding, OutstandingOptions};
use prof_analyze::report::Style;
use prof_analyze::{Error, Follower};
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Interval at which the recording is read, so that a look has little left to read.
const READ: Duration = Duration::from_millis(200);
/// Age from which blocks count, as in memleak.
const OLDER: Duration = Duration::from_millis(500);
/// Interval between two looks, as in memleak.
const INTERVAL: Duration = Duration::from_secs(5);
/// Number of stacks of a look, as in memleak.
const TOP: usize = 10;

/// Runs the command.
///
/// # Errors
/// If the process can't be recorded, or its recording can't be read.
pub(crate) fn run(args: &LeaksArgs, live: &LiveArgs) -> Result<ExitCode> {
    let (interval, count) = times(live)?;
    let only = Only::new(&args.input.filter.0).map_err(usage)?;
    if live.combined_only && (only.asks_for_sizes() || only.asks_for_threads()) {
        return Err(usage(
            "--combined-only has figures by stack alone: it can't be told a size or a thread",
        ));
    }
    if live.combined_only && only.older_ns(0).is_some() {
        return Err(usage("--combined-only counts blocks of any age: leave --older out"));
    }
    let options = OutstandingOptions {
        only,
        older_ns: OLDER.as_nanos() as u64,
        top: args.top.unwrap_or(TOP),
        order: live.sort,
        ascending: live.ascending,
        blocks: live.show_allocs,
        combined: live.combined_only,
        depth: live.depth,
    };
    let watch = match &live.command {
        Some(command) => Watch::command(command).map_err(usage)?,
        None => {
            // Numbers behind --live are the interval and the count.
            let missing = || {
                usage("--live: no process is given; its ID comes first: `prof leaks PID --live`")
            };
            let process = args.input.input.as_deref().ok_or_else(missing)?;
            Watch::Process(pid(process).map_err(|e| usage(format!("--live: {e}")))?)
        }
    };
    crate::interrupted::on_interrupt()?;
    // All that may be refused comes before the attach, which an early return would leave in the process.
    let mut names = Names::new(args.input.index.symbol_options()?);
    let watched = watch.begin(&RecordArgs::plain())?;
    let looked = looks(args, &watched, &mut names, &options, interval, count);
    let ended = watched.end();
    looked.and(ended)
}

/// Returns the interval, and the number of looks.
fn times(live: &LiveArgs) -> Result<(Duration, Option<u64>)> {
    let given = live.live.as_deref().unwrap_or_default();
    let interval = match given.first() {
        None => INTERVAL,
        Some(text) => {
            super::record::parse_duration(text).map_err(|e| usage(format!("--live: {e}")))?
        }
    };
    if interval.is_zero() {
        return Err(usage("--live: an interval of 0 s leaves no time to look"));
    }
    let count = given.get(1).map(|text| prof_trace::values::parse::number(text));
    let count = count.transpose().map_err(|e| usage(format!("--live: {e}")))?;
    if count == Some(0) {
        return Err(usage("--live: a count of 0 asks for no look"));
    }
    Ok((interval, count))
}

/// Prints the looks, until Ctrl-C, the end of the recording, or their number.
fn looks(
    args: &LeaksArgs,
    watched: &Watched,
    names: &mut Names,
    options: &OutstandingOptions,
    interval: Duration,
    count: Option<u64>,
) -> Result<ExitCode> {
    let open = || Follower::open(&watched.path);
    let mut follower = open().map_err(|e| usage(e.to_string()))?;
    let mut options = options.clone();
    watched::say_what_is_culled(&follower);
    let mut due = Instant::now() + interval;
    let mut printed = 0;
    while count.is_none_or(|n| printed < n) {
        let grows = watched.grows();
        let mut read = follower.poll();
        if matches!(read, Err(Error::WentOver { .. })) && need_no_blocks(&options) {
            term::say(
                "the recording has gone over to figures by stack (--on-limit aggregate): blocks of any age count from now on",
            );
            follower = open()?;
            names.forget();
            options.combined = true;
            read = follower.poll();
        }
        let read = read.context("cannot follow the recording")?;
        if !options.combined {
            watched::want_blocks(&follower, watched.pid)
                .context("--combined-only needs no blocks")?;
        }
        let ended = read.finished || !grows;
        if crate::interrupted::is_interrupted() {
            break;
        }
        if ended || Instant::now() >= due {
            let look = Outstanding::new(&follower, names, &options)?;
            let style = Style { color: term::color(), width: term::width(), ..Style::default() };
            print(&match args.format {
                Format::Text => look.text(&now(), style),
                Format::Json => look.json() + "\n",
            })?;
            printed += 1;
            due += interval;
            if due < Instant::now() {
                due = Instant::now() + interval;
            }
        }
        if ended && !read.finished {
            return Err(watched.died());
        }
        if ended {
            let pid = watched.pid;
            term::say(&format!("the recording of process {pid} has ended"));
            break;
        }
        if count.is_none_or(|n| printed < n) {
            let left = due.saturating_duration_since(Instant::now());
            std::thread::sleep(left.min(READ));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns whether figures by stack can answer what is asked, but for the age of blocks that nobody has named.
fn need_no_blocks(options: &OutstandingOptions) -> bool {
    let only = &options.only;
    let asks = only.asks_for_sizes() || only.asks_for_threads() || only.older_ns(0).is_some();
    !asks && !options.blocks
}

/// Returns the local time of day.
fn now() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    time_of_day(since.as_secs().cast_signed())
}
