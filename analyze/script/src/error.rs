//! Errors of scripts.

use crate::words::of_methods;
use prof_analyze::index::ScanError;
use prof_analyze::query::QueryError;
use rhai::{Dynamic, EvalAltResult, Position};

/// An error of a native function.
pub(crate) type Fault = Box<EvalAltResult>;

/// The end of a script by `exit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exit(pub i64);

/// The end of a script because its job was cancelled, or its time is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stopped(pub String);

/// A condition that did not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failed(pub String);

impl std::fmt::Display for Failed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// Returns an error with a message.
pub(crate) fn fault(message: impl Into<String>) -> Fault {
    Box::new(EvalAltResult::ErrorRuntime(Dynamic::from(message.into()), Position::NONE))
}

/// Returns the name that scripts know the type of a value by.
pub(crate) fn type_name(value: &Dynamic) -> &'static str {
    let name = value.type_name();
    match name.rsplit("::").next().unwrap_or(name) {
        "i64" => "Integer",
        "f64" => "Float",
        "bool" => "Boolean",
        "map" => "Object",
        "Moment" => "Option<Duration>",
        // prof's own types have the same names in scripts as in this crate.
        name => name,
    }
}

/// Returns an error that a script can't catch.
pub(crate) fn end(why: impl Clone + 'static) -> Fault {
    Box::new(EvalAltResult::ErrorTerminated(Dynamic::from(why), Position::NONE))
}

/// Converts the error of a pass over an index.
pub(crate) fn of_scan(e: ScanError) -> Fault {
    match e {
        ScanError::Cancelled => end(Stopped("the script was stopped".into())),
        e => fault(e.to_string()),
    }
}

/// Converts the error of a query.
pub(crate) fn of_query(e: QueryError) -> Fault {
    match e {
        QueryError::Scan(e) => of_scan(e),
        QueryError::Missing(text) => fault(of_methods(&text)),
    }
}

/// The kind of a script's error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The script is no valid code.
    Syntax,
    /// A function failed, or there is no such function.
    Runtime,
    /// `assert` found its condition false.
    Assertion,
    /// The script was stopped: by its user, or because it took too long or too much.
    Stopped,
}

/// Why a script failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}{}", place(*line, *column))]
pub struct ScriptError {
    /// Kind of the error.
    pub kind: ErrorKind,
    /// The message, without the place.
    pub message: String,
    /// The line, from 1, if it is known.
    pub line: Option<usize>,
    /// The column, from 1, if it is known.
    pub column: Option<usize>,
}

fn place(line: Option<usize>, column: Option<usize>) -> String {
    match (line, column) {
        (Some(line), Some(column)) => format!(" (line {line}, column {column})"),
        (Some(line), None) => format!(" (line {line})"),
        _ => String::new(),
    }
}

/// The end of a script's run: a failure, or `exit`.
pub(crate) enum Ending {
    Exit(i64),
    Error(ScriptError),
}

/// Longest message of an error in bytes: a script may throw all that it has.
const LONGEST: usize = 1 << 14;

/// Returns a value as text.
pub(crate) type Print = fn(&Dynamic) -> String;

/// Converts the error of a run; `print` makes a text of what the script throws.
#[allow(clippy::boxed_local)] // it is how the engine has it
pub(crate) fn ending(e: Fault, print: Print) -> Ending {
    let (kind, mut message, at) = told(*e, print);
    if message.len() > LONGEST {
        let end = (0..=LONGEST).rev().find(|end| message.is_char_boundary(*end));
        message.truncate(end.unwrap_or(0));
        message.push('…');
    }
    match kind {
        Ok(kind) => {
            let (line, column) = (at.line(), at.position());
            Ending::Error(ScriptError { kind, message, line, column })
        }
        Err(code) => Ending::Exit(code),
    }
}

/// Message that ends a script whose calls have used up the stack.
pub(crate) const TOO_DEEP: &str =
    "functions call each other too deeply; is there a recursion without an end?";

/// Returns kind, message and place of an error: the innermost one, as functions of the script are in between.
fn told(mut e: EvalAltResult, print: Print) -> (Result<ErrorKind, i64>, String, Position) {
    let at = e.take_position();
    match e {
        EvalAltResult::ErrorInFunctionCall(name, _, inner, _) => {
            let (kind, message, place) = told(*inner, print);
            let place = if place.is_none() { at } else { place };
            let within = format!(", in the function {name}");
            let message = match kind {
                // A function that calls itself is named once.
                Ok(ErrorKind::Runtime) if !message.ends_with(&within) => message + within.as_str(),
                _ => message,
            };
            (kind, message, place)
        }
        EvalAltResult::ErrorTerminated(why, _) => {
            if let Some(Exit(code)) = why.clone().try_cast::<Exit>() {
                return (Err(code), String::new(), at);
            }
            let stopped = why.try_cast::<Stopped>();
            let message = stopped.map_or("the script was stopped".into(), |s| s.0);
            (Ok(ErrorKind::Stopped), message, at)
        }
        EvalAltResult::ErrorTooManyOperations(_) => {
            let message = "the script takes too many operations; is there a loop without an end?";
            (Ok(ErrorKind::Stopped), message.into(), at)
        }
        EvalAltResult::ErrorStackOverflow(_) => (Ok(ErrorKind::Stopped), TOO_DEEP.into(), at),
        EvalAltResult::ErrorDataTooLarge(what, _) => {
            let message = format!(
                "a value becomes too large ({}); `prof script` has no such limit",
                what.to_lowercase()
            );
            (Ok(ErrorKind::Runtime), message, at)
        }
        EvalAltResult::ErrorRuntime(value, _) => {
            if let Some(Failed(message)) = value.clone().try_cast::<Failed>() {
                return (Ok(ErrorKind::Assertion), message, at);
            }
            let text = value
                .clone()
                .into_string()
                .unwrap_or_else(|_| format!("thrown: {}", print(&value)));
            (Ok(ErrorKind::Runtime), text, at)
        }
        EvalAltResult::ErrorParsing(error, _) => (Ok(ErrorKind::Syntax), error.to_string(), at),
        other => (Ok(ErrorKind::Runtime), other.to_string(), at),
    }
}
