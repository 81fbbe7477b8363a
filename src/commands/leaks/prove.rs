//! `prof leaks --prove`: a scan of the process, whose result goes into the verdicts.

use super::LeaksArgs;
use crate::commands::reach::ledger::Ledger;
use crate::commands::reach::scan::{self as looks, Ends, ScanArgs, failed};
use crate::commands::reach::{AGREE, ALONE, Snapshot, time_limit};
use crate::commands::record::pid;
use crate::failure::usage;
use anyhow::Result;
use clap::Args;
use prof_analyze::holds::ScanData;
use prof_analyze::leaks::{Leaks, Proof, ProvedBlock};
use prof_analyze::symbols::class_name;
use prof_scan::{Classes, Limits, prove};
use serde::Serialize;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Time for a scan, if none is given.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Options of a scan for unreachable blocks.
#[derive(Args, Clone, Debug)]
pub(crate) struct ProveArgs {
    /// Look into the running process for blocks that nothing points to any more, as `prof reach` does: their stacks get
    /// the verdict proved [default: auto; none: no thread is stopped, stop: all are, for one pass, fork: all are, until there is a copy of the memory]
    #[arg(
        long,
        help_heading = "Proof",
        value_name = "HOW",
        value_enum,
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "auto",
        conflicts_with_all = ["live", "by_process"]
    )]
    pub prove: Option<Snapshot>,

    /// Time for the scan; what is not decided by then is not proved [default: 60s]
    #[arg(
        long,
        help_heading = "Proof",
        value_name = "TIME",
        value_parser = time_limit,
        requires = "prove"
    )]
    pub timeout: Option<Duration>,

    #[command(flatten, next_help_heading = "Proof")]
    #[allow(missing_docs)]
    pub scan: ScanArgs,
}

/// The verdicts with the scan behind them.
#[derive(Serialize)]
pub(super) struct Proved<'a> {
    #[serde(flatten)]
    pub leaks: &'a Leaks,
    pub scan: &'a ScanData,
}

/// Scans the process if `--prove` is given. Returns the unreachable blocks and the figures of the scan.
///
/// # Errors
/// If the process is not recorded, can't be read, or its blocks are not known.
pub(super) fn scan(args: &LeaksArgs) -> Result<Option<(Proof, ScanData)>> {
    let ProveArgs { prove: how, timeout, scan } = &args.proof;
    let Some(how) = how else {
        return match (scan.pointer_mask, scan.max_cpu) {
            (Some(_), _) => {
                Err(usage("--pointer-mask is an option of the scan: give --prove, too"))
            }
            (_, Some(_)) => Err(usage("--max-cpu is an option of the scan: give --prove, too")),
            _ => Ok(None),
        };
    };
    let Some(Ok(pid)) = args.input.input.as_deref().map(pid) else {
        return Err(usage(
            "--prove looks into the memory of a running process: give the id of one that is being recorded",
        ));
    };
    let mut ledger = Ledger::to_prove(pid, Instant::now() + timeout.unwrap_or(TIMEOUT))?;
    let mut scanner = scan.open(pid)?;
    let limits = Limits { agree: AGREE, alone: ALONE, stop: how.stop(), until: ledger.until };
    let found = prove(&mut scanner, &mut ledger, &limits).map_err(failed)?;
    let ends = Ends { settled: found.settled, late: found.late, ended: found.ended };
    let data = looks::data(&scanner.figures, ends, ledger.follower.meta());
    let mut proof = Proof { settled: found.settled, ..Proof::default() };
    let (mut numbers, mut classes) = (HashMap::new(), Classes::open(pid));
    for (block, held) in found.unreachable.iter().zip(found.held) {
        let name = classes.as_mut().and_then(|c| c.of_block(block.address)).map(class_name);
        let class = name.map(|name| {
            *numbers.entry(name).or_insert_with_key(|name| {
                proof.classes.push(name.clone());
                proof.classes.len() - 1
            })
        });
        proof.blocks.insert(block.address, ProvedBlock { held, class });
    }
    Ok(Some((proof, data)))
}
