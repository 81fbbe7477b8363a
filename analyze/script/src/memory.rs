//! The memory of scripts that have limits: what the language's own limits don't see.

use crate::engine::Limits;
use prof_analyze::Job;
use prof_os::status::Status;
use rhai::{AST, ASTNode, Dynamic, Engine, ImmutableString, Stmt};
use std::cell::RefCell;
use std::collections::HashSet;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Returns the bytes of the process's own memory that are resident or swapped out; 0 if they are not known.
pub(crate) fn own_bytes() -> u64 {
    let status = std::fs::read("/proc/self/status").ok().map(|text| Status::parse(&text));
    let field = |name| status.as_ref().and_then(|s| s.bytes(name)).unwrap_or(0);
    field("RssAnon").saturating_add(field("VmSwap"))
}

/// Ends a script whose time is over, or which makes the process too large: also in the midst of a pass over an index.
/// The language looks at the size of a value when a function has changed it, but not when an element is assigned:
/// `map[key] = text` grows without an end.
pub(crate) struct Watch {
    running: Option<(Sender<()>, JoinHandle<()>)>,
    too_large: Arc<AtomicBool>,
}

/// Time between two looks at the memory: each takes some 50 us.
const LOOK: Duration = Duration::from_millis(10);

impl Watch {
    /// Begins to watch; what the process has now is not the script's.
    pub(crate) fn new(job: &Job, limits: Limits) -> Self {
        let (done, ended) = channel::<()>();
        let too_large = Arc::new(AtomicBool::new(false));
        let (job, large) = (job.clone(), too_large.clone());
        let (began, most) = (Instant::now(), own_bytes().saturating_add(limits.memory));
        let wait = move || {
            while ended.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
                large.fetch_or(own_bytes() > most, Relaxed);
                if large.load(Relaxed) || began.elapsed() >= limits.time {
                    job.cancel();
                    break;
                }
            }
        };
        // Without the thread, time is still looked at between operations.
        let thread = std::thread::Builder::new().name("script-watch".into()).spawn(wait);
        Self { running: thread.ok().map(|thread| (done, thread)), too_large }
    }

    /// Returns whether the script was ended as the process had grown too large.
    pub(crate) fn was_too_large(&self) -> bool {
        self.too_large.load(Relaxed)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some((done, thread)) = self.running.take() {
            drop(done);
            let _ = thread.join();
        }
    }
}

/// Returns whether the text of a value has at most about so many bytes. Values are longer than the language lets them
/// become if their elements were assigned.
pub(crate) fn fits(value: &Dynamic, most: &mut usize) -> bool {
    const ELEMENT: usize = 4;
    let Some(rest) = most.checked_sub(ELEMENT) else { return false };
    *most = rest;
    if let Some(text) = value.read_lock::<ImmutableString>() {
        let rest = most.checked_sub(text.len());
        *most = rest.unwrap_or(0);
        return rest.is_some();
    }
    if let Some(array) = value.read_lock::<rhai::Array>() {
        return array.iter().all(|v| fits(v, most));
    }
    if let Some(map) = value.read_lock::<rhai::Map>() {
        return map.iter().all(|(key, v)| {
            let rest = most.checked_sub(key.len());
            *most = rest.unwrap_or(0);
            rest.is_some() && fits(v, most)
        });
    }
    true
}

/// The variables that closures have captured. A value that holds a closure which has captured the value itself would
/// never be dropped: so all of them are emptied when the script is over.
#[derive(Clone, Default)]
pub(crate) struct Captured(Rc<RefCell<Cells>>);

#[derive(Default)]
struct Cells {
    all: Vec<Dynamic>,
    /// The addresses of their content.
    seen: HashSet<usize>,
}

impl Captured {
    /// Has the engine note the variables that closures of this code capture.
    pub(crate) fn watch(&self, engine: &mut Engine, code: &AST) {
        let mut captures = false;
        code.walk(&mut |path: &[ASTNode<'_>]| {
            captures |= matches!(path.last(), Some(ASTNode::Stmt(Stmt::Share(..))));
            !captures
        });
        if !captures {
            return;
        }
        let own = self.clone();
        #[allow(deprecated)] // It is not: the attribute says that it may change.
        engine.on_var(move |name, _, context| {
            if let Some(value) = context.scope().get(name).filter(|v| v.is_shared()) {
                own.note(value);
            }
            Ok(None)
        });
    }

    fn note(&self, value: &Dynamic) {
        // What is being changed was noted before.
        if value.is_locked() {
            return;
        }
        let Some(content) = value.read_lock::<Dynamic>() else { return };
        let mut cells = self.0.borrow_mut();
        if cells.seen.insert(std::ptr::from_ref::<Dynamic>(&content) as usize) {
            cells.all.push(value.clone());
        }
    }

    /// Empties all variables.
    pub(crate) fn empty(&self) {
        let cells = std::mem::take(&mut *self.0.borrow_mut());
        for mut value in cells.all {
            let content = value.write_lock::<Dynamic>().map(|mut v| std::mem::take(&mut *v));
            // It is dropped when nothing is borrowed any more, as it may hold the variable.
            drop(content);
        }
    }
}
