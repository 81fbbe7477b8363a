//! The prompt of `prof script`: lines with history and completion, each answered at once.

use super::script::{exit_code, told};
use crate::term::{line as tell, say};
use anyhow::{Context as _, Result};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use prof_analyze::Job;
use prof_script::{Ran, Script, ScriptOptions};
use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Config, Context, Editor, Helper};
use std::cell::RefCell;
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Helps the editor: with the names of the language and those of the script so far.
struct Names {
    script: Rc<RefCell<Script>>,
    names: Vec<String>,
}

impl Helper for Names {}
impl Highlighter for Names {}

impl Hinter for Names {
    type Hint = String;
}

impl Validator for Names {
    fn validate(&self, c: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        // An empty line ends a piece of code also if it is not whole, so that nobody is caught.
        let input = c.input();
        let more = self.script.borrow().is_unfinished(input) && !input.ends_with("\n\n");
        Ok(if more { ValidationResult::Incomplete } else { ValidationResult::Valid(None) })
    }
}

impl Completer for Names {
    type Candidate = String;

    fn complete(
        &self,
        line: &str,
        at: usize,
        _: &Context<'_>,
    ) -> rustyline::Result<(usize, Vec<String>)> {
        let before = &line[..at];
        let is_part = |c: char| c.is_alphanumeric() || c == '_';
        let start = before
            .rfind(|c| !is_part(c))
            .map_or(0, |i| i + before[i..].chars().next().map_or(1, char::len_utf8));
        let word = &before[start..];
        let own = self.script.borrow().own_names();
        let all = self.names.iter().chain(&own).filter(|n| n.starts_with(word) && !word.is_empty());
        let mut found: Vec<String> = all.cloned().collect();
        found.sort();
        found.dedup();
        Ok((start, found))
    }
}

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

extern "C" fn interrupt(_: i32) {
    INTERRUPTED.store(true, Ordering::Relaxed);
}

/// Cancels a job at Ctrl-C, for as long as it is there.
struct OnInterrupt {
    before: Option<SigAction>,
    done: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl OnInterrupt {
    fn new(job: Job) -> Self {
        INTERRUPTED.store(false, Ordering::Relaxed);
        let action =
            SigAction::new(SigHandler::Handler(interrupt), SaFlags::SA_RESTART, SigSet::empty());
        // SAFETY: the handler stores to an atomic, which any signal handler may.
        let before = unsafe { sigaction(Signal::SIGINT, &action) }.ok();
        let (done, ended) = channel::<()>();
        let watch = move || {
            while ended.recv_timeout(Duration::from_millis(20)) == Err(RecvTimeoutError::Timeout) {
                if INTERRUPTED.load(Ordering::Relaxed) {
                    job.cancel();
                }
            }
        };
        let thread = std::thread::Builder::new().name("interrupt".into()).spawn(watch).ok();
        Self { before, done: Some(done), thread }
    }
}

impl Drop for OnInterrupt {
    fn drop(&mut self) {
        drop(self.done.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        if let Some(before) = &self.before {
            // SAFETY: the action is the one that was in effect before.
            let _ = unsafe { sigaction(Signal::SIGINT, before) };
        }
    }
}

/// Returns the path of the history.
fn history() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let state = set("XDG_STATE_HOME").or_else(|| Some(set("HOME")?.join(".local/state")))?;
    Some(state.join("prof/script_history"))
}

/// Asks for lines, and answers each.
///
/// # Errors
/// If there is no terminal to ask on.
pub(super) fn run(options: ScriptOptions) -> Result<ExitCode> {
    let script = Script::new(options);
    let names = script.names().iter().map(|n| n.name.clone());
    let is_word = |n: &String| n.starts_with(|c: char| c.is_alphabetic());
    let names: Vec<String> = names.filter(is_word).collect();
    let script = Rc::new(RefCell::new(script));
    let config = Config::builder().auto_add_history(true).build();
    let mut editor: Editor<Names, FileHistory> =
        Editor::with_config(config).context("cannot ask for lines on this terminal")?;
    editor.set_helper(Some(Names { script: script.clone(), names }));
    let history = history();
    if let Some(path) = &history {
        // A first prompt has no history.
        let _ = editor.load_history(path);
    }
    tell("Names: help(), help(\"only_*\"); Tab completes; Ctrl-C stops a question; Ctrl-D ends.");
    let code = loop {
        let line = match editor.readline("prof> ") {
            Ok(line) => line,
            Err(ReadlineError::Interrupted) => continue,
            Err(ReadlineError::Eof) => break ExitCode::SUCCESS,
            Err(e) => return Err(e).context("cannot ask for a line"),
        };
        let job = Job::default();
        script.borrow_mut().set_job(job.clone());
        let watch = OnInterrupt::new(job);
        let ran = script.borrow_mut().run_and_print(&line);
        drop(watch);
        match ran {
            Ok(Ran::Whole) => {}
            Ok(Ran::Exit(code)) => break exit_code(code),
            Err(e) => say(&told("line", &e)),
        }
    };
    if let Some(path) = &history {
        let folder = path.parent().map(std::fs::create_dir_all);
        if folder.is_some_and(|made| made.is_ok()) {
            let _ = editor.save_history(path);
        }
    }
    Ok(code)
}
