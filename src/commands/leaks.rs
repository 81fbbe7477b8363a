//! `prof leaks`: finds stacks that leak.

mod prove;

use super::input::{InputArgs, Locate};
use super::report::{Format, given, print};
use crate::failure::{FAILED, usage};
use crate::term;
use anyhow::Result;
use clap::Args;
use prof_analyze::holds::ScanData;
use prof_analyze::leaks::{Class, LeakOptions, Leaks, Limit, parse_limit};
use prof_analyze::live::Order;
use prof_analyze::report::Style;
use prof_trace::values::parse::{Time, time};
use prove::{ProveArgs, Proved};
use std::process::ExitCode;

/// Say which call stacks leak, and which only hold memory
///
/// Each call stack gets a verdict by what it held over time: growing (in every eighth of the time: the weakest interval
/// decides, not the mean), freed-at-the-end (it grew and was freed only when everything ended), turnover (its blocks
/// replace blocks from before the recording), saturating (bounded, as a cache is), static (allocated early, unchanged
/// since) or too-young (not enough to judge by). With --prove, stacks whose memory nothing points to any more are proved. Blocks that are young at a moment don't count there.
#[derive(Args, Clone, Debug)]
pub(crate) struct LeaksArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub input: InputArgs,

    /// How many call stacks of each verdict to show; 0 shows all [default: 5; with --live, 10 in all]
    #[arg(short = 'n', long, value_name = "N")]
    pub top: Option<usize>,

    /// Show also call stacks that are static or too young
    #[arg(long)]
    pub all: bool,

    /// Blocks younger than this don't count (30 or 30s, 4h3m2s, N% of the runtime)
    #[arg(long, value_name = "TIME", default_value = "5%", value_parser = time)]
    pub young: Time,

    /// Exit with 1 if this is exceeded, such as 'growing > 1MiB/h' (the growth of all such stacks
    /// together), 'static > 10MiB' (what they hold) or 'growing' (any)
    #[arg(long, value_name = "LIMIT", value_parser = parse_limit)]
    pub fail_if: Vec<Limit>,

    /// The format of the output
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t = Format::Text)]
    pub format: Format,

    /// Judge each process of a family by itself
    #[arg(long, help_heading = "Families", conflicts_with = "live")]
    pub by_process: bool,

    #[command(flatten)]
    #[allow(missing_docs)]
    pub proof: ProveArgs,

    #[command(flatten)]
    #[allow(missing_docs)]
    pub live: LiveArgs,
}

/// Number of call stacks of each verdict that are shown.
const TOP: usize = 5;

/// Options of looks at a process while it runs.
#[derive(Args, Clone, Debug)]
pub(crate) struct LiveArgs {
    /// Print what is outstanding in a running process at each interval, without a verdict, as memleak does: blocks that
    /// are not freed and older than 500 ms (--older), by stack. A process that is not recorded is attached to, and
    /// detached from at the end: after COUNT looks, Ctrl-C, or with the process [default interval: 5s]
    #[arg(
        long,
        help_heading = "Live",
        value_name = "INTERVAL [COUNT]",
        num_args = 0..=2,
        conflicts_with_all = ["all", "young", "fail_if"]
    )]
    pub live: Option<Vec<String>>,
    /// Name each outstanding block above its stack
    #[arg(short = 'a', long, help_heading = "Live", requires = "live")]
    pub show_allocs: bool,
    /// Take the figures that are kept by stack, in which blocks of any age count
    #[arg(long, help_heading = "Live", requires = "live", conflicts_with = "show_allocs")]
    pub combined_only: bool,
    /// The key to sort the stacks by
    #[arg(
        long,
        help_heading = "Live",
        requires = "live",
        value_name = "KEY",
        value_enum,
        default_value_t
    )]
    pub sort: Order,
    /// Print the largest stack last, beside the prompt
    #[arg(long, help_heading = "Live", requires = "live")]
    pub ascending: bool,
    /// How many frames of each stack to show, innermost first; 0 shows all
    #[arg(long, help_heading = "Live", requires = "live", value_name = "N", default_value_t = 0)]
    pub depth: usize,
    /// Start this command, and watch it from its first allocation on; its words are separated as a shell does it. Its output goes to standard error
    #[arg(
        short,
        long,
        help_heading = "Live",
        requires = "live",
        conflicts_with = "input",
        value_name = "COMMAND"
    )]
    pub command: Option<String>,
}

/// Runs the command.
///
/// # Errors
/// If the recording can't be read, or standard output can't be written to.
pub(crate) fn run(args: &LeaksArgs, locate: Locate<'_>) -> Result<ExitCode> {
    if args.live.live.is_some() {
        return super::outstanding::run(args, &args.live);
    }
    if args.by_process {
        return super::by_process::each_of(&args.input, args.format, locate, |input| {
            run(&LeaksArgs { input, by_process: false, ..args.clone() }, locate)
        });
    }
    if args.proof.prove.is_none() && args.fail_if.iter().any(|l| l.class() == Class::Proved) {
        return Err(usage("--fail-if: without --prove nothing is proved"));
    }
    if let Time::Part(p) = args.young
        && p >= 0.9
    {
        return Err(usage("--young: nothing would be old enough to count"));
    }
    let scanned = prove::scan(args)?;
    let index = args.input.open(locate)?;
    let query = args.input.query(&index)?;
    let defaults = LeakOptions::default();
    let options = LeakOptions {
        young: args.young,
        top: args.top.unwrap_or(TOP),
        classes: if args.all { Class::ALL.to_vec() } else { defaults.classes.clone() },
        filter: given(&args.input.filter.0),
        proof: scanned.as_ref().map(|(proof, _)| proof.clone()),
        ..defaults
    };
    let leaks = Leaks::new(&index, &query, &options)?;
    let scan = scanned.map(|(_, scan)| scan);
    print(&match args.format {
        Format::Text => text(&leaks, scan.as_ref()),
        Format::Json => json(&leaks, scan.as_ref()),
    })?;
    Ok(exit_code(&args.fail_if, &leaks))
}

fn text(leaks: &Leaks, scan: Option<&ScanData>) -> String {
    let mut out =
        leaks.text(Style { color: term::color(), width: term::width(), ..Style::default() });
    if let Some(scan) = scan {
        out.push_str("\nthe scan for unreachable blocks:\n");
        // Writing to a string can't fail.
        let _ = scan.write(&mut out);
    }
    out
}

fn json(leaks: &Leaks, scan: Option<&ScanData>) -> String {
    let json = match scan {
        Some(scan) => serde_json::to_string_pretty(&Proved { leaks, scan }).unwrap_or_default(),
        None => leaks.json(),
    };
    json + "\n"
}

fn exit_code(limits: &[Limit], leaks: &Leaks) -> ExitCode {
    let mut code = ExitCode::SUCCESS;
    for limit in limits {
        if let Some(what) = limit.exceeded(leaks) {
            term::line(&format!("prof leaks: {what}"));
            code = ExitCode::from(FAILED);
        }
    }
    code
}
