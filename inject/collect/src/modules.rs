//! Describes the target's modules: where they are mapped, their files, and their symbols where those can't be read
//! later.

use crate::maps::Maps;
use crate::output::Output;
use crate::symbols::ElfImage;
use crate::target::Watched;
use prof_os::files::{open_below, open_regular};
use prof_os::maps::Map;
use prof_os::process::folder;
use prof_trace::modules::{bits, ready};
use prof_trace::records::{Module, kind};
use prof_trace::shared::{MODULES, Module as Entry, Shared};
use prof_trace::ticks::Ticks;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// Longest wait, at the end of a recording, for symbols that are still being read.
const PATIENCE: Duration = Duration::from_secs(10);
/// Shortest interval between two reads of the mappings for new modules.
const MAPS_EVERY: Duration = Duration::from_millis(50);

/// The modules that contain recorded code addresses.
#[derive(Debug)]
pub(crate) struct Modules {
    written: BTreeMap<u16, Module>,
    /// Modules to be written, and when they were first wanted: older mappings don't show them.
    wanted: Vec<(u16, Instant)>,
    /// The target's working directory, which relative names refer to.
    cwd: Option<PathBuf>,
    jobs: Option<Sender<Job>>,
    thread: Option<std::thread::JoinHandle<()>>,
    receive: Receiver<Vec<u8>>,
    running: usize,
    /// Files whose symbols can be read later, unless they are replaced meanwhile.
    held: BTreeMap<u16, Held>,
    discovered: usize,
    maps_took: Duration,
}

impl Modules {
    /// Creates an empty list.
    pub(crate) fn new() -> Self {
        let (jobs, todo) = channel::<Job>();
        let (send, receive) = channel();
        let work = move || {
            for job in todo {
                let _ = send.send(job.symbols().unwrap_or_default());
            }
        };
        // A separate thread reads symbols, so that draining goes on.
        let thread = std::thread::Builder::new().name("prof-symbols".into()).spawn(work);
        let (written, wanted) = Default::default();
        Self {
            written,
            wanted,
            cwd: None,
            jobs: thread.is_ok().then_some(jobs),
            thread: thread.ok(),
            receive,
            running: 0,
            held: BTreeMap::new(),
            discovered: 0,
            maps_took: Duration::ZERO,
        }
    }

    /// Notes that a code address lies in this module.
    pub(crate) fn want(&mut self, number: u16) {
        let is_wanted = self.wanted.iter().any(|w| w.0 == number);
        let new = !self.written.contains_key(&number) && !is_wanted;
        if usize::from(number) <= MODULES && number != 0 && new {
            self.wanted.push((number, Instant::now()));
        }
    }

    /// Looks for modules that no event has named yet, as they may be unloaded before one does. Cheap if there are none.
    pub(crate) fn discover(&mut self, shared: &Shared) {
        let n = (shared.control().modules.load(Acquire) as usize).min(MODULES);
        while self.discovered < n {
            let Some(m) = shared.module(self.discovered) else { break };
            if m.ready.load(Acquire) == 0 {
                break; // being filled in
            }
            self.discovered += 1;
            self.want(self.discovered as u16);
        }
    }

    /// Returns whether modules wait to be written.
    pub(crate) fn has_new(&self) -> bool {
        !self.wanted.is_empty()
    }

    /// Notes the target's working directory, which can't be read after its end.
    pub(crate) fn note_cwd(&mut self, target: &Watched) {
        let link = std::fs::read_link(format!("{}/cwd", folder(target.pid())));
        self.cwd = link.ok().filter(|p| p.is_absolute()).or(self.cwd.take());
    }

    /// Writes the wanted modules that can be described. Others stay wanted. So do those that need the mappings to be
    /// read again, which is done only now and then, or if this is the `last` chance.
    pub(crate) fn write(
        &mut self,
        shared: &Shared,
        maps: &mut Maps,
        target: &Watched,
        now: Ticks,
        last: bool,
        out: &mut Output,
    ) {
        if self.wanted.is_empty() {
            return;
        }
        let is_new = |since: &Instant| maps.read_at.is_none_or(|at| at < *since);
        let entry = |number: u16| shared.module(usize::from(number) - 1);
        let filled = |w: &&(u16, Instant)| entry(w.0).is_some_and(|m| m.ready.load(Acquire) != 0);
        if self.wanted.iter().filter(filled).any(|w| is_new(&w.1)) {
            let limit = MAPS_EVERY.min(self.maps_took * 20);
            if last || maps.read_at.is_none_or(|t| t.elapsed() > limit) {
                let began = Instant::now();
                maps.read();
                self.maps_took = began.elapsed();
                self.note_cwd(target);
            }
        }
        for (number, since) in std::mem::take(&mut self.wanted) {
            let mapped = maps.read_at.is_some_and(|at| at >= since);
            let found = Finder { shared, maps, mapped, target, cwd: self.cwd.as_deref() };
            match (mapped || maps.gone).then(|| found.describe(number, now)).flatten() {
                Some((module, job)) => {
                    out.put(kind::MODULE, &module.encode());
                    self.written.insert(number, module);
                    match job {
                        Some(Symbols::Now(job)) => self.start(job),
                        Some(Symbols::Later(held)) if self.held.len() < MOST_HELD => {
                            self.held.insert(number, held);
                        }
                        _ => {}
                    }
                }
                None => self.wanted.push((number, since)),
            }
        }
    }

    fn start(&mut self, job: Job) {
        let sent = self.jobs.as_ref().is_some_and(|j| j.send(job).is_ok());
        self.running += usize::from(sent);
    }

    /// Writes symbols that have been read, and modules that were unloaded.
    pub(crate) fn look(&mut self, shared: &Shared, target: &Watched, now: Ticks, out: &mut Output) {
        self.look_at_held();
        self.note_cwd(target);
        while let Ok(symbols) = self.receive.try_recv() {
            self.take(&symbols, out);
        }
        for (number, m) in &mut self.written {
            let Some(entry) = shared.module(usize::from(*number) - 1) else { continue };
            if m.unloaded == Ticks::ZERO && entry.ready.load(Acquire) == 2 {
                m.unloaded = now.max(Ticks(1));
                out.put(kind::MODULE, &m.encode());
            }
        }
    }

    /// Starts to read held files that have been replaced under their path.
    fn look_at_held(&mut self) {
        let replaced: Vec<u16> =
            self.held.iter().filter(|(_, h)| !h.is_there()).map(|(n, _)| *n).collect();
        for number in replaced {
            if let Some(h) = self.held.remove(&number) {
                self.start(Job { file: h.file, memory: None, number: number.into() });
            }
        }
    }

    /// Waits for symbols that are still being read.
    pub(crate) fn finish(&mut self, out: &mut Output) {
        while self.running > 0 {
            let Ok(symbols) = self.receive.recv_timeout(PATIENCE) else { return };
            self.take(&symbols, out);
        }
    }

    fn take(&mut self, symbols: &[u8], out: &mut Output) {
        self.running = self.running.saturating_sub(1);
        if !symbols.is_empty() {
            out.put(kind::SYMBOLS, symbols);
        }
    }
}

impl Drop for Modules {
    /// Ends the thread, unless it has been blocked in a file system for longer than `PATIENCE`.
    fn drop(&mut self) {
        self.jobs = None;
        if self.running == 0
            && let Some(t) = self.thread.take()
        {
            let _ = t.join();
        }
    }
}

/// Input of the search for a module's file.
struct Finder<'a> {
    shared: &'a Shared<'a>,
    maps: &'a Maps,
    /// Whether the mappings were read after the module was seen; otherwise they are valid only for modules that are
    /// never unloaded.
    mapped: bool,
    target: &'a Watched,
    cwd: Option<&'a Path>,
}

impl Finder<'_> {
    /// Describes a module, and says where its symbols are if they must be saved; `None` if the hook has not filled in
    /// its entry.
    fn describe(&self, number: u16, now: Ticks) -> Option<(Module, Option<Symbols>)> {
        let entry = self.shared.module(usize::from(number).checked_sub(1)?)?;
        let loaded = || entry.ready.load(Acquire) == ready::LOADED;
        if entry.ready.load(Acquire) == 0 {
            return None;
        }
        let mut m = Module {
            number: number.into(),
            start: entry.start.load(Relaxed),
            end: entry.end.load(Relaxed),
            bias: entry.bias.load(Relaxed),
            loaded: now,
            ..Default::default()
        };
        // Another module may have been mapped there by now. The mapping is that of this module if the module was there
        // before the mappings were read, and is still there.
        let stays = entry.flags.load(Relaxed) & bits::STAYS != 0;
        let mapping = self.maps.at(m.start).filter(|_| loaded() && (self.mapped || stays));
        let image = self.target.mem().filter(|_| loaded());
        let image = image.and_then(|mem| ElfImage::memory(mem, m.start, m.bias));
        m.build_id = image.as_ref().and_then(ElfImage::build_id).unwrap_or_default();
        let Some(mapping) = mapping.filter(|_| loaded()) else {
            if !loaded() {
                m.unloaded = now.max(Ticks(1));
                m.build_id.clear();
            }
            let job = self.by_name(entry, &mut m);
            return Some((m, job));
        };
        m.path = match mapping.name.is_empty() {
            true => name_of(entry),
            false => mapping.path().to_string_lossy().into_owned(),
        };
        if m.build_id.is_empty() {
            // Some file systems tell another device in the list of mappings than of the file.
            let by_tables = || ElfImage::file(&self.file_of(entry, &m.path)?)?.build_id();
            let build_id = build_id_of_file(&m.path, mapping).or_else(by_tables);
            m.build_id = build_id.unwrap_or_default();
        }
        let job = Job::of(self.target, mapping, &m);
        Some((m, job))
    }

    /// Opens the file at a path of the target's, if it has the copied unwind tables of this module.
    fn file_of(&self, entry: &Entry, path: &str) -> Option<File> {
        let file = match self.target.is_elsewhere() {
            false => open_regular(Path::new(path)),
            true => open_below(&self.target.root(), Path::new(path)),
        };
        file.ok().filter(|file| has_tables(self.shared, entry, file))
    }

    /// Finds the file of an unloaded module by the linker's name; the file must contain the copied unwind tables.
    fn by_name(&self, entry: &Entry, m: &mut Module) -> Option<Symbols> {
        m.path = name_of(entry);
        let path = Path::new(&m.path);
        if path.is_relative() && path.components().count() > 1 {
            let full = self.cwd?.join(path.strip_prefix(".").unwrap_or(path));
            m.path = full.to_str()?.into();
        }
        let elsewhere = self.target.is_elsewhere();
        let file = self.file_of(entry, &m.path)?;
        m.build_id = ElfImage::file(&file)?.build_id().unwrap_or_default();
        Some(match elsewhere {
            false => Symbols::Later(Held { file, path: m.path.clone() }),
            true => Symbols::Now(Job { file, memory: None, number: m.number }),
        })
    }
}

/// Returns whether a file has the copied unwind tables of a module at their addresses.
fn has_tables(shared: &Shared, entry: &Entry, file: &File) -> bool {
    let Some(image) = ElfImage::file(file) else { return false };
    let bias = entry.bias.load(Relaxed);
    let copies = prof_trace::modules::Modules::new(*shared);
    let mut tables = entry.tables.iter().filter_map(|t| {
        let copy = copies.copy(t.at.load(Relaxed), t.len.load(Relaxed));
        (!copy.is_empty()).then(|| (t.addr.load(Relaxed).wrapping_sub(bias), copy))
    });
    // The first is the search table. Copies of the others may include bytes behind their end.
    tables.next().is_some_and(|(vaddr, copy)| image.has(vaddr, copy))
}

/// Returns the dynamic linker's name of the module.
fn name_of(entry: &Entry) -> String {
    let bytes: Vec<u8> =
        entry.name.iter().map(|b| b.load(Relaxed)).take_while(|b| *b != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Greatest number of files that are held open.
const MOST_HELD: usize = 400;

/// Says when to read a module's symbols.
enum Symbols {
    /// The symbols are read now, as a reader of the recording will not find the file.
    Now(Job),
    /// The symbols can be read later, from the file's path.
    Later(Held),
}

/// The file of a module, held open as a package manager may replace it.
#[derive(Debug)]
struct Held {
    file: File,
    path: String,
}

impl Held {
    /// Returns whether its path still leads to the same file.
    fn is_there(&self) -> bool {
        let id = |m: std::fs::Metadata| (m.dev(), m.ino(), m.mtime(), m.mtime_nsec());
        let there = std::fs::metadata(&self.path).map(id).ok();
        there.is_some() && there == self.file.metadata().map(id).ok()
    }
}

/// A module whose symbols are to be read.
#[derive(Debug)]
struct Job {
    file: File,
    /// Address and bias of the module, if `file` is the target's memory.
    memory: Option<(u64, u64)>,
    number: u32,
}

impl Job {
    /// Finds the source of a module's symbols. They are read now unless its file can be found under its path from here.
    fn of(target: &Watched, mapping: &Map, m: &Module) -> Option<Symbols> {
        let number = m.number;
        if mapping.name == b"[vdso]" {
            let file = target.mem()?.try_clone().ok()?;
            return Some(Symbols::Now(Self { file, memory: Some((m.start, m.bias)), number }));
        }
        if mapping.inode == 0 {
            return None;
        }
        let same = |file: &File| is_file_of(file, mapping, &m.build_id);
        // Files of a container may disappear with it, even if they can be read from here.
        if !target.is_elsewhere()
            && let Some(file) = open_regular(Path::new(&m.path)).ok().filter(same)
        {
            return Some(Symbols::Later(Held { file, path: m.path.clone() }));
        }
        let (proc, range) =
            (format!("/proc/{}", target.pid()), format!("{:x}-{:x}", mapping.start, mapping.end));
        let file = |name: &str| open_regular(&Path::new(&proc).join(name)).ok();
        let found = file(&format!("map_files/{range}"))
            .filter(same)
            .or_else(|| open_below(&target.root(), Path::new(&m.path)).ok().filter(same))
            .or_else(|| file("exe").filter(same));
        match found {
            Some(file) => Some(Symbols::Now(Self { file, memory: None, number })),
            // The file was deleted and can't be opened from here: the loaded part of it has the names that the linker
            // needs.
            None => {
                let file = target.mem()?.try_clone().ok()?;
                Some(Symbols::Now(Self { file, memory: Some((m.start, m.bias)), number }))
            }
        }
    }

    fn symbols(&self) -> Option<Vec<u8>> {
        let image = match self.memory {
            Some((start, bias)) => ElfImage::memory(&self.file, start, bias)?,
            None => ElfImage::file(&self.file)?,
        };
        Some(image.symbols(self.number)?.encode())
    }
}

/// Reads the build ID from the file if the memory is gone, but the file is the one that was mapped.
fn build_id_of_file(path: &str, mapping: &Map) -> Option<Vec<u8>> {
    let file = open_regular(Path::new(path)).ok().filter(|f| is_file_of(f, mapping, &[]))?;
    ElfImage::file(&file)?.build_id()
}

/// Returns whether a file is the mapped one: by its build ID or, if it has none, by device and inode.
fn is_file_of(file: &File, mapping: &Map, build_id: &[u8]) -> bool {
    if !build_id.is_empty() {
        return ElfImage::file(file).and_then(|i| i.build_id()).is_some_and(|id| id == build_id);
    }
    let Ok(meta) = file.metadata() else { return false };
    let device = (libc::major(meta.dev()), libc::minor(meta.dev()));
    meta.is_file() && meta.ino() == mapping.inode && device == mapping.device
}
