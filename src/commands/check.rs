//! `prof check`: compares figures with limits, for automatic checks.

use super::by_process::{ByProcess, each_of, has_losses};
use super::input::{InputArgs, Locate, resolve, say_losses};
use super::report::{Format, print};
use crate::failure::{FAILED, usage};
use crate::term::say;
use anyhow::{Context, Result};
use clap::Args;
use prof_analyze::Analysis;
use prof_analyze::report::JoinedData;
use prof_trace::values::parse::{self, Amount, amount, size};
use prof_trace::values::text::{bytes, count, number};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::process::ExitCode;

/// Compare a recording's figures with limits, or with those of an earlier run
///
/// Exits with 0 if all limits hold, and with 1 if one is exceeded; each exceeded limit is named. With a baseline every
/// figure may be as large as there, plus the tolerance. Figures of a recording that lacks events are too low; that is a
/// warning, and a failure with --strict.
#[derive(Args, Clone, Debug)]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub input: InputArgs,

    /// The most bytes that may be live at the end
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub max_leaked: Option<u64>,

    /// The most blocks that may be live at the end
    #[arg(long, value_name = "N", value_parser = parse::number)]
    pub max_leaked_count: Option<u64>,

    /// The most bytes that may ever be live at a time
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub max_peak: Option<u64>,

    /// The most allocations, by realloc or not
    #[arg(long, value_name = "N", value_parser = parse::number)]
    pub max_allocations: Option<u64>,

    /// The most bytes that may be allocated in all
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub max_allocated: Option<u64>,

    /// The most temporary allocations
    #[arg(long, value_name = "N", value_parser = parse::number)]
    pub max_temporary: Option<u64>,

    /// Figures of an earlier run, written by --write-baseline
    #[arg(long, value_name = "FILE")]
    pub baseline: Option<PathBuf>,

    /// How much larger than the baseline figures may be: N% of it, or N bytes or allocations
    #[arg(long, value_name = "N%|N", default_value = "0%", value_parser = amount)]
    pub tolerance: Amount,

    /// Write the figures of this recording as a baseline
    #[arg(long, value_name = "FILE", conflicts_with = "by_process")]
    pub write_baseline: Option<PathBuf>,

    /// Fail also if events were lost, or the recording is not complete
    #[arg(long)]
    pub strict: bool,

    /// How to write the outcome
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t = Format::Text)]
    pub format: Format,

    #[command(flatten)]
    #[allow(missing_docs)]
    pub by: ByProcess,
}

/// The figures that are checked, and the contents of a baseline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Checked {
    leaked_bytes: u64,
    leaked_count: u64,
    peak_bytes: u64,
    allocations: u64,
    allocated_bytes: u64,
    temporary: u64,
}

impl Checked {
    fn of(a: &Analysis) -> Self {
        let f = a.totals().figures;
        Self {
            leaked_bytes: f.live_bytes,
            leaked_count: f.live_count,
            peak_bytes: f.peak_bytes,
            allocations: f.allocations + f.reallocations,
            allocated_bytes: f.allocated_bytes,
            temporary: f.temporary,
        }
    }

    fn list(&self) -> [(&'static str, u64); 6] {
        [
            ("leaked_bytes", self.leaked_bytes),
            ("leaked_count", self.leaked_count),
            ("peak_bytes", self.peak_bytes),
            ("allocations", self.allocations),
            ("allocated_bytes", self.allocated_bytes),
            ("temporary", self.temporary),
        ]
    }
}

/// The result of checking one figure.
#[derive(Debug, Serialize)]
struct Outcome {
    figure: &'static str,
    value: u64,
    limit: Option<u64>,
    baseline: Option<u64>,
    /// The value is an upper bound, as the peaks of several processes whose figures are added up are.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    at_most: bool,
    ok: bool,
}

#[derive(Debug, Serialize)]
struct Outcomes {
    version: u32,
    ok: bool,
    lost_events: u64,
    complete: bool,
    checks: Vec<Outcome>,
}

/// Runs the command.
///
/// # Errors
/// If the recording or the baseline can't be read, or no limit was given.
pub(crate) fn run(args: &CheckArgs, locate: Locate<'_>) -> Result<ExitCode> {
    if args.by.by_process {
        let by = ByProcess::default();
        // The newest recording may be another one later.
        let path = resolve(args.input.input.as_deref(), locate)?;
        let folder = InputArgs { input: Some(path.to_string_lossy().into()), ..args.input.clone() };
        let code = each_of(&folder, args.format, locate, |input| {
            run(&CheckArgs { input, by, ..args.clone() }, locate)
        })?;
        // What no process has is in none of their outcomes.
        if !args.strict || !has_losses(&path, &args.input.index.pid) {
            return Ok(code);
        }
        say("FAILED: the family has lost what was said in front of the outcomes (--strict)");
        return Ok(ExitCode::from(FAILED));
    }
    let limits = [
        args.max_leaked,
        args.max_leaked_count,
        args.max_peak,
        args.max_allocations,
        args.max_allocated,
        args.max_temporary,
    ];
    let nothing = limits.iter().all(Option::is_none) && args.baseline.is_none();
    if nothing && args.write_baseline.is_none() {
        return Err(usage(
            "nothing to check: give a limit such as --max-peak 1GiB, or --baseline FILE",
        ));
    }
    let baseline = args.baseline.as_ref().map(|path| -> Result<Checked> {
        let text = std::fs::read_to_string(path).map_err(|e| {
            let path = path.display();
            let advice = "write one with --write-baseline";
            usage(format!("cannot read the baseline {path} ({e}); {advice}"))
        })?;
        serde_json::from_str(&text).map_err(|e| {
            let path = path.display();
            usage(format!("{path} is no baseline ({e}); write one with --write-baseline"))
        })
    });
    let baseline = baseline.transpose()?;
    let index = args.input.open(locate)?;
    say_losses(index.analysis());
    let analysis = args.input.query(&index)?.analysis(None)?;
    let now = Checked::of(&analysis);
    let before = baseline.map(|b| b.list());
    let joined = JoinedData::new(&analysis);
    let peaks_at_most =
        joined.is_some_and(|j| j.peaks_at_most) && args.input.filter.0.given().is_empty();
    let check = |(i, (figure, value)): (usize, (&'static str, u64))| {
        let baseline = before.map(|b| b[i].1);
        let allowed = baseline.map(|b| match args.tolerance {
            Amount::Count(n) => b.saturating_add(n),
            Amount::Part(p) => b.saturating_add((b as f64 * p) as u64),
        });
        let limit = match (limits[i], allowed) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        let at_most = peaks_at_most && figure == "peak_bytes";
        Outcome { figure, value, limit, baseline, at_most, ok: limit.is_none_or(|l| value <= l) }
    };
    let checks: Vec<Outcome> =
        now.list().into_iter().enumerate().map(check).filter(|c| c.limit.is_some()).collect();
    let (lost_events, complete) = (analysis.meta().counters.lost, analysis.complete());
    let has_all = lost_events == 0 && complete;
    let ok = checks.iter().all(|c| c.ok) && (has_all || !args.strict);
    let outcomes = Outcomes { version: 1, ok, lost_events, complete, checks };
    print(&match args.format {
        Format::Text => text(&outcomes, args.strict),
        Format::Json => serde_json::to_string_pretty(&outcomes)? + "\n",
    })?;
    if let Some(path) = &args.write_baseline {
        let text = serde_json::to_string_pretty(&now)? + "\n";
        std::fs::write(path, text)
            .with_context(|| format!("cannot write the baseline {}", path.display()))?;
    }
    Ok(if ok { ExitCode::SUCCESS } else { ExitCode::from(FAILED) })
}

fn text(o: &Outcomes, strict: bool) -> String {
    let mut out = String::new();
    for c in &o.checks {
        // Bytes that differ by little have the same short form.
        let is_near = !c.ok && c.limit.is_some_and(|l| bytes(l) == bytes(c.value));
        let show = |figure: &str, n: u64| match figure.ends_with("bytes") {
            true if is_near => count(n, "byte", "bytes"),
            true => bytes(n),
            false => number(n),
        };
        let verdict = if c.ok { "ok" } else { "EXCEEDED" };
        let limit = c.limit.map_or(String::new(), |l| format!(", at most {}", show(c.figure, l)));
        let before =
            c.baseline.map_or(String::new(), |b| format!(" (baseline {})", show(c.figure, b)));
        let value = show(c.figure, c.value);
        let bound = if c.at_most { " (an upper bound; --by-process has exact ones)" } else { "" };
        out += &format!("{verdict:<9} {:<16} {value}{bound}{limit}{before}\n", c.figure);
    }
    let word = if strict { "FAILED" } else { "warning" };
    if o.lost_events > 0 {
        out += &format!(
            "{word:<9} {}: the figures are too low\n",
            count(o.lost_events, "event was lost", "events were lost")
        );
    }
    if !o.complete {
        out += &format!("{word:<9} the recording is not complete\n");
    }
    out
}
