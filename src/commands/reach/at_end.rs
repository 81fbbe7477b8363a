//! `prof run --prove`: which blocks nothing points to when the command ends.

use super::ledger::Ledger;
use super::report::{ReachData, ReportOptions};
use super::scan::{ScanArgs, failed};
use super::{Limit, TOP, exceeded, parse_limit};
use crate::commands::input::add_suppressions;
use crate::commands::report::print;
use crate::failure::{FAILED, usage};
use crate::term::{self, say};
use anyhow::{Result, anyhow};
use clap::Args;
use prof_analyze::live::{Names, Only};
use prof_analyze::query::Filter;
use prof_analyze::report::Style;
use prof_analyze::symbols::SymbolOptions;
use prof_inject::follow::Follow;
use prof_inject::stopped::tracee::Tracee;
use prof_os::Pid;
use prof_scan::prove_held;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Longest time for which a command is held at its end.
const PATIENCE: Duration = Duration::from_secs(60);

/// Options of a look at the command's memory at its end.
#[derive(Args, Clone, Debug)]
pub(crate) struct ProveArgs {
    /// Print which blocks nothing points to when the command ends, as LeakSanitizer does: by exit, _exit, abort or a
    /// signal. Needs no other build; the command is traced all the time
    #[arg(long, help_heading = "Proof", conflicts_with_all = ["children", "no_follow_exec"])]
    pub prove: bool,

    /// With --prove: how many stacks to show, those with the most unreachable bytes; 0 shows all
    #[arg(short = 'n', long, help_heading = "Proof", value_name = "N", requires = "prove", default_value_t = TOP)]
    pub top: usize,

    /// With --prove: exit with 1 if this is exceeded, or was not decided, and the command itself succeeds: 'unreachable >
    /// 0' (blocks), 'unreachable > 10MiB' (bytes)
    #[arg(long, help_heading = "Proof", value_name = "LIMIT", requires = "prove", value_parser = parse_limit)]
    pub fail_if: Vec<Limit>,

    /// With --prove: leave out what a file of LeakSanitizer's suppressions names, lines such as leak:pattern
    #[arg(long, help_heading = "Proof", value_name = "FILE", requires = "prove")]
    pub suppressions: Vec<PathBuf>,

    /// With --prove: bits of a word that are an address, as for prof reach
    #[arg(long, help_heading = "Proof", value_name = "MASK", requires = "prove",
          value_parser = prof_trace::values::parse::address)]
    pub pointer_mask: Option<u64>,
}

impl ProveArgs {
    /// Returns the filter of the stacks that are shown.
    ///
    /// # Errors
    /// If a list of suppressions can't be read.
    fn only(&self) -> Result<Only> {
        let mut filter = Filter::default();
        for path in &self.suppressions {
            add_suppressions(&mut filter, path)
                .map_err(|e| usage(format!("--suppressions: {e}")))?;
        }
        Only::new(&filter).map_err(usage)
    }
}

fn style() -> Style {
    Style { color: term::color(), width: term::width(), ..Style::default() }
}

/// Looks at a command at its end.
pub(crate) struct Prover<'a> {
    args: &'a ProveArgs,
    only: Only,
    /// The findings at the end of each program, or the reason why there are none.
    found: Vec<Result<ReachData>>,
}

impl<'a> Prover<'a> {
    /// Returns `None` without `--prove`.
    ///
    /// # Errors
    /// If a list of suppressions can't be read.
    pub(crate) fn new(args: &'a ProveArgs) -> Result<Option<Self>> {
        let only = args.only()?;
        Ok(args.prove.then(|| Self { args, only, found: Vec::new() }))
    }

    /// Looks at a process whose threads are all held at its end.
    pub(crate) fn look(&mut self, follow: &mut Follow, pid: Pid) {
        let found = follow.at_end(|threads| self.prove(pid, threads));
        self.found.push(found);
    }

    fn prove(&self, pid: Pid, threads: &mut [Tracee]) -> Result<ReachData> {
        let until = Instant::now() + PATIENCE;
        let mut ledger = Ledger::to_prove(pid, until)?;
        let scan = ScanArgs { pointer_mask: self.args.pointer_mask, max_cpu: None };
        let mut scanner = scan.open(pid)?;
        let proof = prove_held(&mut scanner, &mut ledger, threads, until).map_err(failed)?;
        let mut names = Names::new(SymbolOptions::default());
        let (only, style) = (&self.only, style());
        let top = self.args.top;
        let options = ReportOptions { only, top, list: false, content: false, style };
        ReachData::new(&ledger, &proof, &scanner.figures, &mut names, &options, None)
    }

    /// Prints what was found. Returns the command's exit code, or that of a limit that was exceeded if the command has
    /// succeeded.
    pub(crate) fn finish(mut self, status: ExitCode) -> ExitCode {
        if self.found.is_empty() {
            let why = "the command was not held at its end: it was killed, its last thread ended by the system call exit rather \
                 than exit_group, or another program traced it";
            self.found.push(Err(anyhow!(why)));
        }
        let mut is_over = false;
        for found in &self.found {
            match found {
                Ok(data) => {
                    if let Err(e) = print(&data.text(style())) {
                        say(&format!("{e:#}"));
                    }
                    is_over |= exceeded("prof run", &self.args.fail_if, data);
                }
                Err(e) => {
                    say(&format!("nothing is proved of the command's memory: {e:#}"));
                    is_over |= !self.args.fail_if.is_empty();
                }
            }
        }
        if is_over && status == ExitCode::SUCCESS { ExitCode::from(FAILED) } else { status }
    }
}
