//! The engine: which parts of the language scripts have, their limits, and how they run.

use crate::error::{Ending, ErrorKind, ScriptError, Stopped, TOO_DEEP, ending};
use crate::host::Host;
use crate::list::AllocationList;
use crate::memory::{Captured, Watch};
use crate::recording::{Fallback, Open, Recording, Shared};
use crate::registry::{Name, Registry};
use crate::types::Type;
use crate::{
    api, complete, duration, graph, objects, only, print, save, save_objects, save_scans, scans,
    stack, table, text,
};
use prof_analyze::query::RowSet;
use prof_analyze::{IndexOptions, Job};
use rhai::packages::{
    ArithmeticPackage, BasicArrayPackage, BasicFnPackage, BasicIteratorPackage, BasicMapPackage,
    BasicMathPackage, BasicStringPackage, LogicPackage, MoreStringPackage, Package,
};
use rhai::{AST, Dynamic, Engine, Position, Scope, Token};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Limits on a script. Those of the language itself hold for all scripts that have any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Greatest number of operations of the language.
    pub operations: u64,
    /// Longest time that the script may take.
    pub time: Duration,
    /// Greatest number of bytes of all selections.
    pub selections: u64,
    /// Greatest number of bytes by which the memory of the process may grow while the script runs.
    pub memory: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            operations: 50_000_000,
            time: Duration::from_secs(60),
            selections: 256 << 20,
            memory: 512 << 20,
        }
    }
}

/// Longest text, in bytes, that functions take which make many times as much of it, in a script that has limits.
/// Deepest expression of a script without limits. The parser calls itself for each level.
const DEEPEST: usize = 2000;

pub(crate) const LONGEST_TEXT: usize = 1 << 18;

/// Most bytes of all texts in a value, and most elements of it, in a script that has limits: the verdicts of `leaks()` on
/// thousands of stacks have some MiB of names. All values together are limited by the memory of the process.
pub(crate) const TEXTS: usize = 32 << 20;
const ELEMENTS: usize = if cfg!(target_pointer_width = "64") { 500_000 } else { 100_000 };

/// The surroundings of scripts.
pub struct ScriptOptions {
    /// Takes output, and gives access to files.
    pub host: Box<dyn Host>,
    /// The recordings; the first is that of `data()`.
    pub data: Vec<Arc<Recording>>,
    /// The result of `argv()`.
    pub argv: Vec<String>,
    /// Limits; `None`: there are none.
    pub limits: Option<Limits>,
    /// Opens the recordings of `load`.
    pub open: Open,
    /// Finds a recording if none was given.
    pub fallback: Option<Fallback>,
    /// Ends the script when it is cancelled.
    pub job: Job,
}

impl ScriptOptions {
    /// Returns options without recordings, arguments and limits.
    pub fn new(host: Box<dyn Host>) -> Self {
        Self {
            host,
            data: Vec::new(),
            argv: Vec::new(),
            limits: None,
            open: Box::new(|path| Recording::open(path, &IndexOptions::default())),
            fallback: None,
            job: Job::default(),
        }
    }
}

/// The end of a script that did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ran {
    /// The script came to its end.
    Whole,
    /// The script called `exit` with this code.
    Exit(i64),
}

/// An engine that runs scripts. Functions and variables of one run are there in the next.
pub struct Script {
    engine: Engine,
    scope: Scope<'static>,
    functions: AST,
    shared: Rc<Shared>,
    names: Vec<Name>,
    job: Rc<RefCell<Job>>,
    limits: Option<Limits>,
    began: Rc<Cell<Instant>>,
    captured: Captured,
    /// Place of the last statement, whose value is the value of the code.
    last: Position,
}

impl Drop for Script {
    fn drop(&mut self) {
        self.captured.empty();
    }
}

impl Script {
    /// Creates an engine.
    pub fn new(options: ScriptOptions) -> Self {
        let ScriptOptions { host, data, argv, limits, open, fallback, job } = options;
        let most = limits.map(|l| l.selections);
        let shared = Shared::new(host, data, argv, most, (open, fallback));
        let job = Rc::new(RefCell::new(job));
        let began = Rc::new(Cell::new(Instant::now()));
        let Registry { mut engine, names, .. } = registered(&shared);
        engine.set_max_call_levels(64).set_max_expr_depths(256, 128).disable_symbol("eval");
        if limits.is_none() && stack::is_large() {
            // The stack itself is looked at, on each operation.
            engine.set_max_call_levels(1 << 24).set_max_expr_depths(DEEPEST, DEEPEST);
        }
        free_reserved_words(&mut engine);
        if let Some(l) = limits {
            engine
                .set_max_operations(l.operations)
                .set_max_string_size(TEXTS)
                .set_max_array_size(ELEMENTS)
                .set_max_map_size(ELEMENTS)
                .set_max_variables(200)
                .set_max_functions(200);
        }
        // `print` and `debug` can't fail in the language. So the first line beyond the limit is noted here, and the next
        // operation ends the script.
        let refused: Rc<RefCell<Option<String>>> = Rc::default();
        let (of_print, of_debug) = (refused.clone(), refused.clone());
        let (own, start) = (job.clone(), began.clone());
        engine.on_progress(move |operations| {
            if let Some(why) = refused.take() {
                return Some(Dynamic::from(Stopped(why)));
            }
            if stack::is_full() {
                return Some(Dynamic::from(Stopped(TOO_DEEP.into())));
            }
            // The clock is read each 256 operations: natives look at the job by themselves.
            let late =
                limits.is_some_and(|l| operations % 256 == 0 && start.get().elapsed() > l.time);
            let why = match (own.borrow().is_cancelled(), limits) {
                (true, Some(l)) if start.get().elapsed() >= l.time => too_long(l),
                (true, _) => STOPPED.to_owned(),
                (false, Some(l)) if late => too_long(l),
                _ => return None,
            };
            Some(Dynamic::from(Stopped(why)))
        });
        let own = shared.clone();
        engine.on_print(move |text| _ = of_print.replace(own.host.borrow_mut().line(text).err()));
        let own = shared.clone();
        engine.on_debug(move |text, _, _| {
            of_debug.replace(own.host.borrow_mut().line(text).err());
        });
        Self {
            engine,
            scope: Scope::new(),
            functions: AST::empty(),
            shared,
            names,
            job,
            limits,
            began,
            captured: Captured::default(),
            last: Position::NONE,
        }
    }

    /// Returns all names that are registered.
    pub fn names(&self) -> &[Name] {
        &self.names
    }

    /// Sets the job that ends the next run.
    pub fn set_job(&mut self, job: Job) {
        *self.job.borrow_mut() = job;
    }

    /// Returns where the last word of a text begins, and what it may become: the names of the language that fit the
    /// type before them, and those that scripts have made so far.
    pub fn complete(&self, before: &str) -> (usize, Vec<String>) {
        let variables =
            self.scope.iter_raw().map(|(name, _, value)| (name.to_owned(), self.type_of(value)));
        let functions = self.functions.iter_functions().map(|f| f.name.to_owned());
        let (variables, functions) = (variables.collect::<Vec<_>>(), functions.collect::<Vec<_>>());
        complete::complete(before, &self.names, &variables, &functions)
    }

    /// Returns the type of a value as signatures write it, with the fields of objects.
    fn type_of(&self, value: &Dynamic) -> Option<Type> {
        if let Some(all) = value.read_lock::<rhai::Array>() {
            let first = self.type_of(all.first()?)?;
            let same = |v: &Dynamic| v.type_name() == all[0].type_name();
            let of = format!("[{}]", first.of);
            // Of a long array the first elements tell.
            return all.iter().take(100).all(same).then_some(Type { of, fields: first.fields });
        }
        if let Some(map) = value.read_lock::<rhai::Map>() {
            let fields = map.keys().take(200).map(ToString::to_string).filter(|k| is_name(k));
            return Some(Type { of: "Object".into(), fields: fields.collect() });
        }
        Some(Type::new(self.engine.map_type_name(value.type_name())))
    }

    /// Compiles a piece of code.
    ///
    /// # Errors
    /// If it is no valid code: the message and its place.
    pub fn check(&self, code: &str) -> Result<(), ScriptError> {
        self.compile(code).map(|_| ())
    }

    /// Returns whether the code is the beginning of a longer one: brackets or a text are still open.
    pub fn is_unfinished(&self, code: &str) -> bool {
        let Err(e) = self.engine.compile(code) else { return false };
        use rhai::{LexError, ParseErrorType as P};
        match e.err_type() {
            P::UnexpectedEOF => true,
            P::MissingToken(..) | P::BadInput(LexError::UnterminatedString) => {
                let last = code.lines().count().max(1);
                e.position().is_none()
                    || e.position().line().is_some_and(|l| l >= last)
                        && code.trim_end().len() <= offset(code, e.position()).saturating_add(1)
            }
            _ => false,
        }
    }

    fn compile(&self, code: &str) -> Result<AST, ScriptError> {
        self.engine.compile_with_scope(&self.scope, code).map_err(|e| ScriptError {
            kind: ErrorKind::Syntax,
            message: e.err_type().to_string(),
            line: e.position().line(),
            column: e.position().position(),
        })
    }

    fn eval(&mut self, code: &str) -> Result<(Ran, Dynamic), ScriptError> {
        let ast = self.compile(code)?;
        self.last = ast.statements().last().map_or(Position::NONE, |s| s.position());
        self.functions = self.functions.merge(&ast);
        self.began.set(Instant::now());
        if self.limits.is_some() {
            self.captured.watch(&mut self.engine, &ast);
        }
        let job = self.job.borrow().clone();
        let watch = self.limits.map(|l| Watch::new(&job, l));
        let Self { engine, scope, functions, .. } = self;
        let run = || engine.eval_ast_with_scope::<Dynamic>(scope, functions);
        let done = job.run(|| std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)));
        let large = self.limits.filter(|_| watch.as_ref().is_some_and(Watch::was_too_large));
        drop(watch);
        self.functions.clear_statements();
        let done = match done {
            Ok(done) => done,
            Err(_) => {
                return Err(ScriptError {
                    kind: ErrorKind::Runtime,
                    message: "a function failed inside prof; this is a bug of prof".into(),
                    line: None,
                    column: None,
                });
            }
        };
        match done.map_err(ended) {
            Ok(value) => Ok((Ran::Whole, value)),
            Err(Ending::Exit(code)) => Ok((Ran::Exit(code), Dynamic::UNIT)),
            Err(Ending::Error(mut e)) => {
                let late = self.limits.filter(|l| self.began.get().elapsed() >= l.time);
                // What was stopped fails for this reason, whatever it says.
                if self.job.borrow().is_cancelled() && e.kind == ErrorKind::Runtime {
                    (e.kind, e.message) = (ErrorKind::Stopped, STOPPED.into());
                }
                if e.kind == ErrorKind::Runtime {
                    e.message = complete::explained(&e.message, &self.names);
                }
                if let (ErrorKind::Stopped, Some(l)) = (e.kind, late) {
                    e.message = too_long(l);
                }
                if let (ErrorKind::Stopped, Some(l)) = (e.kind, large) {
                    e.message = too_large(l);
                }
                Err(e)
            }
        }
    }

    /// Runs a piece of code.
    ///
    /// # Errors
    /// Why it failed, and where.
    pub fn run(&mut self, code: &str) -> Result<Ran, ScriptError> {
        // Some editors put a mark of the encoding before the text.
        let code = code.strip_prefix('\u{feff}').unwrap_or(code);
        // A first line that names the interpreter makes the file a program of its own.
        let code = match code.strip_prefix("#!") {
            Some(rest) => format!("//{rest}"),
            None => code.to_owned(),
        };
        self.eval(&code).map(|done| done.0)
    }

    /// Runs a piece of code, and prints its value as a prompt does: if it has one, and does not end in a semicolon.
    /// A graph is no answer: the host tells of the file that it was saved as.
    ///
    /// # Errors
    /// Why it failed, and where.
    pub fn run_and_print(&mut self, code: &str) -> Result<Ran, ScriptError> {
        let (ran, value) = self.eval(code)?;
        let is_graph = value.is::<graph::Graph>();
        if value.is_unit() || is_graph || ends_in_semicolon(code) {
            return Ok(ran);
        }
        // The value of a list is computed here, and must end as the code does.
        let job = self.job.borrow().clone();
        let told = job.run(|| {
            let text = print::shown(&value)?;
            self.shared.host.borrow_mut().line(&text).map_err(crate::error::fault)
        });
        match told.map_err(ended) {
            Err(Ending::Error(e)) => Err(self.placed(e)),
            _ => Ok(ran),
        }
    }

    /// Returns an error with the place of the last statement, if it has none: the value of the code was computed late.
    fn placed(&self, mut e: ScriptError) -> ScriptError {
        if e.line.is_none() {
            (e.line, e.column) = (self.last.line(), self.last.position());
        }
        e
    }

    /// Runs a piece of code whose value is a list of blocks, and returns their rows in the index.
    ///
    /// # Errors
    /// Why it failed, or that its value is no list of blocks.
    pub fn rows(&mut self, code: &str) -> Result<Arc<RowSet>, ScriptError> {
        let (_, value) = self.eval(code)?;
        let failed = |message: String| ScriptError {
            kind: ErrorKind::Runtime,
            message,
            line: None,
            column: None,
        };
        let Some(list) = value.clone().try_cast::<AllocationList>() else {
            let kind = value.type_name();
            return Err(failed(format!(
                "the script's value must be a list of allocations, and is of the type {kind}"
            )));
        };
        let rows = self.job.borrow().clone().run(|| list.rows());
        rows.map(|r| r.set().clone()).map_err(|e| match ended(e) {
            Ending::Error(e) => self.placed(e),
            Ending::Exit(_) => failed("exit".into()),
        })
    }
}

fn ended(e: crate::error::Fault) -> Ending {
    ending(e, print::to_text)
}

const STOPPED: &str = "the script was stopped";

fn too_long(limits: Limits) -> String {
    format!("the script takes longer than {} seconds", limits.time.as_secs())
}

fn too_large(limits: Limits) -> String {
    let most = limits.memory >> 20;
    format!(
        "memory has grown by more than {most} MiB while the script ran; keep less in variables, or run it with \
         `prof script`, which has no such limit"
    )
}

/// Returns whether a text can stand behind a dot.
fn is_name(text: &str) -> bool {
    !text.starts_with(|c: char| c.is_ascii_digit())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// Returns whether the last of a code that is no comment is a semicolon: its value is not wanted.
fn ends_in_semicolon(code: &str) -> bool {
    let mut rest = code.trim_end();
    while let Some((before, last)) = rest.rsplit_once('\n').or(Some(("", rest))) {
        if rest.is_empty() || !last.trim_start().starts_with("//") {
            break;
        }
        rest = before.trim_end();
    }
    rest.ends_with(';')
}

/// Returns the byte of a code that a position names.
fn offset(code: &str, at: rhai::Position) -> usize {
    let (line, column) = (at.line().unwrap_or(1), at.position().unwrap_or(1));
    let before: usize = code.split_inclusive('\n').take(line - 1).map(str::len).sum();
    let rest = code.get(before..).unwrap_or("");
    before + rest.chars().take(column.saturating_sub(1)).map(char::len_utf8).sum::<usize>()
}

/// Makes words that Rhai reserves for later, but does not use, names of fields behind a dot: objects have a field
/// `module`, and JSON of others has what it likes. `module` is a name everywhere, as scripts have no modules.
fn free_reserved_words(engine: &mut Engine) {
    let behind_dot = Cell::new(false);
    #[allow(deprecated)] // It is not: the attribute says that it may change.
    engine.on_parse_token(move |token, _, _| {
        let is_field = behind_dot.replace(matches!(token, Token::Period | Token::Elvis));
        match token {
            // `x.call(y)` and the like are functions of the language.
            Token::Reserved(word)
                if *word == "module"
                    || is_field
                        && word.starts_with(|c: char| c.is_ascii_alphabetic())
                        && !LANGUAGE.contains(&word.as_str()) =>
            {
                Token::Identifier(word)
            }
            token => token,
        }
    });
}

/// Functions of the language that may stand behind a dot, and words that it uses.
const LANGUAGE: [&str; 13] = [
    "Fn",
    "call",
    "curry",
    "debug",
    "eval",
    "is_def_fn",
    "is_def_var",
    "is_shared",
    "print",
    "this",
    "type_of",
    "import",
    "export",
];

/// Creates an engine with all functions.
fn registered(shared: &Rc<Shared>) -> Registry {
    let mut engine = Engine::new_raw();
    // Not the whole standard library, which has `sleep`, `eval` and files.
    engine
        .register_global_module(ArithmeticPackage::new().as_shared_module())
        .register_global_module(BasicArrayPackage::new().as_shared_module())
        .register_global_module(BasicFnPackage::new().as_shared_module())
        .register_global_module(BasicIteratorPackage::new().as_shared_module())
        .register_global_module(BasicMapPackage::new().as_shared_module())
        .register_global_module(BasicMathPackage::new().as_shared_module())
        .register_global_module(BasicStringPackage::new().as_shared_module())
        .register_global_module(LogicPackage::new().as_shared_module())
        .register_global_module(MoreStringPackage::new().as_shared_module());
    let mut r = Registry::new(engine);
    api::register(&mut r, shared);
    print::register(&mut r, shared);
    text::register(&mut r.engine, shared);
    duration::register(&mut r, shared);
    only::register_all(&mut r, shared);
    graph::register(&mut r, shared);
    objects::register(&mut r, shared);
    scans::register(&mut r, shared);
    table::register(&mut r, shared);
    save::register(&mut r, shared);
    save_objects::register(&mut r, shared);
    save_scans::register(&mut r);
    register_help(&mut r, shared);
    r
}

/// Registers `help`, which prints from the table of names.
fn register_help(r: &mut Registry, shared: &Rc<Shared>) {
    let all: Rc<RefCell<Vec<Name>>> = Rc::default();
    let (own, names) = (shared.clone(), all.clone());
    let print = move |pattern: &str| {
        let text = crate::help(&names.borrow(), pattern);
        let text = text.trim_end();
        let found = if text.is_empty() { "no name has this in it" } else { text };
        own.host.borrow_mut().line(found).map_err(crate::error::fault)
    };
    let plain = print.clone();
    r.of("")
        .def(
            "help",
            "(pattern: String)",
            "Prints what names do: all, those with a text in them, or those that begin with it (only_*).",
            "help(\"only_la*\");",
            print,
        )
        .note("New in prof.")
        .also(move || plain(""));
    all.borrow_mut().clone_from(&r.names);
}

/// Returns all names that scripts can use, with their descriptions.
pub fn names() -> Vec<Name> {
    Script::new(ScriptOptions::new(Box::new(crate::Native::default()))).names().to_vec()
}
