//! Names of the stacks of a recording that grows, each frame and each function once, looked up in a thread of their own.

use crate::Analysis;
use crate::askers::{Askers, Seen};
use crate::load::Pc;
use crate::style::printable;
use crate::symbols::{Frame, Symbolizer};
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

/// Greatest number of frames of all stacks together; stacks beyond it are not named.
const MOST: usize = 32 << 20;

/// The frames of a stack.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StackFrames {
    /// Ids of the frames, innermost first.
    pub frames: Box<[u32]>,
    /// Index among them of the frame that asked for the memory.
    pub asker: usize,
    /// Whether the outer frames are missing.
    pub cut: bool,
}

/// The names that are known so far. Ids are indices; they only become more.
#[derive(Default)]
pub struct Book {
    frames: Vec<Frame>,
    /// Id of the function, or of what stands for it, by frame.
    functions: Vec<u32>,
    /// Id of the module's path, by frame.
    modules: Vec<u32>,
    texts: Vec<Arc<str>>,
    text_ids: HashMap<Arc<str>, u32>,
    by_pc: HashMap<Pc, Box<[u32]>>,
    stacks: Vec<Option<StackFrames>>,
    named: usize,
    frames_held: usize,
    left_out: usize,
    /// Changes when askers change.
    askers: u64,
}

impl Book {
    /// Returns the names of a stack, given the index of its group; `None` if they are not known yet.
    pub fn stack(&self, group: u32) -> Option<&StackFrames> {
        self.stacks.get(group as usize)?.as_ref()
    }

    /// Returns a frame.
    pub fn frame(&self, id: u32) -> Option<&Frame> {
        self.frames.get(id as usize)
    }

    /// Returns all frames, by their ids.
    pub fn frames(&self) -> &[Frame] {
        &self.frames
    }

    /// Returns the id of a frame's function. A frame without a name has its module and offset instead.
    pub fn function(&self, frame: u32) -> u32 {
        self.functions.get(frame as usize).copied().unwrap_or(0)
    }

    /// Returns the id of the path of a frame's module.
    pub fn module(&self, frame: u32) -> u32 {
        self.modules.get(frame as usize).copied().unwrap_or(0)
    }

    /// Returns the text of a function or module.
    pub fn text(&self, id: u32) -> &str {
        self.texts.get(id as usize).map_or("", |t| t)
    }

    /// Returns the number of texts.
    pub fn texts(&self) -> usize {
        self.texts.len()
    }

    /// Returns a number that changes when names of stacks have been added, or who asked has.
    pub fn version(&self) -> (usize, u64) {
        (self.named, self.askers)
    }

    /// Returns the number of stacks that are not named, as there would be too many.
    pub fn left_out(&self) -> usize {
        self.left_out
    }

    /// Adds a stack whose code addresses are known.
    fn add(&mut self, stack: &Unnamed, askers: Option<&Askers>) {
        let at = stack.group as usize;
        if at >= self.stacks.len() {
            self.stacks.resize(at + 1, None);
        }
        if self.stacks[at].is_some() {
            return;
        }
        let known = stack.pcs.iter().filter_map(|pc| self.by_pc.get(pc));
        let mut frames: Vec<u32> = known.flat_map(|ids| ids.iter().copied()).collect();
        if self.frames_held + frames.len() > MOST {
            frames.truncate(1);
            self.left_out += 1;
        }
        self.frames_held += frames.len();
        let asker = self.asker(&frames, askers);
        self.stacks[at] = Some(StackFrames { frames: frames.into(), asker, cut: stack.cut });
        self.named += 1;
    }

    fn asker(&self, frames: &[u32], askers: Option<&Askers>) -> usize {
        let seen = |i: usize| frames.get(i).and_then(|id| self.frame(*id)).map(Seen::of);
        askers.and_then(|a| a.find(seen)).map_or(0, |a| a.asker)
    }

    /// Finds out anew who asked, of all stacks.
    fn ask_again(&mut self, askers: &Askers) {
        let mut stacks = std::mem::take(&mut self.stacks);
        for s in stacks.iter_mut().flatten() {
            s.asker = self.asker(&s.frames, Some(askers));
        }
        self.stacks = stacks;
        self.askers += 1;
    }

    fn learn(&mut self, pc: Pc, frames: &[Frame]) {
        let ids = frames.iter().map(|f| self.keep(f)).collect();
        self.by_pc.insert(pc, ids);
    }

    fn keep(&mut self, frame: &Frame) -> u32 {
        let id = self.frames.len() as u32;
        let shown = |t: &Option<Arc<str>>| t.as_deref().map(printable);
        let function = match (shown(&frame.function), shown(&frame.module)) {
            (Some(name), _) => name,
            (None, Some(module)) => {
                let base = crate::style::base(&module);
                format!("{base}+{:#x}", frame.offset.unwrap_or(frame.address))
            }
            (None, None) => format!("{:#x}", frame.address),
        };
        let module = shown(&frame.module).unwrap_or_else(|| "[no module]".into());
        let (function, module) = (self.intern(&function), self.intern(&module));
        self.functions.push(function);
        self.modules.push(module);
        let file = shown(&frame.file).map(|f| self.intern(&f) as usize);
        let file = file.map(|id| self.texts[id].clone());
        self.frames.push(Frame {
            function: frame.function.is_some().then(|| self.texts[function as usize].clone()),
            module: frame.module.is_some().then(|| self.texts[module as usize].clone()),
            file,
            ..frame.clone()
        });
        id
    }

    fn intern(&mut self, text: &str) -> u32 {
        if let Some(id) = self.text_ids.get(text) {
            return *id;
        }
        let (id, text): (u32, Arc<str>) = (self.texts.len() as u32, text.into());
        self.texts.push(text.clone());
        self.text_ids.insert(text, id);
        id
    }
}

/// A stack whose names are wanted.
#[derive(Clone, Debug, Default)]
pub struct Unnamed {
    /// Index of its group.
    pub group: u32,
    /// Code addresses of the stack, innermost first.
    pub pcs: Vec<Pc>,
    /// Whether the outer frames are missing.
    pub cut: bool,
}

enum Work {
    /// The records that say where symbols are, and the groups that show which functions are wrappers.
    Records(Box<Analysis>),
    Stacks(Vec<Unnamed>),
}

/// Looks names up in a thread of its own, which ends with this.
pub struct Namer {
    book: Arc<RwLock<Book>>,
    work: Sender<Work>,
    /// Number of stacks that wait for their names.
    waiting: Arc<AtomicUsize>,
}

impl Namer {
    /// Starts the thread.
    ///
    /// # Errors
    /// If the system has none.
    pub fn start() -> std::io::Result<Self> {
        let (work, todo) = channel();
        let (book, waiting) = (Arc::new(RwLock::new(Book::default())), Arc::default());
        let of_thread = (Arc::clone(&book), Arc::clone(&waiting));
        std::thread::Builder::new()
            .name("names".into())
            .spawn(move || name_all(&of_thread.0, &of_thread.1, &todo))?;
        Ok(Self { book, work, waiting })
    }

    /// Returns the names, which other threads may read.
    pub fn book(&self) -> Arc<RwLock<Book>> {
        Arc::clone(&self.book)
    }

    /// Gives it the records of this moment: needed first of all, and for modules that are new. What was waiting comes
    /// before them.
    pub fn renew(&self, analysis: Analysis) {
        let _ = self.work.send(Work::Records(Box::new(analysis)));
    }

    /// Asks for the names of stacks.
    pub fn ask(&self, stacks: Vec<Unnamed>) {
        self.waiting.fetch_add(stacks.len(), Relaxed);
        let _ = self.work.send(Work::Stacks(stacks));
    }

    /// Returns the number of stacks that wait for their names.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Relaxed)
    }
}

/// Returns the book for reading.
pub fn read(book: &RwLock<Book>) -> RwLockReadGuard<'_, Book> {
    book.read().unwrap_or_else(PoisonError::into_inner)
}

fn name_all(book: &RwLock<Book>, waiting: &AtomicUsize, todo: &Receiver<Work>) {
    let mut records = None;
    loop {
        match records.take() {
            None => match todo.recv() {
                Ok(Work::Records(r)) => records = Some(r),
                Ok(Work::Stacks(s)) => drop(waiting.fetch_sub(s.len(), Relaxed)),
                Err(_) => return,
            },
            Some(r) => match with_records(&r, book, waiting, todo) {
                Some(next) => records = Some(next),
                None => return,
            },
        }
    }
}

/// Names stacks until there are newer records, which it returns.
fn with_records(
    records: &Analysis,
    book: &RwLock<Book>,
    waiting: &AtomicUsize,
    todo: &Receiver<Work>,
) -> Option<Box<Analysis>> {
    let write = || book.write().unwrap_or_else(PoisonError::into_inner);
    let mut symbols = Symbolizer::new(records);
    let mut askers: Option<Askers> = None;
    loop {
        // Who the wrappers are takes longer than a few names: what is already wanted comes first.
        let work = match (todo.try_recv(), &askers) {
            (Ok(work), _) => work,
            (Err(_), None) => {
                let found = askers.insert(Askers::new(records, &mut symbols));
                write().ask_again(found);
                continue;
            }
            (Err(_), Some(_)) => todo.recv().ok()?,
        };
        match work {
            Work::Records(next) => return Some(next),
            Work::Stacks(stacks) => {
                for s in &stacks {
                    let known = read(book);
                    let missing = s.pcs.iter().filter(|pc| !known.by_pc.contains_key(pc));
                    let missing: Vec<Pc> = missing.copied().collect();
                    drop(known);
                    let found: Vec<_> =
                        missing.into_iter().map(|pc| (pc, symbols.peek(pc))).collect();
                    let mut book = write();
                    for (pc, frames) in &found {
                        if !book.by_pc.contains_key(pc) {
                            book.learn(*pc, frames);
                        }
                    }
                    book.add(s, askers.as_ref());
                    drop(book);
                    waiting.fetch_sub(1, Relaxed);
                }
            }
        }
    }
}
