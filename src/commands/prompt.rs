//! The prompt of `prof script`: lines with history and completion, each answered at once.

use super::interrupt::{OnInterrupt, Otherwise};
use super::script::exit_code;
use crate::term::{line as tell, say};
use anyhow::{Context as _, Result};
use prof_analyze::Job;
use prof_script::{Ran, Script, ScriptError, ScriptOptions};
use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{CompletionType, Config, Context, Editor, Helper};
use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::rc::Rc;

/// Helps the editor: with the names of the language and those of the script so far.
struct Names {
    script: Rc<RefCell<Script>>,
}

impl Helper for Names {}
impl Highlighter for Names {}

impl Hinter for Names {
    type Hint = String;
}

impl Validator for Names {
    fn validate(&self, c: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        // An empty line ends a piece of code even if it is not complete, so that the user can always leave it.
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
        Ok(self.script.borrow().complete(&line[..at]))
    }
}

/// Returns the path of the history.
fn history() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let state = set("XDG_STATE_HOME").or_else(|| Some(set("HOME")?.join(".local/state")))?;
    Some(state.join("prof/script_history"))
}

const HELLO: &str =
    "Tab completes names; help(\"only_*\") explains them; Ctrl-C stops; Ctrl-D ends.";

const HELP: &str = "\
allocations()   all blocks: .len(), .only_leaked(), .group_by_backtrace(), …
maps()          all mappings
data()          the recording: .runtime(), …
graph()         a graph: .add(\"All\", allocations()).save(\"all.svg\")
table(list)     a table of a list, of groups, of objects
help(\"leak\")    the names that have this in them; help() lists all
exit            ends, as Ctrl-D does";

/// Longest line of code that is shown with an error.
const SHOWN: usize = 200;

/// Returns the line of code that has an error, and a mark below its place.
fn marked(code: &str, e: &ScriptError) -> Vec<String> {
    let place = e.line.and_then(|l| code.lines().nth(l.checked_sub(1)?)).zip(e.column);
    let Some((line, column)) = place.filter(|p| p.0.len() <= SHOWN && p.1 > 0) else {
        return Vec::new();
    };
    let line = line.replace(|c: char| c.is_control(), " ");
    vec![format!("    {line}"), format!("    {:>column$}", '^')]
}

/// Asks for lines, and answers each.
///
/// # Errors
/// If there is no terminal to ask on.
pub(super) fn run(options: ScriptOptions) -> Result<ExitCode> {
    let script = Rc::new(RefCell::new(Script::new(options)));
    let config =
        Config::builder().auto_add_history(true).completion_type(CompletionType::List).build();
    let mut editor: Editor<Names, FileHistory> =
        Editor::with_config(config).context("cannot ask for lines on this terminal")?;
    editor.set_helper(Some(Names { script: script.clone() }));
    let history = history();
    if let Some(path) = &history {
        // A first prompt has no history.
        let _ = editor.load_history(path);
    }
    tell(HELLO);
    let code = loop {
        let line = match editor.readline("prof> ") {
            Ok(line) => line,
            Err(ReadlineError::Interrupted) => continue,
            Err(ReadlineError::Eof) => break ExitCode::SUCCESS,
            Err(e) => return Err(e).context("cannot ask for a line"),
        };
        // Before the line is run, which may end the process.
        if let Some(path) = &history {
            keep(&mut editor, path);
        }
        match line.trim() {
            "" => continue,
            "exit" | "quit" => break ExitCode::SUCCESS,
            "help" | "?" => {
                HELP.lines().for_each(tell);
                continue;
            }
            _ => {}
        }
        let job = Job::default();
        script.borrow_mut().set_job(job.clone());
        let watch = OnInterrupt::new(job, Otherwise::EndAtNext);
        let ran = script.borrow_mut().run_and_print(&line);
        if watch.was_pressed() {
            // The terminal shows ^C, and no end of its line.
            tell("");
        }
        drop(watch);
        match ran {
            Ok(Ran::Whole) => {}
            Ok(Ran::Exit(code)) => break exit_code(code),
            Err(e) => {
                say(&e.message);
                marked(&line, &e).iter().for_each(|line| tell(line));
            }
        }
    };
    Ok(code)
}

/// Adds the last line to the history's file. A prompt without a history works as well, so that errors are no matter.
fn keep(editor: &mut Editor<Names, FileHistory>, path: &Path) {
    let folder = path.parent().map(std::fs::create_dir_all);
    if folder.is_some_and(|made| made.is_ok()) {
        let _ = editor.append_history(path);
    }
}
