//! Drops the oldest part of a recording when it meets its bound: another process folds it into a new file, the collector
//! appends what has come meanwhile, and the new file takes the recording's name. Or the collector itself makes figures by
//! stack of all events, and goes on with these. At each moment there is one whole recording under the name.

use crate::limits::Limits;
use crate::output::Output;
use prof_os::clock::monotonic_ns;
use prof_trace::records::{FoldFailed, kind};
use prof_trace::ticks::Ticks;
use prof_trace::values::text::bytes;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

mod folder;
mod over;

pub use folder::{Copied, Folder, new_path, remove_left};
pub use over::MakeSieve;
use over::Over;

/// Part of the bound at which a fold begins: there has to be room for both files, and for what comes meanwhile.
const BEGIN: u64 = 3;
/// Part of a recording's length that stays as it is.
const KEEP: u64 = 4;
/// Part of the bound by which a recording grows, at least, before it is folded again.
const AGAIN: u64 = 8;
/// Room on the file system that has to be left besides that for the new file.
const ROOM: u64 = 8 << 20;
/// Room on the file system at which a fold is given up, as none would end the recording: this, or a part of the
/// recording's length if that is less.
const LITTLE: u64 = 4 << 20;
const PART: u64 = 8;
/// Interval between two looks at the file system, and the same while another file grows on it.
const LOOK: Duration = Duration::from_secs(1);
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// Growth of the recording after which the next look need not wait.
const STEP: u64 = 256 << 10;
/// Shortest and longest time after which a fold that has failed is tried again.
const WAITS: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(300)];
/// Number of folds that may fail before a recording that is longer than its bounds ends.
const TRIES: u64 = 3;
/// Least and greatest number of bytes of events that a pass reads, and the part of the bound that it is: a fold may begin
/// behind each.
const PASS: [u64; 2] = [32 << 10, 1 << 20];
const PASSES: u64 = 32;
/// Longest time that a fold keeps the collector from reading the ring.
const HOLD: Duration = Duration::from_secs(60);
/// Bytes that are copied at a time, and the greatest number of such pieces between two passes.
const PIECE: usize = 1 << 20;
const PIECES: usize = 4;

/// Makes the sieve of a recording that goes over to figures.
struct Maker(MakeSieve);

impl std::fmt::Debug for Maker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Maker")
    }
}

/// Why a fold has failed.
#[derive(Debug)]
enum Failure {
    /// It may be possible later.
    Now(String),
    /// It is never possible: the part that has to stay does not fit.
    Always(String),
}

impl From<String> for Failure {
    fn from(why: String) -> Self {
        Self::Now(why)
    }
}

/// Folds that have failed since one has not.
#[derive(Debug)]
struct Failures {
    /// Why the last one has.
    why: String,
    /// Time until the next is tried, if it is.
    wait: Option<Duration>,
    /// When it is tried, or at which length of the recording, if that comes first.
    next: (Instant, u64),
}

/// Progress of a fold.
#[derive(Debug, Default)]
enum State {
    #[default]
    Idle,
    /// Another process folds.
    Folds,
    /// What has come meanwhile is appended.
    Copies(Copied),
    /// Figures are made of the events.
    Turns(Box<Over>),
}

/// Folds a recording again and again.
#[derive(Debug)]
pub(crate) struct Folding {
    folder: Box<dyn Folder>,
    state: State,
    /// At the first bound, figures by stack are made of all events, if this is set.
    over: Option<Maker>,
    /// Length at which the next fold begins, where the length is bounded.
    next: u64,
    /// Length that it has to have for a fold, also where the file system has little room.
    least: u64,
    /// Time of the last look at the file system, and the length of the recording then.
    looked: Option<(Instant, u64)>,
    /// When the last fold was begun, and the length that the recording may have until it has ended.
    hold: Option<(Instant, u64)>,
    /// Length of the recording after the last fold.
    folded: Option<u64>,
    /// Number of folds that have failed.
    failures: u64,
    failed: Option<Failures>,
}

impl Folding {
    /// Returns the processor time that folds have taken so far.
    pub(crate) fn spent(&self) -> Duration {
        self.folder.spent()
    }

    pub(crate) fn new(folder: Box<dyn Folder>, limits: &Limits) -> Self {
        let next = limits.max_disk.map_or(u64::MAX, |most| most / BEGIN);
        let (state, least) = (State::Idle, Limits::LEAST);
        let (over, looked, failed) = (None, None, None);
        let (hold, folded) = (None, None);
        Self { folder, state, over, next, least, looked, hold, folded, failures: 0, failed }
    }

    /// Returns the number of bytes of events that a pass over the ring may read: if it read all, the recording could meet its
    /// bound before a fold has begun.
    pub(crate) fn pass(limits: &Limits) -> usize {
        let [least, most] = PASS;
        limits.max_disk.map_or(most, |bound| (bound / PASSES).clamp(least, most)) as usize
    }

    /// Returns whether the ring is not to be read now: a fold is under way, and both files would become too long, as the
    /// events that come meanwhile go into both. The ring has room for them, and what it has no room for is counted.
    pub(crate) fn holds(&self, out: &Output) -> bool {
        let Some((begun, most)) = self.hold.filter(|_| !matches!(self.state, State::Idle)) else {
            return false;
        };
        out.len() >= most && begun.elapsed() < HOLD && out.failure().is_none()
    }

    /// Decides how long the recording may become while it is folded.
    fn begin_to_hold(&mut self, out: &Output, limits: &Limits) {
        let (len, pass) = (out.len(), Self::pass(limits) as u64);
        // The new file is mostly about as long as the last one was.
        let new = self.folded.map_or(len, |folded| len.min(folded + folded / KEEP));
        let bound = limits.max_disk.unwrap_or(u64::MAX).saturating_sub(len.saturating_add(new)) / 2;
        let room = limits.free(out.file()).unwrap_or(0).saturating_sub(len / KEEP) / 4;
        let more = bound.min(room).saturating_sub(pass);
        self.hold = Some((Instant::now(), len.saturating_add(more)));
    }

    /// Has figures by stack made of all events at the first bound.
    pub(crate) fn go_over_first(&mut self, make: MakeSieve) {
        self.over = Some(Maker(make));
    }

    /// Begins a fold at the next step, whatever the bounds are.
    pub(crate) fn begin_at_once(&mut self, out: &Output) {
        (self.next, self.folded) = (out.len(), None);
    }

    /// Goes on within other bounds after the fold of [`Self::begin_at_once`]. If the recording is too long for these, it says
    /// so as of the present time that `now` returns.
    pub(crate) fn keep_to(&mut self, limits: &Limits, out: &mut Output, now: impl Fn() -> Ticks) {
        if self.failed.is_none()
            && let Err(failure) = self.plan(out.len(), limits)
        {
            let record = self.fail(failure, out.len(), limits);
            out.put(kind::FOLD_FAILED, &FoldFailed { ticks: now(), ..record }.encode());
        }
    }

    /// Returns what came of the fold of [`Self::begin_at_once`] when that is known: the length of the recording, or that it has
    /// failed, again and again if that may be otherwise the next time.
    pub(crate) fn outcome(&self) -> Option<Result<u64, ()>> {
        match (&self.state, &self.failed, self.folded) {
            (State::Idle, None, Some(len)) => Some(Ok(len)),
            (State::Idle, Some(f), _) if f.wait.is_none() || self.failures >= TRIES => {
                Some(Err(()))
            }
            _ => None,
        }
    }

    /// Does the next step. Returns whether there is more to do at once. If a fold has failed, the recording says so as of
    /// the present time that `now` returns.
    pub(crate) fn step(
        &mut self,
        out: &mut Output,
        limits: &Limits,
        now: impl Fn() -> Ticks,
    ) -> bool {
        match self.try_step(out, limits, &now) {
            Ok(busy) => busy,
            Err(failure) => {
                let record = self.fail(failure, out.len(), limits);
                out.put(kind::FOLD_FAILED, &FoldFailed { ticks: now(), ..record }.encode());
                false
            }
        }
    }

    /// Ends a fold that is in progress, for good. Returns what could not be done in the end, and why, if it should have
    /// been.
    pub(crate) fn ended(mut self) -> Option<String> {
        let is_under_way = !matches!(self.state, State::Idle);
        self.end();
        let slow = || "the recording grew faster".to_owned();
        let why = self.failed.take().map(|f| f.why).or_else(|| is_under_way.then(slow))?;
        Some(format!("{}: {why}", self.could_not()))
    }

    /// Says what could not be done.
    fn could_not(&self) -> &'static str {
        match self.over {
            Some(_) => "no figures by stack could be made of its events",
            None => "its oldest part could not be dropped",
        }
    }

    fn end(&mut self) {
        self.state = State::Idle;
        self.folder.give_up();
    }

    /// Notes that a fold has failed, and decides when the next is tried. Returns what says so, without its ticks.
    fn fail(&mut self, failure: Failure, len: u64, limits: &Limits) -> FoldFailed {
        self.end();
        (self.folded, self.failures) = (None, self.failures + 1);
        let (why, again) = match failure {
            Failure::Now(why) => (why, true),
            Failure::Always(why) => (why, false),
        };
        log::warn!("of the recording, {}: {why}", self.could_not());
        let (failures, reason) = (self.failures, why.clone());
        let over = u64::from(self.over.is_some());
        let record = FoldFailed { ticks: Ticks::ZERO, failures, reason, over };
        self.folder.tell(&record);
        let before = self.failed.take().and_then(|f| f.wait);
        let wait = before.map_or(WAITS[0], |w| (w * 2).min(WAITS[1]));
        // A recording that nears its bound can't wait. As it grows, that ends.
        let part = limits.max_disk.map_or(Limits::LEAST.max(len / KEEP), |most| most / AGAIN);
        let next = (Instant::now() + wait, len.saturating_add(part));
        self.failed = Some(Failures { why, wait: again.then_some(wait), next });
        record
    }

    /// Returns whether a fold may be begun: after one that has failed, not at once, and if it can't ever be, not at all.
    fn may_begin(&self, len: u64) -> bool {
        let Some(failed) = &self.failed else { return true };
        let (at, longer) = failed.next;
        failed.wait.is_some() && (len >= longer || Instant::now() >= at)
    }

    /// Checks a fold that is under way for having no room.
    fn check_room(&mut self, out: &Output, limits: &Limits) -> Result<(), String> {
        if let Some(e) = out.failure() {
            return Err(e.to_string());
        }
        let new = match &self.state {
            State::Copies(copied) => copied.len,
            State::Turns(over) => over.len(),
            _ => self.folder.written(),
        };
        let both = out.len().saturating_add(new);
        if limits.max_disk.is_some_and(|most| both > most) {
            return Err(format!(
                "both files together would be longer than --max-disk; {} are new since it was begun",
                bytes(out.len().saturating_sub(self.next))
            ));
        }
        match self.is_time_to_look(out, LOOK_AGAIN) {
            true => has_room(out, limits, LITTLE.min(out.len() / PART)),
            false => Ok(()),
        }
    }

    /// Returns whether to look at the file system, as the last look was so long ago or the recording has grown.
    fn is_time_to_look(&mut self, out: &Output, every: Duration) -> bool {
        let is_old = |(at, len): (Instant, u64)| {
            at.elapsed() >= every || out.len().saturating_sub(len) >= STEP
        };
        let is_time = self.looked.is_none_or(is_old);
        if is_time {
            self.looked = Some((Instant::now(), out.len()));
        }
        is_time
    }

    fn try_step(
        &mut self,
        out: &mut Output,
        limits: &Limits,
        now: &impl Fn() -> Ticks,
    ) -> Result<bool, Failure> {
        if !matches!(self.state, State::Idle) {
            self.check_room(out, limits)?;
        }
        match &mut self.state {
            State::Idle => {
                if self.may_begin(out.len()) && self.is_due(out, limits) {
                    self.next = self.next.max(out.len());
                    // So much is copied at least.
                    has_room(out, limits, out.len() / KEEP)?;
                    self.begin_to_hold(out, limits);
                    self.state = match &self.over {
                        Some(Maker(make)) => {
                            let file = self.folder.create()?;
                            let over = Over::begin(out, file, make(), monotonic_ns());
                            State::Turns(Box::new(over.map_err(cannot_turn)?))
                        }
                        None => {
                            self.folder.begin(out.len() / KEEP)?;
                            State::Folds
                        }
                    };
                }
                Ok(false)
            }
            State::Folds => {
                let Some(copied) = self.folder.poll() else { return Ok(false) };
                self.state = State::Copies(copied?);
                Ok(true)
            }
            State::Copies(copied) => {
                let failed = |e: io::Error| format!("cannot copy: {e}");
                if !copy(out, copied).map_err(failed)? {
                    return Ok(true);
                }
                self.folder.replace(&copied.file)?;
                out.replace(&copied.file, copied.len).map_err(failed)?;
                (self.state, self.failed) = (State::Idle, None);
                self.plan(out.len(), limits)?;
                Ok(false)
            }
            State::Turns(over) => {
                if !over.step(out).map_err(cannot_turn)? {
                    return Ok(over.is_busy());
                }
                over.finish(out, now()).map_err(cannot_turn)?;
                self.folder.replace(over.file())?;
                over.hand_over(out).map_err(cannot_turn)?;
                self.folder.went_over();
                (self.state, self.failed, self.over) = (State::Idle, None, None);
                self.plan(out.len(), limits)?;
                Ok(false)
            }
        }
    }

    /// Returns whether it is time to fold.
    fn is_due(&mut self, out: &Output, limits: &Limits) -> bool {
        if out.len() >= self.next {
            return true;
        }
        out.len() >= self.least
            && self.is_time_to_look(out, LOOK)
            && limits.free(out.file()).is_ok_and(|room| room < out.len() / 2 + ROOM)
    }

    /// Decides when a recording is folded again that was just folded to this length.
    fn plan(&mut self, len: u64, limits: &Limits) -> Result<(), Failure> {
        self.folded = Some(len);
        // Another fold at once would free nothing.
        self.least = len + Limits::LEAST.max(len / AGAIN);
        let Some(most) = limits.max_disk else { return Ok(()) };
        self.next = (most / BEGIN).max(len + most / AGAIN);
        match self.next + len > most {
            true => Err(Failure::Always(format!(
                "what is live, the figures, the calls that change mappings (--no-maps leaves these out) and the newest events take {} of --max-disk",
                bytes(len)
            ))),
            false => Ok(()),
        }
    }
}

fn cannot_turn(e: io::Error) -> String {
    format!("cannot make figures of its events: {e}")
}

/// Returns an error if the file system has less room than this for another file.
fn has_room(out: &Output, limits: &Limits, least: u64) -> Result<(), String> {
    match limits.free(out.file()).unwrap_or(0) {
        room if room < least => {
            Err(format!("its file system has {} for both files beside --keep-free", bytes(room)))
        }
        _ => Ok(()),
    }
}

/// Copies a few pieces of what has come meanwhile. Returns whether that was all.
fn copy(out: &Output, to: &mut Copied) -> io::Result<bool> {
    if to.from > out.len() {
        return Err(io::Error::other("the recording has become shorter"));
    }
    let mut piece = vec![0; PIECE.min((out.len() - to.from) as usize)];
    for _ in 0..PIECES {
        let want = (out.len() - to.from).min(PIECE as u64) as usize;
        if want == 0 {
            return Ok(true);
        }
        out.file().read_exact_at(&mut piece[..want], to.from)?;
        to.file.write_all_at(&piece[..want], to.len)?;
        to.from += want as u64;
        to.len += want as u64;
    }
    Ok(to.from == out.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    /// Begins, and fails.
    #[derive(Debug)]
    struct Fails(std::sync::Arc<std::sync::atomic::AtomicU64>);

    impl Folder for Fails {
        fn spent(&self) -> Duration {
            Duration::ZERO
        }

        fn begin(&mut self, _: u64) -> Result<(), String> {
            self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            Ok(())
        }

        fn written(&self) -> u64 {
            0
        }

        fn poll(&mut self) -> Option<Result<Copied, String>> {
            Some(Err("it was killed".into()))
        }

        fn replace(&mut self, _: &File) -> Result<(), String> {
            unreachable!("none is complete")
        }

        fn give_up(&mut self) {}

        fn tell(&mut self, _: &FoldFailed) {}

        fn create(&mut self) -> Result<File, String> {
            unreachable!("another process folds")
        }

        fn went_over(&mut self) {}
    }

    #[test]
    fn a_fold_that_has_failed_is_tried_again_later() {
        let path = std::env::temp_dir().join(format!("prof-refold-{}", std::process::id()));
        let file = crate::create_recording(&path).expect("a file");
        std::fs::remove_file(&path).expect("removed");
        let limits = Limits { max_disk: Some(8 << 20), ..Limits::NONE };
        let mut out = Output::new(file).expect("output");
        let begun = std::sync::Arc::default();
        let mut folding = Folding::new(Box::new(Fails(std::sync::Arc::clone(&begun))), &limits);
        let begun = || begun.load(std::sync::atomic::Ordering::Relaxed);
        let steps = |out: &mut Output, folding: &mut Folding| {
            for _ in 0..4 {
                folding.step(out, &limits, || Ticks(7));
                if let Some(failed) = &mut folding.failed {
                    // Time does not pass.
                    failed.next.0 = Instant::now() + Duration::from_secs(3600);
                }
            }
        };
        let grow = |out: &mut Output, bytes: usize| {
            out.put(kind::SYMBOLS, &vec![0; bytes]);
            out.flush();
        };
        grow(&mut out, 2 << 20);
        steps(&mut out, &mut folding);
        assert_eq!((begun(), folding.failures), (0, 0), "it is not due");
        grow(&mut out, 1 << 20);
        steps(&mut out, &mut folding);
        assert_eq!((begun(), folding.failures), (1, 1), "not at once");
        // It is a part longer.
        grow(&mut out, 1 << 20);
        steps(&mut out, &mut folding);
        assert_eq!((begun(), folding.failures), (2, 2));
        folding.failed.as_mut().expect("failed").next.0 = Instant::now();
        steps(&mut out, &mut folding);
        assert_eq!((begun(), folding.failures), (3, 3), "later");
        let wait = folding.failed.as_ref().and_then(|f| f.wait);
        assert_eq!(wait, Some(WAITS[0] * 4), "later and later");
        folding.fail(Failure::Always("it does not fit".into()), out.len(), &limits);
        folding.failed.as_mut().expect("failed").next.0 = Instant::now();
        grow(&mut out, 1 << 20);
        steps(&mut out, &mut folding);
        assert_eq!((begun(), folding.failures), (3, 4), "never");
        assert_eq!(
            folding.ended(),
            Some("its oldest part could not be dropped: it does not fit".into())
        );
    }
}
