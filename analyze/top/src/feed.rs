//! Follows a recording in a thread of its own, and takes a snapshot of it at each interval.

use crate::numbers::Numbers;
use crate::snapshot::{Cost, Ended, Moment, RowStats, Snapshot, Thread};
use prof_analyze::live::{Book, Namer, Pace, StatsByThread, Unnamed, read};
use prof_analyze::query::Span;
use prof_analyze::symbols::SymbolOptions;
use prof_analyze::{Error, Follower, Job, Progress};
use prof_os::Pid;
use prof_os::process::{has_ended, is_running};
use prof_os::stat::Stat;
use prof_trace::ticks::Ticks;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// Interval at which the recording is read, so that a snapshot has little left to read.
const READ: Duration = Duration::from_millis(100);
/// Number of stacks whose names are asked for at a time, so that those on the screen never wait for long.
const BATCH: usize = 512;
/// Least time between two copies of the records, which are needed for modules that are new.
const RENEW: Duration = Duration::from_secs(5);
/// Number of moments that are kept: when there are more, every second one goes.
const MOMENTS: usize = 2048;

/// A recording to be followed.
#[derive(Clone, Debug, Default)]
pub struct Source {
    /// The process.
    pub pid: Pid,
    /// Name of the process.
    pub name: String,
    /// The recording.
    pub path: PathBuf,
    /// Process id and start time of the collector.
    pub collector: (Pid, u64),
}

/// Options for following a recording.
#[derive(Clone, Debug)]
pub struct FeedOptions {
    /// Time between two snapshots.
    pub interval: Duration,
    /// Limit of this process's own resident memory, in bytes: beyond it nothing is read any more.
    pub memory: u64,
    /// Options of the search for symbols.
    pub symbols: SymbolOptions,
}

/// The results of the reading thread so far.
#[derive(Default)]
struct Found {
    latest: Option<Arc<Snapshot>>,
    course: Vec<Moment>,
}

/// A recording that is being followed.
pub struct Feed {
    found: Arc<Mutex<Found>>,
    wanted: Arc<Mutex<Vec<u32>>>,
    stop: Arc<AtomicBool>,
    job: Job,
    book: Arc<RwLock<Book>>,
}

impl Feed {
    /// Begins to follow a recording.
    ///
    /// # Errors
    /// If the file can't be opened, or there is no thread for it.
    pub fn start(source: Source, options: FeedOptions) -> Result<Self, String> {
        let follower = Follower::observed(&source.path, StatsByThread::default());
        let follower = follower.map_err(|e| e.to_string())?;
        let namer = Namer::start().map_err(|e| format!("cannot start a thread: {e}"))?;
        let feed = Self {
            found: Arc::default(),
            wanted: Arc::default(),
            stop: Arc::default(),
            job: Job::default(),
            book: namer.book(),
        };
        let mut worker = Worker {
            follower,
            numbers: Numbers::default(),
            namer,
            source,
            options,
            found: Arc::clone(&feed.found),
            wanted: Arc::clone(&feed.wanted),
            stop: Arc::clone(&feed.stop),
            pace: Pace::default(),
            thread_pace: Pace::default(),
            oldest: Ages::default(),
            asked: 0,
            modules: usize::MAX,
            renewed: None,
            load: Load::default(),
            groups_then: 0,
        };
        let job = feed.job.clone();
        let run = move || job.run(|| worker.run());
        let thread = std::thread::Builder::new().name("feed".into()).spawn(run);
        thread.map_err(|e| format!("cannot start a thread: {e}"))?;
        Ok(feed)
    }

    /// Returns the last snapshot; `None` while the recording is read for the first time.
    pub fn latest(&self) -> Option<Arc<Snapshot>> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner).latest.clone()
    }

    /// Returns how live bytes and resident memory went, in the order of time.
    pub fn course(&self) -> Vec<Moment> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner).course.clone()
    }

    /// Returns how much of the recording was read at first, from 0 to 1.
    pub fn progress(&self) -> f64 {
        let p = self.job.progress();
        if p.total == 0 { 0.0 } else { (p.done as f64 / p.total as f64).min(1.0) }
    }

    /// Returns the names of stacks.
    pub fn book(&self) -> &RwLock<Book> {
        &self.book
    }

    /// Asks for the names of stacks before those of others.
    pub fn want(&self, stacks: Vec<u32>) {
        *self.wanted.lock().unwrap_or_else(PoisonError::into_inner) = stacks;
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        // The threads are not waited for, as they may be reading a large file of symbols.
        self.stop.store(true, Relaxed);
        self.job.cancel();
    }
}

struct Worker {
    follower: Follower<StatsByThread>,
    numbers: Numbers,
    namer: Namer,
    source: Source,
    options: FeedOptions,
    found: Arc<Mutex<Found>>,
    wanted: Arc<Mutex<Vec<u32>>>,
    stop: Arc<AtomicBool>,
    pace: Pace,
    thread_pace: Pace,
    oldest: Ages,
    /// Number of stacks whose names were asked for in their order.
    asked: u32,
    /// Number of modules when the records were copied.
    modules: usize,
    renewed: Option<Instant>,
    groups_then: usize,
    load: Load,
}

impl Worker {
    fn run(&mut self) {
        let mut due = Instant::now();
        while !self.stop.load(Relaxed) {
            // Before the last read, so that what was written until then is read.
            let grows = is_running(self.source.collector.0, self.source.collector.1);
            let read = match self.follower.poll() {
                Err(Error::WentOver { .. }) => self.go_over(),
                read => read,
            };
            self.numbers.give(&self.follower);
            let ended = match &read {
                Err(Error::Cancelled { .. }) => return,
                Err(e) => Some(format!("the recording can't be followed: {e}")),
                Ok(p) if p.finished || !grows => Some(self.why()),
                Ok(_) => self.too_large(),
            };
            if ended.is_some() || Instant::now() >= due {
                let progress = read.unwrap_or_default();
                let snapshot = self.snapshot(&progress, ended.clone());
                self.keep(snapshot);
                due = (due + self.options.interval).max(Instant::now());
            }
            if ended.is_some() {
                break;
            }
            self.ask_for_names();
            std::thread::sleep(READ.min(self.options.interval));
        }
        // Names are still looked up, as the last figures stay on the screen.
        while !self.stop.load(Relaxed) {
            self.ask_for_names();
            std::thread::sleep(READ);
        }
    }

    /// Goes on in the file of figures that has taken the place of the recording. Stacks keep their numbers, so that growth
    /// is counted on.
    fn go_over(&mut self) -> Result<Progress, Error> {
        let mut follower = Follower::observed(&self.source.path, StatsByThread::default())?;
        let read = follower.poll()?;
        self.numbers.keep(&self.follower);
        self.follower = follower;
        // Both files have the changes of the last seconds, so rates and ages are counted anew.
        (self.pace, self.thread_pace, self.oldest) = Default::default();
        self.asked = 0;
        Ok(read)
    }

    /// Returns why the recording has ended.
    fn why(&self) -> String {
        let (pid, name) = (self.source.pid, &self.source.name);
        if has_ended(pid) {
            return format!("process {pid} ({name}) has ended");
        }
        match &self.follower.meta().end {
            Some(_) => format!("the recording of process {pid} has ended, and the process goes on"),
            None => {
                let path = self.source.path.display();
                format!(
                    "the collector of process {pid} has died; `prof attach {pid} -o {path}` goes on"
                )
            }
        }
    }

    /// Returns why no more is read, if this process has grown beyond its limit.
    fn too_large(&self) -> Option<String> {
        let rss = bytes(&Stat::of(own())?)?;
        (rss > self.options.memory).then(|| {
            let (is, limit) = (prof_trace::values::text::bytes(rss), self.options.memory);
            let limit = prof_trace::values::text::bytes(limit);
            format!("prof top takes {is}, more than its limit of {limit}: nothing is read any more; --memory raises it")
        })
    }

    fn keep(&mut self, snapshot: Snapshot) {
        let moment = Moment {
            at_ns: snapshot.at_ns,
            live: snapshot.total.live,
            rss: snapshot.rss.unwrap_or(0),
        };
        // What was before this view began is drawn once.
        let past = self.renewed.is_none().then(|| self.past());
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        found.course.extend(past.into_iter().flatten());
        if found.course.last().is_none_or(|m| m.at_ns < moment.at_ns) {
            found.course.push(moment);
        }
        if found.course.len() > MOMENTS {
            let mut n = 0;
            found.course.retain(|_| {
                n += 1;
                n % 2 == 0
            });
        }
        found.latest = Some(Arc::new(snapshot));
    }

    /// Returns how the recording went until now.
    fn past(&self) -> Vec<Moment> {
        let to_ns = self.follower.now_ns();
        if to_ns == 0 {
            return Vec::new();
        }
        let t = self.follower.timeline(&Span { from_ns: 0, to_ns, width: MOMENTS / 8 });
        let rss = |i: usize| t.rss.as_ref().and_then(|b| b.last.get(i).copied()).unwrap_or(0);
        let moments = t.live_bytes.last.iter().enumerate().map(|(i, live)| Moment {
            at_ns: t.edges_ns.get(i + 1).copied().unwrap_or(to_ns),
            live: *live,
            rss: rss(i),
        });
        moments.filter(|m| m.at_ns < to_ns).collect()
    }

    fn snapshot(&mut self, p: &Progress, ended: Option<String>) -> Snapshot {
        let (meta, now) = (self.follower.meta(), self.follower.now_ns());
        let groups = self.follower.ageless_groups();
        let numbers = 0..self.numbers.count(groups.len()) as u32;
        // Of a stack that had blocks before the recording went over, and has not been seen in the figures yet, nothing is known.
        let of = |number: u32| self.numbers.group(number).and_then(|g| groups.get(g as usize));
        let figures_of = |number| of(number).map(|g| g.figures).unwrap_or_default();
        let threads = self.follower.observer().stats();
        let allocations = |f: &prof_analyze::heap::BlockStats| f.allocations + f.reallocations;
        let all = numbers.clone().map(figures_of).map(|f| (f.live_bytes, allocations(&f)));
        self.pace.take(Ticks(now), all);
        let of_threads = threads.iter().map(|l| (l.live_bytes as u64, l.allocations as u64));
        self.thread_pace.take(Ticks(now), of_threads);
        self.oldest.look(&self.follower);
        let clock = &meta.clock;
        let ticks = self.follower.now_ticks();
        let age = |t: Option<&Ticks>| {
            t.filter(|t| **t != Ticks::MAX).map_or(0, |t| clock.between(*t, ticks))
        };
        let figures = numbers.map(|number| {
            let (growth, rate) = self.pace.of(number as usize);
            let f = figures_of(number);
            let group = self.numbers.group(number);
            let oldest = group.and_then(|g| self.oldest.stacks.get(g as usize));
            RowStats {
                live: f.live_bytes,
                blocks: f.live_count,
                peak: f.peak_bytes,
                allocations: allocations(&f),
                growth,
                rate,
                age: if f.live_count == 0 { 0 } else { age(oldest) },
            }
        });
        let stacks: Vec<RowStats> = figures.collect();
        let threads = threads.iter().enumerate().map(|(i, l)| {
            let (growth, rate) = self.thread_pace.of(i);
            let thread = self.follower.thread_of(i as u32).and_then(|n| meta.threads.get(&n));
            let blocks = l.live_count.max(0.0).round() as u64;
            Thread {
                tid: thread.map_or(0, |t| t.tid),
                name: thread.map_or_else(String::new, |t| t.name.clone()),
                figures: RowStats {
                    live: l.live_bytes.max(0.0).round() as u64,
                    blocks,
                    peak: l.peak_bytes.round() as u64,
                    allocations: l.allocations.round() as u64,
                    growth,
                    rate,
                    age: if blocks == 0 { 0 } else { age(self.oldest.threads.get(i)) },
                },
            }
        });
        let threads = threads.collect();
        let f = &p.totals.figures;
        let mut total = RowStats {
            live: f.live_bytes,
            blocks: f.live_count,
            peak: f.peak_bytes,
            allocations: allocations(f),
            ..RowStats::default()
        };
        for s in &stacks {
            total.growth += s.growth;
            total.rate += s.rate;
        }
        let is_sample = meta.target.capture().is_sampled();
        let (cost, events) = self.load.look(&self.source, p.events, now);
        Snapshot {
            at_ns: now,
            is_on: meta.state().0,
            is_sample,
            culled_ns: meta.stripped.as_ref().map_or(0, |s| s.threshold_ns),
            figures_since_ns: meta.went_over.as_ref().map(|w| clock.ns(w.ticks)),
            total,
            events,
            lost: p.lost,
            rss: self.follower.kernel().map(|k| k.rss_bytes),
            written: p.bytes,
            cost,
            stacks,
            threads,
            ended: ended.map(|why| Ended { why }),
        }
    }

    /// Asks for names: first of what is shown, then of all others in their order.
    fn ask_for_names(&mut self) {
        if self.namer.waiting() > BATCH {
            return;
        }
        let groups = self.numbers.count(self.follower.groups_len());
        let modules = self.follower.meta().modules.len();
        let more = groups > self.groups_then * 2 && self.asked > 0;
        if modules != self.modules || more {
            if self.renewed.is_some_and(|at| at.elapsed() < RENEW) {
                return;
            }
            let Ok(mut analysis) = self.follower.analysis() else { return };
            analysis.set_symbol_options(self.options.symbols.clone());
            self.namer.renew(analysis);
            (self.modules, self.renewed) = (modules, Some(Instant::now()));
            self.groups_then = groups;
        }
        let mut wanted =
            std::mem::take(&mut *self.wanted.lock().unwrap_or_else(PoisonError::into_inner));
        let book = self.namer.book();
        let known = read(&book);
        wanted.retain(|g| known.stack(*g).is_none() && (*g as usize) < groups);
        wanted.truncate(BATCH);
        drop(known);
        let until = (self.asked as usize + BATCH).min(groups) as u32;
        wanted.extend(self.asked..until);
        self.asked = until;
        if wanted.is_empty() {
            return;
        }
        let meta = self.follower.meta();
        let stack = |number: u32| {
            let node = self.follower.node_of(self.numbers.group(number)?);
            Some(Unnamed { group: number, pcs: meta.stack(node), cut: meta.is_cut(node) })
        };
        self.namer.ask(wanted.into_iter().filter_map(stack).collect());
    }
}

/// Returns the resident bytes of a process.
fn bytes(stat: &Stat) -> Option<u64> {
    stat.rss().map(|pages| pages.saturating_mul(prof_os::page_size() as u64))
}

fn own() -> Pid {
    Pid::this()
}

/// The times of the oldest live blocks. To find them takes a pass over all live blocks.
#[derive(Default)]
struct Ages {
    stacks: Vec<Ticks>,
    threads: Vec<Ticks>,
    next: Option<Instant>,
}

impl Ages {
    /// Part of the time that may be spent on it.
    const PART: u32 = 20;

    fn look(&mut self, follower: &Follower<StatsByThread>) {
        let begin = Instant::now();
        if self.next.is_some_and(|next| begin < next) {
            return;
        }
        self.stacks.fill(Ticks::MAX);
        self.threads.fill(Ticks::MAX);
        let put = |all: &mut Vec<Ticks>, at: u32, time: Ticks| {
            let at = at as usize;
            if at >= all.len() {
                all.resize(at + 1, Ticks::MAX);
            }
            all[at] = all[at].min(time);
        };
        for (_, b) in follower.blocks() {
            put(&mut self.stacks, b.group, b.time);
            put(&mut self.threads, b.thread_index, b.time);
        }
        self.next = Some(Instant::now() + begin.elapsed() * Self::PART);
    }
}

/// The resources that processes have used since the look before.
#[derive(Default)]
struct Load {
    before: Option<(Instant, [Option<u64>; 3])>,
    events: Option<(u64, u64)>,
    per_second: f64,
    cost: Cost,
}

impl Load {
    /// Least time between two looks at processor time, which the kernel counts in hundredths of a second.
    const LEAST: Duration = Duration::from_millis(900);

    /// Returns the cost, and events a second of the recording's own time.
    fn look(&mut self, source: &Source, events: u64, at_ns: u64) -> (Cost, f64) {
        if let Some((then, n)) = self.events.filter(|(then, _)| *then < at_ns) {
            let second = (at_ns - then) as f64 / 1e9;
            let now = events.saturating_sub(n) as f64 / second;
            self.per_second += (now - self.per_second) * (1.0 - (-second / 2.0).exp());
        }
        if self.events.is_none_or(|(then, _)| then < at_ns) {
            self.events = Some((at_ns, events));
        }
        let now = Instant::now();
        let elapsed = self.before.map(|(then, _)| now.duration_since(then));
        if elapsed.is_none_or(|e| e >= Self::LEAST) {
            let stats = [source.collector.0, source.pid, own()].map(Stat::living);
            let cpu = stats.clone().map(|s| s.map(|s| s.cpu_ms()));
            let part = |i: usize| {
                let (then, before) = self.before?;
                let ms = cpu[i]?.saturating_sub(before[i]?) as f64;
                Some((ms / now.duration_since(then).as_secs_f64() / 1e3) as f32)
            };
            let rss = |i: usize| stats[i].as_ref().and_then(bytes);
            self.cost = Cost {
                collector: part(0),
                target: part(1),
                own: part(2),
                collector_rss: rss(0),
                own_rss: rss(2),
            };
            self.before = Some((now, cpu));
        }
        (self.cost, self.per_second)
    }
}
