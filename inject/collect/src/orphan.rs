//! Finishes the recording of a collector that died, with the events that are left in the ring.

use crate::limits::Limits;
use crate::ring_copy::RingCopy;
use crate::ring_map::map_ring;
use crate::target::switch_off;
use crate::{Collector, Error, totals};
use prof_os::pid_namespace::{PidNamespace, number_in};
use prof_os::process::{effective_uid, folder, start_time};
use prof_os::{Pid, clock_ticks};
use prof_trace::chunk::{self, CHUNK_HEADER, FILE_HEADER, MAX_PAYLOAD, Next};
use prof_trace::damage::Search;
use prof_trace::derived::Zipped;
use prof_trace::event::Codec;
use prof_trace::pack::{Packed, Unpacker};
use prof_trace::records::{
    Bounds, CallFile, Calls, End, Epoch, Events, FoldEnd, NodeRun, Nodes, Pass, Step, Stripped,
    Target, kind,
};
use prof_trace::shared::Shared;
use prof_trace::ticks::Ticks;
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

mod unattended;
mod unrecorded;

pub use unattended::finish_unattended;

/// Greatest length of the chunk that ends a recording, which has a reason in words.
const MOST_END: u64 = 64 << 10;

/// Time that a thread may take to put an event that it has counted into the ring.
const SETTLES: Duration = Duration::from_millis(300);

/// Result of finishing a recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    /// Number of events that were left in the ring, and are in the recording.
    pub events: u64,
    /// Number of those for which there is no room within the recording's bounds.
    pub lost: u64,
    /// Number of events that were in the recording, as the hook counts them, and are not there any more.
    pub missing: u64,
    /// Length of the recording in bytes.
    pub bytes: u64,
    /// The recording has figures in place of events (`--cull`, `--aggregate`): they stay as they are, and of what was left in
    /// the ring all is lost. These events are [`Self::missing`].
    pub has_figures: bool,
    /// Whether the number of missing events is known: figures of a sample are estimates, and those of a recording that has gone
    /// over to them do not say how many calls that change mappings there were.
    pub is_counted: bool,
    /// A collector had written to the recording, and has died. Else the process, which was forked from a recorded one, had none
    /// yet.
    pub had_collector: bool,
}

/// Appends the events that the dead collector of process `pid` has left in the ring to the recording at `path`, and
/// finishes that. Recording is switched off first. The hooks stay in the target.
///
/// # Errors
/// If the process has no ring, or the recording can't be continued.
pub fn drain_orphan(pid: Pid, path: &Path) -> Result<Drained, Error> {
    let mut ring = RingCopy::of(pid)?;
    switch_off(ring.mem(), &ring.shared()).map_err(Error::io("cannot switch recording off"))?;
    // Threads that have already seen the flag on finish their events.
    std::thread::sleep(Duration::from_millis(5));
    ring.copy().and_then(|()| ring.follow()).map_err(Error::io("cannot read the ring"))?;

    let shared = ring.shared();
    let file = open_own(pid, path)?;
    // The lock makes another prof wait that does the same. Without locks, as on some network file systems, it does not.
    let _ = file.lock();
    Ok(finish(pid, shared, file, path)?.1)
}

/// Finishes the recording at `path` of a collector that was killed while prof was taken out of process `pid`, with what is
/// left in `ring`, which the process has no more. `None`: the collector had finished it, or the file may not be looked into,
/// as the process's user may not write to a recording of root's. Of a finished one only the end is read.
///
/// # Errors
/// If it is not finished, and can't be.
pub fn drain_rest(pid: Pid, ring: Option<OwnedFd>, path: &Path) -> Result<Option<Drained>, Error> {
    let Ok(file) = open_own(pid, path) else { return Ok(None) };
    if is_finished(&file).unwrap_or(true) {
        return Ok(None);
    }
    let shared = map_ring(ring.ok_or(Error::NoRing)?)?;
    let (is_new, drained) = finish(pid, shared, file, path)?;
    Ok(is_new.then_some(drained))
}

/// Returns whether a recording ends with the chunk that the collector writes last.
fn is_finished(file: &File) -> io::Result<bool> {
    let len = file.metadata()?.len();
    let from = len.saturating_sub(MOST_END).max(FILE_HEADER as u64);
    let mut tail = vec![0; len.saturating_sub(from) as usize];
    file.read_exact_at(&mut tail, from)?;
    let ends = |at: &usize| {
        let rest = &tail[*at..];
        let may_be = rest.starts_with(&kind::END.to_le_bytes());
        may_be && matches!(chunk::next(rest), Next::Chunk(kind::END, _, n) if n == rest.len())
    };
    Ok((0..tail.len()).rev().any(|at| ends(&at)))
}

/// Appends what is left in the ring to a recording, and finishes it. `false`: it was finished.
fn finish(pid: Pid, shared: Shared<'_>, file: File, path: &Path) -> Result<(bool, Drained), Error> {
    let left = Left::of(pid, &file, path)?;
    if left.ended {
        let bytes = left.len;
        return Ok((false, Drained { bytes, had_collector: true, ..Drained::default() }));
    }
    let mut collector = left.go_on(pid, shared, file, path)?;
    if left.has_figures {
        collector.drop_rest();
    } else if let Some(limits) = &left.limits {
        collector.set_limits_of_rest(limits);
    }
    let had_collector = left.last_pass.is_some();
    let reason = if had_collector { End::DIED } else { "detached" };
    let ended = collector.finish(reason);
    match ended.failure {
        Some(e) => Err(Error::io(format!("cannot write {}", path.display()))(e)),
        None => {
            let (events, lost, bytes) = (ended.events, ended.unwritten, ended.bytes);
            let (missing, has_figures) = (ended.missing, left.has_figures);
            let is_counted = left.events.is_some();
            let drained =
                Drained { events, lost, missing, bytes, has_figures, is_counted, had_collector };
            Ok((true, drained))
        }
    }
}

/// A recording that another collector may go on in.
#[derive(Debug)]
pub struct Orphan {
    /// The recording.
    pub file: File,
    left: Left,
}

/// Opens the recording that the dead collector of process `pid` has left at `path`, for another collector to go on in
/// it. Nothing is changed.
///
/// # Errors
/// Why none may.
pub fn open_orphan(pid: Pid, path: &Path) -> Result<Orphan, Error> {
    let file = open_own(pid, path)?;
    let left = Left::of(pid, &file, path)?;
    left.check(path)?;
    Ok(Orphan { file, left })
}

impl Orphan {
    /// Returns the number of events that were written to the recording, and are not in it any more: it was cut off or damaged.
    /// `ring` is the process's, whose threads may write to it meanwhile.
    ///
    /// # Errors
    /// If the ring can't be mapped, which then stays so for as long as this process lives.
    pub fn missing(&self, ring: OwnedFd) -> Result<u64, Error> {
        let shared = map_ring(ring)?;
        let Some(recorded) = self.left.counted() else { return Ok(0) };
        // Of events that are counted here, some are not in the ring yet.
        let written = totals(&shared).events.saturating_sub(recorded);
        let begun = Instant::now();
        loop {
            let missing = written.saturating_sub(self.left.unrecorded(&shared));
            if missing == 0 || begun.elapsed() > SETTLES {
                return Ok(missing);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Collector<'static> {
    /// Creates the collector that goes on in the recording `file` of a dead collector of process `pid`, beginning with the
    /// events that this has left in the ring. `path` is the recording's.
    ///
    /// # Errors
    /// Why it can't, see [`open_orphan`].
    pub fn go_on(
        pid: Pid,
        shared: Shared<'static>,
        file: File,
        path: &Path,
    ) -> Result<Self, Error> {
        let left = Left::of(pid, &file, path)?;
        left.check(path)?;
        let mut all = left.go_on(pid, shared, file, path)?;
        all.begin_to_live();
        Ok(all)
    }
}

/// Opens a recording that a process's control page names, in order to continue it. The process may have written any
/// path there. So the file must belong to the user of prof, or to the process's user, who could write to it anyway, and
/// must not be a symbolic link.
fn open_own(pid: Pid, path: &Path) -> Result<File, Error> {
    let what = || format!("cannot open {}", path.display());
    let mut options = OpenOptions::new();
    options
        .read(true)
        .write(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY);
    // Devices and FIFOs are not even opened, as that can have effects.
    let kind = std::fs::symlink_metadata(path).map_err(Error::io(what()))?;
    if !kind.is_file() {
        return Err(Error::NotARecording(path.into()));
    }
    let file = options.open(path).map_err(Error::io(what()))?;
    let meta = file.metadata().map_err(Error::io(what()))?;
    let theirs = std::fs::metadata(folder(pid)).map(|m| m.uid()).ok();
    let ours = effective_uid();
    if !meta.is_file() || (meta.uid() != ours && Some(meta.uid()) != theirs) {
        return Err(Error::NotItsRecording(path.into(), pid));
    }
    Ok(file)
}

/// Returns when a process was started, in nanoseconds since 1970.
fn began(pid: Pid) -> Option<u64> {
    let stat = std::fs::read_to_string("/proc/stat").ok()?;
    let boot: u64 = stat.lines().find_map(|l| l.strip_prefix("btime "))?.trim().parse().ok()?;
    let hz = clock_ticks();
    let since = start_time(pid)?;
    boot.checked_mul(NS)?.checked_add((u128::from(since) * u128::from(NS) / u128::from(hz)) as u64)
}

const NS: u64 = 1_000_000_000;
/// Tolerance between the kernel's clocks.
const SLACK: u64 = 5 * NS;

/// The state of a recording that was not finished.
#[derive(Debug, Default)]
struct Left {
    /// The recorded process.
    target: Target,
    /// Length up to the last whole chunk, in bytes.
    len: u64,
    ended: bool,
    /// Whether it has figures in place of blocks.
    has_figures: bool,
    /// Whether figures say how many events there were.
    figures_count: bool,
    /// Whether the recording had events, and went over to figures.
    went_over: bool,
    /// The bounds that its collector was given.
    limits: Option<Limits>,
    last_pass: Option<Pass>,
    /// Offsets of the epochs (see [`Epoch`]), the present one last.
    offsets: Vec<u64>,
    toggles: u64,
    /// The last events of each thread, by serial.
    last: HashMap<u32, Last>,
    /// End of the last recorded call that changes mappings, in ticks, by the serial of its thread.
    last_call: HashMap<u32, Ticks>,
    /// The highest stack node ID.
    last_node: u32,
    /// The highest number of a mapped file.
    last_file: u32,
    /// Number of recorded events, also of those that were folded away; `None`: not known.
    events: Option<u64>,
    /// Number of recorded calls that change mappings.
    calls: u64,
}

/// Location of a thread's last events.
#[derive(Clone, Debug)]
enum Last {
    /// A plain chunk.
    Plain(Events),
    /// Folded events, of which only the time of the last one is known.
    Folded(Ticks),
    /// A run of a packed chunk: the chunk's payload, and the run's index.
    Packed(Rc<[u8]>, usize),
}

impl Last {
    /// Returns the decoder state behind the last event.
    fn end(&self) -> Option<Codec> {
        match self {
            Last::Plain(e) => {
                let (mut end, mut at) = (e.codec(), 0);
                while let Some((_, n)) = end.get(&e.bytes[at..]) {
                    at += n;
                }
                Some(end)
            }
            // No event has the address, so those up to its time are taken for recorded.
            Last::Folded(time) => Some(Codec { time: *time, addr: 1, ..Codec::default() }),
            Last::Packed(payload, run) => {
                let packed = Packed::read(payload)?;
                let from = packed.runs.get(*run)?;
                let mut end = Codec { time: from.time, node: from.node, ..Codec::default() };
                Unpacker::default().unpack(&packed, |r, e| {
                    if r == *run {
                        end.follow(&e);
                    }
                })?;
                Some(end)
            }
        }
    }
}

/// Reads the bytes of the next chunk, as far as the file has them.
fn read_chunk(r: &mut impl Read, bytes: &mut Vec<u8>) -> io::Result<()> {
    bytes.clear();
    r.by_ref().take(CHUNK_HEADER as u64).read_to_end(bytes)?;
    if let Some(head) = bytes.first_chunk::<CHUNK_HEADER>() {
        let len = u32::from_le_bytes([head[4], head[5], head[6], head[7]]) as usize;
        if len <= MAX_PAYLOAD {
            r.by_ref().take(len as u64).read_to_end(bytes)?;
        }
    }
    Ok(())
}

impl Left {
    /// Reads the recording of process `pid`.
    fn of(pid: Pid, file: &File, path: &Path) -> Result<Self, Error> {
        let left = Self::read(file)
            .map_err(Error::io(format!("cannot read {}", path.display())))?
            .ok_or_else(|| Error::NotARecording(path.into()))?;
        match left.is_of(pid) {
            Some(true) => Ok(left),
            Some(false) => Err(Error::NotItsRecording(path.into(), pid)),
            None => Err(Error::OtherNamespace(path.into())),
        }
    }

    /// Checks whether a recording may be continued as it was begun.
    fn check(&self, path: &Path) -> Result<(), Error> {
        match self {
            Self { ended: true, .. } => Err(Error::Finished(path.into())),
            Self { has_figures: true, .. } => Err(Error::HasFigures(path.into())),
            _ => Ok(()),
        }
    }

    /// Makes the collector that appends what is in the ring and not in the recording.
    fn go_on<'a>(
        &self,
        pid: Pid,
        shared: Shared<'a>,
        file: File,
        path: &Path,
    ) -> Result<Collector<'a>, Error> {
        // A fold that the collector had begun is of no use.
        if let Ok(recording) = file.metadata() {
            crate::folding::remove_left(path, &recording);
        }
        file.set_len(self.len).map_err(Error::io(format!("cannot cut {}", path.display())))?;
        let mut collector = Collector::of_copy(pid, shared, file)?;
        let (drain, tree, out) = collector.drain_mut();
        tree.restore(self.last_node);
        self.skip(&shared, drain, tree, out);
        let offset = self.offset();
        collector.continue_from(self.last_pass.as_ref(), self.toggles, offset, self.last_file);
        collector.set_recorded(self.counted());
        Ok(collector)
    }

    /// Reads a recording; `None` if the file is not one.
    fn read(file: &File) -> io::Result<Option<Self>> {
        let mut file = file;
        file.seek(SeekFrom::Start(0))?;
        let mut r = BufReader::with_capacity(1 << 20, file);
        let mut head = [0u8; FILE_HEADER];
        if r.read_exact(&mut head).is_err() || chunk::check_header(&head).is_err() {
            return Ok(None);
        }
        let mut left = Self { len: FILE_HEADER as u64, events: Some(0), ..Default::default() };
        let (mut bytes, mut search) = (Vec::new(), Search::default());
        loop {
            read_chunk(&mut r, &mut bytes)?;
            match chunk::next(&bytes) {
                Next::Chunk(k, payload, n) => {
                    left.len += n as u64;
                    left.note(k, payload);
                }
                Next::End => return Ok(Some(left)),
                Next::Partial | Next::Damaged => {
                    // Chunks that are whole behind damage stay in the recording: readers find them, too.
                    let next = search.behind(file, left.len, file.metadata()?.len())?;
                    let Some(next) = next else { return Ok(Some(left)) };
                    (left.len, left.events) = (next, None);
                    r.seek(SeekFrom::Start(next))?;
                }
            }
        }
    }

    fn note(&mut self, k: u16, payload: &[u8]) {
        match k {
            kind::TARGET => self.target = Target::decode(payload).unwrap_or_default(),
            kind::PASS => self.last_pass = Pass::decode(payload),
            kind::EPOCH => self.offsets.extend(Epoch::decode(payload).map(|e| e.offset)),
            kind::TOGGLE => self.toggles += 1,
            kind::END => self.ended = true,
            kind::STRIPPED => {
                self.note_figures(&Stripped::decode(payload).unwrap_or_default().totals);
            }
            kind::WENT_OVER => self.went_over = true,
            kind::STEP => self.note_figures(&Step::decode(payload).unwrap_or_default().totals),
            kind::BOUNDS => self.limits = Bounds::decode(payload).map(|b| Limits::of(&b)),
            kind::NODES => self.note_nodes(Nodes::decode(payload)),
            kind::NODE_RUN => self.note_nodes(NodeRun::decode(payload).and_then(|r| r.nodes())),
            kind::ZIPPED => {
                let kinds = [kind::NODE_RUN, kind::STRIPPED, kind::STEP];
                let zipped = Zipped::decode(payload).filter(|z| kinds.contains(&z.kind));
                if let Some((kind, bytes)) = zipped.and_then(|z| Some((z.kind, z.unzip()?))) {
                    self.note(kind, &bytes);
                }
            }
            kind::EVENTS => {
                if let Some(e) = Events::decode(payload) {
                    self.count(u64::from(e.count));
                    self.last.insert(e.thread, Last::Plain(e));
                }
            }
            kind::FOLD_END => {
                let FoldEnd { threads, events, .. } = FoldEnd::decode(payload).unwrap_or_default();
                self.events = Some(events).filter(|n| *n > 0);
                for [thread, _, _, time] in threads.as_chunks::<{ FoldEnd::THREAD }>().0 {
                    let last = Last::Folded(Ticks(*time));
                    self.last.extend(u32::try_from(*thread).map(|thread| (thread, last)));
                }
            }
            kind::CALLS => {
                let calls = Calls::decode(payload).unwrap_or_default().calls;
                self.calls = self.calls.saturating_add(calls.len() as u64);
                self.last_call.extend(calls.into_iter().map(|(thread, call)| (thread, call.end)));
            }
            kind::CALL_FILE => {
                let id = CallFile::decode(payload).map_or(0, |file| file.id);
                self.last_file = self.last_file.max(id);
            }
            kind::PACKED => {
                let Some(packed) = Packed::read(payload) else { return };
                self.count(packed.events() as u64);
                let payload: Rc<[u8]> = payload.into();
                for (i, run) in packed.runs.iter().enumerate() {
                    self.last.insert(run.thread, Last::Packed(payload.clone(), i));
                }
            }
            _ => {}
        }
    }

    /// Returns whether the recording is of this very process, and not of an earlier one with the same PID. `None`: its PID is
    /// that of a namespace which can't be seen from here. What the process itself says of its PID is not trusted.
    fn is_of(&self, pid: Pid) -> Option<bool> {
        let space = PidNamespace::from_raw(self.target.pid_namespace);
        // Earlier builds did not say which namespace it is.
        let is_own = [PidNamespace::UNKNOWN, PidNamespace::own()].contains(&space);
        let number = if is_own { pid } else { number_in(pid, space)? };
        let wall = self.target.wall_ns;
        Some(
            self.target.pid == number.as_u32()
                && began(pid).is_none_or(|b| wall.saturating_add(SLACK) >= b),
        )
    }

    fn count(&mut self, events: u64) {
        if !self.figures_count {
            self.events = self.events.map(|all| all.saturating_add(events));
        }
    }

    /// Takes the number of events from figures that count all of them. Those of a sample are estimates.
    fn note_figures(&mut self, totals: &[u64]) {
        self.has_figures = true;
        if !totals.is_empty() {
            let is_known = !self.went_over && !self.target.capture().is_sampled();
            self.figures_count = true;
            self.events = is_known.then(|| Stripped::events_of(totals));
        }
    }

    /// Returns the number of events in the recording, as the hook counts them. `None`: it has not all that were written.
    fn counted(&self) -> Option<u64> {
        self.events.map(|events| events.saturating_add(self.calls))
    }

    fn note_nodes(&mut self, nodes: Option<Nodes>) {
        let triples = nodes.unwrap_or_default().triples;
        let ids = triples.iter().step_by(3).filter_map(|id| u32::try_from(*id).ok());
        self.last_node = ids.fold(self.last_node, u32::max);
    }

    fn offset(&self) -> u64 {
        self.offsets.last().copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_compressed_nodes_are_not_given_again() {
        let mut run = NodeRun::default();
        (1..5000).for_each(|id| run.push(id, id - 1, 7));
        let zipped = Zipped::encode(kind::NODE_RUN, &run.encode()).expect("compressed");
        let mut left = Left::default();
        left.note(kind::ZIPPED, &zipped);
        assert_eq!(left.last_node, 4999);
        left.note(kind::ZIPPED, &zipped[..zipped.len() - 1]);
        assert_eq!(left.last_node, 4999);
    }

    #[test]
    fn the_end_of_a_recording_tells_whether_it_is_finished() {
        let path = std::env::temp_dir().join(format!("prof-ends-{}", std::process::id()));
        let mut bytes = chunk::file_header().to_vec();
        chunk::put(&mut bytes, kind::TOGGLE, &vec![7; 2 * MOST_END as usize]);
        let is_finished = |bytes: &[u8]| {
            std::fs::write(&path, bytes).expect("write");
            is_finished(&File::open(&path).expect("open")).expect("read")
        };
        assert!(!is_finished(&bytes) && !is_finished(&bytes[..FILE_HEADER]) && !is_finished(b"PR"));
        chunk::put(&mut bytes, kind::END, b"detached");
        assert!(is_finished(&bytes));
        assert!(!is_finished(&bytes[..bytes.len() - 1]), "a damaged end");
        chunk::put(&mut bytes, kind::TOGGLE, &[1, 1]);
        assert!(!is_finished(&bytes), "it goes on behind the end");
        std::fs::remove_file(&path).expect("remove");
        // Who may not look into a recording can't say that it has no end.
        assert_eq!(drain_rest(Pid::this(), None, &path).expect("nothing to say"), None);
    }

    #[test]
    fn a_cut_off_recording_is_read_to_its_last_whole_chunk() {
        let dir = std::env::temp_dir().join(format!("prof-left-{}", std::process::id()));
        let mut bytes = chunk::file_header().to_vec();
        chunk::put(&mut bytes, kind::PASS, &Pass { number: 4, ..Default::default() }.encode());
        let e = Events { thread: 9, count: 1, bytes: vec![1, 0], ..Default::default() };
        chunk::put(&mut bytes, kind::EVENTS, &e.encode());
        let whole = bytes.len() as u64;
        chunk::put(&mut bytes, kind::TOGGLE, &[1, 1]);
        for cut in 1..18 {
            std::fs::write(&dir, &bytes[..bytes.len() - cut]).expect("write");
            let file = File::open(&dir).expect("open");
            let left = Left::read(&file).expect("read").expect("a recording");
            assert_eq!((left.len, left.toggles, left.ended), (whole, 0, false));
            assert_eq!(left.last_pass.map(|p| p.number), Some(4));
            assert!(matches!(&left.last[&9], Last::Plain(last) if *last == e));
        }
        // Damage in the midst ends nothing: what follows it is read, and would not be cut off.
        for at in [FILE_HEADER, FILE_HEADER + CHUNK_HEADER] {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x80;
            std::fs::write(&dir, &damaged).expect("write");
            let left = Left::read(&File::open(&dir).expect("open"));
            let left = left.expect("read").expect("a recording");
            assert_eq!((left.len, left.toggles), (bytes.len() as u64, 1));
            assert!(
                left.last_pass.is_none() && left.last.contains_key(&9) && left.events.is_none()
            );
        }
        std::fs::write(&dir, b"something else").expect("write");
        assert!(Left::read(&File::open(&dir).expect("open")).expect("read").is_none());
        std::fs::remove_file(&dir).expect("remove");
    }
}
