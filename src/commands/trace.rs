//! `prof trace`: each event of a process as a line, as it happens.

use super::input::SymbolArgs;
use super::record::{FunctionArgs, RecordArgs, parse_duration, pid};
use super::report::Format;
use super::watched::{self, Watch, Watched};
use crate::failure::usage;
use crate::new_file::time_of_day;
use crate::term;
use anyhow::{Context, Result};
use clap::Args;
use prof_analyze::Follower;
use prof_analyze::live::{LineData, Names, Only, Trace, TraceOptions, What};
use prof_analyze::query::Filter;
use prof_analyze::report::Style;
use prof_os::Pid;
use prof_trace::values::text;
use std::io::{BufWriter, ErrorKind, Write};
use std::process::ExitCode;
use std::time::Duration;

/// Interval at which the recording is read.
const READ: Duration = Duration::from_millis(50);

/// Show each allocation of a process as it happens
///
/// Prints a line for each event: time, thread, function, size, address, and who asked for it. A process that is not
/// recorded is attached to, and detached from at the end: after N events, after a time, at Ctrl-C, when nobody reads
/// on, or with the process; its recording stays. A recording that runs goes on, and its events are shown from now on.
/// `alloc` stands for malloc, calloc, operator new and their like. Events come about half a second late, in the order
/// in which they happened.
#[derive(Args, Debug)]
pub(crate) struct TraceArgs {
    /// The process
    #[arg(value_parser = pid, required_unless_present = "command")]
    pub pid: Option<Pid>,
    /// Start this command, and show its events from its first allocation on; its words are separated as a shell does
    /// it. Its output goes to standard error
    #[arg(short, long, value_name = "COMMAND", conflicts_with = "pid")]
    pub command: Option<String>,
    /// End after so many events
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// End after this time, such as 30s or 5m
    #[arg(short, long, value_name = "TIME", value_parser = parse_duration)]
    pub duration: Option<Duration>,
    /// Print so many frames below each line, innermost first [without a value: all]
    #[arg(short = 'k', long, value_name = "N", num_args = 0..=1, require_equals = true, default_missing_value = "0")]
    pub stack: Option<usize>,
    /// The format of the output: json is an object a line
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t = Format::Text)]
    pub format: Format,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub show: ShowArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub record: RecordArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub symbols: SymbolArgs,
}

/// Options that choose the events that have lines.
#[derive(Args, Debug)]
pub(crate) struct ShowArgs {
    /// Show only these kinds of events
    #[arg(
        long,
        help_heading = "Shown events",
        value_name = "KIND,...",
        value_enum,
        value_delimiter = ','
    )]
    pub only: Vec<What>,
    /// Show only events of this thread: its id, its name, or a part of its name
    #[arg(long, help_heading = "Shown events", value_name = "TID|NAME")]
    pub thread: Vec<String>,
    /// Show only events with such a function in the stack (of frees, in that of the allocation)
    #[arg(long, help_heading = "Shown events", value_name = "REGEX")]
    pub function: Vec<String>,
    /// Show no events with such a function in the stack
    #[arg(long, help_heading = "Shown events", value_name = "REGEX")]
    pub not_function: Vec<String>,
    /// Show only events with such a source file in the stack
    #[arg(long, help_heading = "Shown events", value_name = "REGEX")]
    pub source: Vec<String>,
    /// Show no events with such a source file in the stack
    #[arg(long, help_heading = "Shown events", value_name = "REGEX")]
    pub not_source: Vec<String>,
    /// Show only events with such a module in the stack
    #[arg(long, help_heading = "Shown events", value_name = "REGEX")]
    pub module: Vec<String>,
    /// Show no events with such a module in the stack
    #[arg(long, help_heading = "Shown events", value_name = "REGEX")]
    pub not_module: Vec<String>,
}

impl ShowArgs {
    fn filter(&self) -> Result<Filter> {
        let fields = [
            ("thread", &self.thread),
            ("function", &self.function),
            ("not-function", &self.not_function),
            ("source", &self.source),
            ("not-source", &self.not_source),
            ("module", &self.module),
            ("not-module", &self.not_module),
        ];
        let mut filter = Filter::default();
        for (name, values) in fields {
            for value in values {
                filter.set(name, value).map_err(|e| usage(e.to_string()))?;
            }
        }
        Ok(filter)
    }
}

/// Reason for the end of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The number of lines or the time that the user gave is reached, or Ctrl-C was pressed.
    Asked,
    /// The reader of the output has closed it.
    Closed,
    /// The recording has ended.
    Recording,
    /// The collector has ended without finishing the recording.
    Died,
}

/// Runs the command.
///
/// # Errors
/// If the process can't be recorded, its recording can't be read, or the output can't be written.
pub(crate) fn run(args: &TraceArgs) -> Result<ExitCode> {
    args.record.check().map_err(usage)?;
    let mut filter = args.show.filter()?;
    let names = Names::new(args.symbols.options()?);
    crate::interrupted::on_interrupt()?;
    // All that may be refused comes before the attach, which an early return would leave in the process.
    let watch = match (&args.command, args.pid) {
        (Some(command), _) => Watch::command(command).map_err(usage)?,
        (None, pid) => Watch::Process(pid.unwrap_or_default()),
    };
    if args.pid.is_some_and(|pid| Watched::running(pid).is_some()) {
        take_as_it_is(args, &mut filter)?;
    }
    let watched = watch.begin(&args.record)?;
    let traced = Only::new(&filter).map_err(usage).and_then(|only| {
        let kinds = args.show.only.clone();
        trace(args, &watched, names, TraceOptions { only, kinds, frames: args.stack })
    });
    let ended = watched.end();
    traced.and(ended)
}

/// Takes over the options for a process that is being recorded: sizes become a filter, others can't be changed.
fn take_as_it_is(args: &TraceArgs, filter: &mut Filter) -> Result<()> {
    let r = &args.record;
    let f = &r.functions;
    let plain = RecordArgs::plain();
    let given = [
        (r.output.is_some(), "--output"),
        (r.free_stacks, "--free-stacks"),
        (r.sample.is_some(), "--sample"),
        (r.sample_rate.is_some(), "--sample-rate"),
        (r.ring_size != plain.ring_size, "--ring-size"),
        (r.on_full != plain.on_full, "--on-full"),
        (r.compress != plain.compress, "--compress"),
        (r.bounds.limits() != plain.bounds.limits(), "--max-disk or --keep-free"),
        (r.bounds.cull().is_some(), "--cull"),
        (r.bounds.aggregate, "--aggregate"),
        (r.bounds.goes_over().is_some(), "--on-limit"),
        (
            *f != FunctionArgs::default(),
            "options for functions (--obj, --alloc-fn, --no-maps and others)",
        ),
    ];
    if let Some((_, name)) = given.iter().find(|(is, _)| *is) {
        let pid = args.pid.unwrap_or_default();
        return Err(usage(format!(
            "process {pid} is recorded already, and {name} can't be changed now: leave that out, or `prof detach {pid}` first"
        )));
    }
    for (name, size) in [("min-size", r.min_size), ("max-size", r.max_size)] {
        if let Some(size) = size {
            filter.set(name, &size.to_string()).map_err(|e| usage(e.to_string()))?;
        }
    }
    Ok(())
}

/// Prints lines until the end.
fn trace(
    args: &TraceArgs,
    watched: &Watched,
    names: Names,
    options: TraceOptions,
) -> Result<ExitCode> {
    let follower = match watched.own {
        true => Follower::open(&watched.path),
        false => Follower::open_at_end(&watched.path),
    };
    let follower = follower.map_err(|e| usage(e.to_string()))?;
    if follower.meta().target.capture().is_sampled() {
        term::say("the recording is a sample: only the blocks in it have lines");
    }
    watched::say_what_is_culled(&follower);
    watched::want_blocks(&follower, watched.pid)?;
    let begin = follower.now_ns();
    let until = args.duration.map(|d| begin.saturating_add(d.as_nanos() as u64));
    let mut trace = Trace::new(follower, names, options);
    let mut out = Lines { args, until, shown: 0, time: LocalTime::default() };
    let end = out.print(&mut trace, watched)?;
    let unknown = trace.unknown_threads();
    if !unknown.is_empty() {
        term::say(&format!("no thread has the id or name {}", unknown.join(", ")));
    }
    if end == End::Recording {
        term::say(&format!("the recording of process {} has ended", watched.pid));
    }
    term::say(&summary(&out, &trace, end));
    if end == End::Died {
        return Err(watched.died());
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the last line: the numbers of events that were shown and that were left out.
fn summary(out: &Lines<'_>, trace: &Trace, end: End) -> String {
    let mut line = format!("{} shown", text::count(out.shown, "event", "events"));
    if trace.left_out > 0 {
        line += &format!(", {} left out by the options", text::number(trace.left_out));
    }
    line += &format!(", {} lost", text::number(trace.lost()));
    let left = trace.follower().bytes_left();
    if !matches!(end, End::Recording | End::Died) && left > SOME {
        line += &format!(", and the last {} of the recording not reached", text::bytes(left));
    }
    line
}

/// Length of a recording's end that a trace has not read in the usual case: the collector writes meanwhile.
const SOME: u64 = 4 << 20;

/// Prints lines, and counts them.
struct Lines<'a> {
    args: &'a TraceArgs,
    /// Nanoseconds since the start of the recording, at which the trace ends.
    until: Option<u64>,
    shown: u64,
    time: LocalTime,
}

impl Lines<'_> {
    fn print(&mut self, trace: &mut Trace, watched: &Watched) -> Result<End> {
        loop {
            let grows = watched.grows();
            let (read, lines) = trace.read().context("cannot follow the recording")?;
            if let Some(end) = self.write(&lines)? {
                return Ok(end);
            }
            let behind = trace.follower().bytes_left() > 0;
            if crate::interrupted::is_interrupted() {
                return Ok(End::Asked);
            }
            if read.finished {
                return Ok(End::Recording);
            }
            if !grows && !behind {
                return Ok(End::Died);
            }
            if self.until.is_some_and(|until| !behind && trace.follower().now_ns() > until) {
                return Ok(End::Asked);
            }
            if term::is_closed() {
                return Ok(End::Closed);
            }
            if !behind {
                std::thread::sleep(READ);
            }
        }
    }

    /// Writes lines; returns how the trace has ended if it has.
    fn write(&mut self, lines: &[LineData]) -> Result<Option<End>> {
        let style = Style { color: term::color(), width: None, ..Style::default() };
        let mut out = BufWriter::new(std::io::stdout().lock());
        let mut all = || -> std::io::Result<Option<End>> {
            for line in lines {
                if self.until.is_some_and(|until| line.at_ns > until) {
                    out.flush()?;
                    return Ok(Some(End::Asked));
                }
                match self.args.format {
                    Format::Json => writeln!(out, "{}", line.json())?,
                    Format::Text => {
                        let when = self.time.of(line.wall_ns);
                        out.write_all(line.text(&when, style).as_bytes())?;
                    }
                }
                self.shown += 1;
                if self.args.count == Some(self.shown) {
                    out.flush()?;
                    return Ok(Some(End::Asked));
                }
            }
            out.flush()?;
            Ok(None)
        };
        let written = all();
        match written {
            Ok(end) => Ok(end),
            Err(e) => {
                // Drops the buffer, which would otherwise be written once more, and fail again.
                let _ = out.into_parts();
                match e.kind() {
                    ErrorKind::BrokenPipe => Ok(Some(End::Closed)),
                    _ => Err(e).context("cannot write the trace"),
                }
            }
        }
    }
}

/// Formats times of day; the second is formatted once.
#[derive(Default)]
struct LocalTime {
    second: u64,
    text: String,
}

impl LocalTime {
    /// Returns a local time of day to the microsecond, given nanoseconds since 1970.
    fn of(&mut self, wall_ns: u64) -> String {
        let second = wall_ns / 1_000_000_000;
        if self.text.is_empty() || self.second != second {
            (self.second, self.text) = (second, time_of_day(second.cast_signed()));
        }
        format!("{}.{:06}", self.text, wall_ns % 1_000_000_000 / 1000)
    }
}
