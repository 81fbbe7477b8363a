//! The recordings that are served, and what else all requests share.

use crate::grown::Grown;
use crate::jobs::Jobs;
use crate::live::Live;
use crate::names::Names;
use crate::reply::Failure;
use crate::scans::Scans;
use crate::work::{Work, lock};
use crate::{Control, Options};
use bytes::Bytes;
use prof_analyze::load::{MapEvent, calls};
use prof_analyze::maps::Maps;
use prof_analyze::{Index, Job, JobProgress};
use prof_os::Pid;
use prof_trace::call::CallKind;
use prof_trace::chunk;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant, UNIX_EPOCH};
use tokio::sync::watch;

/// A recording to serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// The file.
    pub path: PathBuf,
    /// The process that is being recorded to it.
    pub pid: Option<Pid>,
}

/// Whether a recording was opened.
#[derive(Clone)]
pub(crate) enum State {
    /// Nobody has asked for it.
    Waiting,
    /// The recording is being opened.
    Opening,
    /// The recording is open.
    Ready(Arc<Open>),
    /// The recording can't be read.
    Failed(String),
}

/// An open recording.
pub(crate) struct Open {
    pub index: Index,
    /// Changes when the recording is read anew.
    pub generation: u64,
    names: OnceLock<Names>,
    maps: OnceLock<Result<Maps, String>>,
    settings: OnceLock<Result<Vec<MapEvent>, String>>,
    /// Length of the file when it was opened.
    bytes: u64,
    at: Instant,
    /// Time that another look would take.
    took: Duration,
}

impl Open {
    /// Returns the names of all stacks.
    pub(crate) fn names(&self) -> &Names {
        self.names.get_or_init(|| Names::new(self.index.analysis()))
    }

    /// Returns the mappings of the process.
    pub(crate) fn maps(&self) -> Result<&Maps, Failure> {
        let made =
            self.maps.get_or_init(|| Maps::of(self.index.analysis()).map_err(|e| e.to_string()));
        made.as_ref().map_err(|e| Failure::internal(e.clone()))
    }

    /// Returns the calls of `mallopt`, in the order of time.
    pub(crate) fn settings(&self) -> Result<&[MapEvent], Failure> {
        let read = || {
            let mut found = Vec::new();
            let path = self.index.analysis().path();
            calls(&path, |e| {
                if e.call.kind == CallKind::Mallopt && found.len() < MOST_SETTINGS {
                    found.push(e.clone());
                }
            })
            .map_err(|e| e.to_string())?;
            Ok(found)
        };
        let made = self.settings.get_or_init(read);
        made.as_deref().map_err(|e: &String| Failure::internal(e.clone()))
    }
}

/// Greatest number of calls of `mallopt` that are kept; a made-up recording may have any number.
const MOST_SETTINGS: usize = 100_000;

/// A recording.
pub(crate) struct Recording {
    pub id: String,
    pub path: PathBuf,
    pub pid: Option<Pid>,
    state: watch::Sender<State>,
    pub live: Live,
    grown: Grown,
    /// Tells how far opening it is.
    opening: Job,
}

impl Recording {
    pub(crate) fn name(&self) -> String {
        self.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    pub(crate) fn state(&self) -> State {
        self.state.borrow().clone()
    }

    /// Returns the progress of opening it.
    pub(crate) fn making(&self) -> Option<JobProgress> {
        matches!(*self.state.borrow(), State::Opening).then(|| self.opening.progress())
    }

    pub(crate) fn bytes(&self) -> u64 {
        std::fs::metadata(&self.path).map_or(0, |m| m.len())
    }

    pub(crate) fn modified_ms(&self) -> u64 {
        let modified = std::fs::metadata(&self.path).and_then(|m| m.modified()).ok();
        let since = modified.and_then(|t| t.duration_since(UNIX_EPOCH).ok());
        since.map_or(0, |d| d.as_millis() as u64)
    }
}

/// Returns the id of a recording: a hash of the chunk that describes its target, so that it is the same at each start.
fn id_of(path: &Path) -> Option<String> {
    let mut head = Vec::new();
    let file = prof_os::files::open_regular(path).ok()?;
    file.take(256 << 10).read_to_end(&mut head).ok()?;
    chunk::check_header(&head).ok()?;
    let first = head.get(chunk::FILE_HEADER..)?;
    let used = match chunk::next(first) {
        chunk::Next::Chunk(_, payload, _) => payload,
        _ => first,
    };
    Some(hex(used))
}

fn hex(bytes: &[u8]) -> String {
    let mut hash = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58du128;
    for b in bytes {
        hash = (hash ^ u128::from(*b)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b);
    }
    format!("{hash:032x}")
}

/// Number of scripts that run at a time.
const SCRIPTS: usize = 2;

/// Greatest number of bytes of the scripts' files that are kept, and to which number of bytes they are reduced then.
#[cfg(feature = "script")]
const MOST_FILES: (usize, usize) = (32 << 20, 16 << 20);

/// The files that scripts have made, by the hash of their content, the oldest first.
#[derive(Default)]
pub(crate) struct Files(Mutex<Vec<(String, &'static str, Bytes)>>);

impl Files {
    /// Keeps a file; returns its hash.
    #[cfg(feature = "script")]
    pub(crate) fn put(&self, kind: &'static str, bytes: Vec<u8>) -> String {
        let hash = hex(&bytes);
        let mut files = lock(&self.0);
        files.retain(|f| f.0 != hash);
        files.push((hash.clone(), kind, bytes.into()));
        let sum =
            |files: &Vec<(String, &str, Bytes)>| files.iter().map(|f| f.2.len()).sum::<usize>();
        if sum(&files) > MOST_FILES.0 {
            while files.len() > 1 && sum(&files) > MOST_FILES.1 {
                files.remove(0);
            }
        }
        hash
    }

    /// Returns a file with its media type.
    pub(crate) fn get(&self, hash: &str) -> Option<(&'static str, Bytes)> {
        let files = lock(&self.0);
        files.iter().find(|f| f.0 == hash).map(|f| (f.1, f.2.clone()))
    }
}

/// The state that all requests share.
pub(crate) struct Shared {
    pub options: Options,
    pub work: Arc<Work>,
    pub jobs: Jobs,
    /// The scripts that run.
    pub scripts: Arc<Work>,
    /// The files that scripts have made.
    pub files: Files,
    /// Scans that were read.
    pub scans: Scans,
    recordings: Vec<Arc<Recording>>,
    generations: AtomicU64,
    /// Only one index is made at a time.
    making: tokio::sync::Mutex<()>,
}

impl Shared {
    pub(crate) fn new(sources: Vec<Source>, options: Options) -> Self {
        let mut recordings: Vec<Arc<Recording>> = Vec::new();
        for s in sources {
            let mut id =
                id_of(&s.path).unwrap_or_else(|| hex(s.path.as_os_str().as_encoded_bytes()));
            // Copies of a recording, packed or stripped, describe the same target.
            if recordings.iter().any(|r| r.id == id) {
                id = hex(format!("{id}{}", s.path.display()).as_bytes());
            }
            let state = watch::Sender::new(State::Waiting);
            let (path, pid, opening) = (s.path, s.pid, Job::default());
            let (live, grown) = (Live::default(), Grown::default());
            recordings.push(Arc::new(Recording { id, path, pid, state, live, grown, opening }));
        }
        let threads = std::thread::available_parallelism().map_or(2, usize::from);
        let work = Arc::new(Work::new(options.cache, threads));
        let scripts = Arc::new(Work::new(0, SCRIPTS));
        let generations = AtomicU64::new(0);
        let (jobs, files, read) = (Jobs::default(), Files::default(), Scans::default());
        let making = tokio::sync::Mutex::default();
        Self { options, work, jobs, scripts, files, scans: read, recordings, generations, making }
    }

    pub(crate) fn recordings(&self) -> &[Arc<Recording>] {
        &self.recordings
    }

    pub(crate) fn control(&self) -> Option<&Arc<dyn Control>> {
        self.options.control.as_ref()
    }

    /// Returns the recording of that id, or the last one for `last`.
    pub(crate) fn find(&self, id: &str) -> Result<&Arc<Recording>, Failure> {
        let found = match id {
            "last" => self.recordings.last(),
            id => self.recordings.iter().find(|r| r.id == id),
        };
        found.ok_or_else(|| Failure::missing("there is no such recording here; /list has the ids"))
    }

    /// Begins to open a recording, unless it is open or being opened. Of one that has grown what was added is read.
    pub(crate) fn open(self: &Arc<Self>, recording: &Arc<Recording>) {
        let begins = recording.state.send_if_modified(|state| {
            let stale = match state {
                State::Waiting => true,
                State::Ready(open) => is_stale(open, recording),
                _ => false,
            };
            if matches!(state, State::Waiting) {
                *state = State::Opening;
            }
            stale
        });
        if !begins {
            return;
        }
        let (shared, recording) = (self.clone(), recording.clone());
        tokio::spawn(async move {
            let _one = shared.making.lock().await;
            let earlier = match recording.state() {
                State::Ready(open) if !is_stale(&open, &recording) => return,
                State::Ready(open) => Some(open),
                _ => None,
            };
            let (inner, asked) = (shared.clone(), recording.clone());
            let bytes = recording.bytes();
            let look = move || {
                let grows = asked.live.grows(&asked);
                let look = || asked.grown.look(&inner.options, &asked.path, grows);
                let mut look = asked.opening.run(look)?;
                if let (true, Some(earlier)) = (grows, earlier) {
                    look.index.take_stacks(&earlier.index);
                }
                Ok(look)
            };
            let state = match tokio::task::spawn_blocking(look).await {
                Ok(Ok(look)) => State::Ready(Arc::new(Open {
                    index: look.index,
                    names: OnceLock::new(),
                    maps: OnceLock::new(),
                    settings: OnceLock::new(),
                    generation: shared.generations.fetch_add(1, Ordering::Relaxed),
                    bytes,
                    at: Instant::now(),
                    took: look.takes,
                })),
                Ok(Err(why)) => State::Failed(why),
                Err(e) => State::Failed(format!("reading it failed inside prof: {e}")),
            };
            tokio::spawn(recording.grown.clone().expire());
            recording.state.send_replace(state);
        });
    }

    /// Returns a recording when it is open; waits for that at most `patience`.
    pub(crate) async fn ready(
        self: &Arc<Self>,
        recording: &Arc<Recording>,
        patience: Duration,
    ) -> Result<Arc<Open>, Failure> {
        self.open(recording);
        let mut state = recording.state.subscribe();
        let decided = state.wait_for(|s| matches!(s, State::Ready(_) | State::Failed(_)));
        let state = match tokio::time::timeout(patience, decided).await {
            Ok(Ok(state)) => state.clone(),
            _ => {
                let making = recording.making().filter(|m| m.total > 0);
                let progress = making.map(|m| (m.done.saturating_mul(1000) / m.total) as u32);
                let wait = Failure::new(503, "the recording is still being read");
                return Err(Failure { progress: Some(progress.unwrap_or(0)), ..wait });
            }
        };
        match state {
            State::Ready(open) => Ok(open),
            State::Failed(why) => Err(Failure::new(422, why)),
            _ => Err(Failure::internal("a recording is neither open nor failed")),
        }
    }
}

/// Returns whether a recording has grown since it was read, and another look is worth the time.
fn is_stale(open: &Open, recording: &Recording) -> bool {
    let pause = (open.took * 10).max(Duration::from_secs(2));
    open.at.elapsed() > pause && recording.bytes() != open.bytes
}
