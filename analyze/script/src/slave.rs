//! Runs scripts from a stream, for programs that build documents and notebooks.

use crate::engine::{Script, ScriptOptions};
use crate::error::ErrorKind;
use crate::host::{Output, OutputLimits, Virtual};
use crate::recording::Recording;
use serde_json::{Value, json};
use std::cell::RefCell;
use std::io::{self, BufRead, Write};
use std::rc::Rc;
use std::sync::Arc;

/// Longest script.
const LONGEST: u64 = 16 << 20;

/// Runs scripts that each end with a NUL byte, and answers in lines of JSON: `println` with a `message`, `image` with
/// `path` and `data`, `syntax_error` and `runtime_error` with `message`, `line` and `column`; after each script `idle`.
/// Functions and variables are there in the next script.
///
/// # Errors
/// If the input can't be read, or the output not written.
pub fn serve_stdin<W: Write + 'static>(
    data: Vec<Arc<Recording>>,
    mut input: impl BufRead,
    output: W,
) -> io::Result<()> {
    let out = Rc::new(RefCell::new(output));
    let say = move |out: &RefCell<W>, value: &Value| {
        let mut out = out.borrow_mut();
        writeln!(out, "{value}").and_then(|()| out.flush())
    };
    let own = out.clone();
    let sink = move |output: Output| {
        let value = match output {
            Output::Line(message) => json!({ "kind": "println", "message": message }),
            Output::File { path, bytes, .. } => {
                json!({ "kind": "image", "path": path.trim_start_matches('/'), "data": bytes })
            }
        };
        say(&own, &value).map_err(|e| format!("cannot write to standard output: {e}"))
    };
    let none = OutputLimits { lines: u64::MAX, text: u64::MAX, files: u64::MAX, bytes: u64::MAX };
    let mut options = ScriptOptions::new(Box::new(Virtual::new(none, Box::new(sink))));
    options.data = data;
    let mut script = Script::new(options);
    loop {
        let mut bytes = Vec::new();
        let read = io::Read::take(&mut input, LONGEST).read_until(0, &mut bytes)?;
        if read == 0 {
            return Ok(());
        }
        if bytes.last() == Some(&0) {
            bytes.pop();
        }
        let error = match String::from_utf8(bytes) {
            Err(_) => Some(json!({ "kind": "syntax_error", "message": "the script is no UTF-8" })),
            Ok(code) => script.run(&code).err().map(|e| {
                let kind =
                    if e.kind == ErrorKind::Syntax { "syntax_error" } else { "runtime_error" };
                json!({ "kind": kind, "message": e.message, "line": e.line, "column": e.column })
            }),
        };
        for value in error.iter().chain([&json!({ "kind": "idle" })]) {
            say(&out, value)?;
        }
    }
}
