//! Many passes to one verdict: a block is unreachable if no pass reaches it.
//!
//! Garbage is stable: a block that nothing points to stays so until it is freed, which nobody can. So each pass may read
//! the memory while the program runs, piece by piece; what it misses as a pointer moves from a place that is not read yet
//! to one that has been read, another pass, in another order, sees.

use crate::error::Error;
use crate::pass::{Block, Blocks, Candidates, Scanner};
use prof_inject::stopped::tracee::Tracee;
use std::time::{Duration, Instant};

/// Greatest number of passes.
const MOST: u64 = 40;
/// Rest between two passes, so that they don't keep step with what the program repeats.
const REST: [Duration; 3] =
    [Duration::from_millis(23), Duration::from_millis(57), Duration::from_millis(101)];

/// Whether the last pass is made with all threads stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Threads are never stopped.
    Never,
    /// All threads are stopped if a pass takes no longer than this, and all of them stop.
    Within(Duration),
    /// All threads are stopped. A thread that does not stop is an error.
    Always,
    /// All threads are stopped until a copy of the memory is made, which is read then. It is an error if there can be none.
    Copy,
}

/// Effort for a verdict.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Number of passes in a row that have to agree before a pass with all threads stopped.
    pub agree: u64,
    /// Number of passes in a row that have to agree if no pass is made with all threads stopped.
    pub alone: u64,
    /// Whether a pass is made with all threads stopped.
    pub stop: Stop,
    /// Deadline. Blocks that are not decided by then are left undecided.
    pub until: Instant,
}

/// The verdict.
#[derive(Clone, Debug, Default)]
pub struct Proof {
    /// The blocks that no pass has reached, in the order of their addresses. They are proved only if that is settled.
    pub unreachable: Vec<Block>,
    /// Whether another of these points to the block, one for each.
    pub held: Vec<bool>,
    /// Enough passes in a row have agreed.
    pub settled: bool,
    /// Time was up before that.
    pub late: bool,
    /// The process has ended before that.
    pub ended: bool,
}

/// Makes passes until enough in a row agree on the blocks that are not reached, and one more with all threads stopped if
/// that is wanted.
///
/// # Errors
/// If the process can't be read. If it ends after the first pass, or time is up, the verdict says so.
pub fn prove<B: Blocks + ?Sized>(
    scanner: &mut Scanner,
    blocks: &mut B,
    limits: &Limits,
) -> Result<Proof, Error> {
    let (mut proof, mut left) = (Proof::default(), Candidates::default());
    scanner.until = Some(limits.until);
    match passes(scanner, blocks, limits, &mut left) {
        Ok(settled) => proof.settled = settled,
        Err(e) => {
            let pid = scanner.reader.pid();
            let ended = matches!(e, Error::Ended(_)) || prof_os::process::has_ended(pid);
            match (ended, scanner.is_late()) {
                (true, _) if scanner.figures.passes == 0 => return Err(Error::Ended(pid)),
                (true, _) => proof.ended = true,
                (false, true) => proof.late = true,
                (false, false) => return Err(e),
            }
        }
    }
    proof.take(&left, blocks);
    Ok(proof)
}

/// Proves by one moment: the caller holds all threads of the process, which has come to its end.
///
/// # Errors
/// If the process can't be read, or time is up.
pub fn prove_held<B: Blocks + ?Sized>(
    scanner: &mut Scanner,
    blocks: &mut B,
    threads: &mut [Tracee],
    until: Instant,
) -> Result<Proof, Error> {
    scanner.until = Some(until);
    let left = scanner.held(blocks, threads)?;
    let mut proof = Proof { settled: true, ..Proof::default() };
    proof.take(&left, blocks);
    Ok(proof)
}

impl Proof {
    fn take<B: Blocks + ?Sized>(&mut self, left: &Candidates, blocks: &B) {
        for (address, held) in left.each() {
            if let Some(block) = blocks.get(address) {
                self.unreachable.push(block);
                self.held.push(held);
            }
        }
    }
}

/// Leaves the blocks that no pass has reached, and returns whether enough passes agree.
fn passes<B: Blocks + ?Sized>(
    scanner: &mut Scanner,
    blocks: &mut B,
    limits: &Limits,
    left: &mut Candidates,
) -> Result<bool, Error> {
    *left = scanner.first(blocks)?;
    let (mut same, mut stops) = (1, true);
    for n in 1..MOST {
        let stop = stops
            && match limits.stop {
                Stop::Never => false,
                Stop::Within(most) => scanner.figures.last <= most,
                Stop::Always | Stop::Copy => true,
            };
        if left.len() == 0 {
            return Ok(true);
        }
        if same >= if stop { limits.agree } else { limits.alone } {
            if !stop {
                return Ok(true);
            }
            let found = match limits.stop {
                Stop::Copy => scanner.again_copied(blocks, left),
                _ => scanner.again_stopped(blocks, left),
            };
            match found {
                Ok(found) => {
                    *left = found;
                    return Ok(true);
                }
                // More passes do instead.
                Err(Error::Threads(_)) if matches!(limits.stop, Stop::Within(_)) => stops = false,
                Err(e) => return Err(e),
            }
        }
        if n + 1 == MOST {
            break;
        }
        std::thread::sleep(REST[n as usize % REST.len()]);
        let found = scanner.again(blocks, left)?;
        same = if found.len() == left.len() { same + 1 } else { 1 };
        *left = found;
    }
    Ok(false)
}
