//! Runs scripts for the console and for bytehound's clients.

use crate::ask::Ask;
use crate::reply::{Answer, Failure, Writer};
use crate::state::{Open, Shared};
use crate::waiting::QUIET;
use prof_analyze::query::RowSet;
use prof_analyze::{Index, Job};
use prof_script::{
    Indexed, Limits, Name, Output, OutputLimits, Ran, Recording, Script, ScriptError,
    ScriptOptions, Sink, Virtual, on_stack,
};
use serde_json::{Value, json};
use std::cell::RefCell;
use std::io::Write;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::time::Instant;

/// An open recording, for scripts.
struct Held(Arc<Open>);

impl Indexed for Held {
    fn index(&self) -> &Index {
        &self.0.index
    }
}

/// Returns an engine for one script.
fn engine(open: &Arc<Open>, job: Job, sink: Sink) -> Script {
    let mut options = ScriptOptions::new(Box::new(Virtual::new(OutputLimits::default(), sink)));
    options.data = vec![Recording::new(Held(open.clone()))];
    options.limits = Some(Limits::default());
    options.job = job;
    Script::new(options)
}

/// Describes a piece of output; a file is kept, and named by its address.
fn described(shared: &Shared, id: &str, output: Output) -> Value {
    match output {
        Output::Line(text) => json!({ "kind": "println", "value": text }),
        Output::File { path, kind, bytes, data } => {
            let basename = path.rsplit('/').next().unwrap_or_default().to_owned();
            let checksum = shared.files.put(kind.media_type(), bytes);
            let name = percent_encoding::utf8_percent_encode(
                &basename,
                percent_encoding::NON_ALPHANUMERIC,
            );
            let url = format!("/data/{id}/script_files/{checksum}/{name}");
            let mut image = json!({
                "kind": "image",
                "url": url,
                "basename": basename,
                "path": path,
                "checksum": checksum,
            });
            if let Some(data) = data {
                image["data"] = data;
            }
            image
        }
    }
}

fn failed(e: &ScriptError) -> Value {
    json!({ "message": e.message, "line": e.line, "column": e.column })
}

/// Runs a script for bytehound's clients: the answer is whole when the script has ended.
pub(crate) fn execute(ask: Ask, code: String) -> Result<Answer, Failure> {
    on_stack(|| executed(&ask, &code)).map_err(|e| Failure::internal(no_thread(&e)))?
}

fn no_thread(e: &std::io::Error) -> String {
    format!("no thread for the script: {e}")
}

fn executed(ask: &Ask, code: &str) -> Result<Answer, Failure> {
    let began = Instant::now();
    let out: Rc<RefCell<Vec<Value>>> = Rc::default();
    let (own, shared, id) = (out.clone(), ask.shared.clone(), ask.recording.id.clone());
    let sink = move |output| {
        let mut value = described(&shared, &id, output);
        // Its clients draw no graphs by themselves.
        if let Some(object) = value.as_object_mut() {
            object.remove("data");
        }
        own.borrow_mut().push(value);
        Ok(())
    };
    let ran = engine(&ask.open, ask.cancel.clone(), Box::new(sink)).run(code);
    let output = out.take();
    let elapsed = began.elapsed().as_secs_f64();
    match ran {
        Ok(_) => Answer::json(&json!({ "status": "ok", "elapsed": elapsed, "output": output })),
        Err(e) => {
            let mut value = failed(&e);
            value["status"] = "error".into();
            value["elapsed"] = elapsed.into();
            value["output"] = output.into();
            Answer::json(&value)
        }
    }
}

/// Media type of lines of JSON.
pub(crate) const LINES: &str = "application/x-ndjson";

/// Runs a script, and writes its output as it comes: lines of JSON; the last one says how it ended.
pub(crate) fn stream(ask: Ask, code: String) -> Result<(Answer, Writer), Failure> {
    let write = move |out: &mut dyn Write| {
        let (sender, receiver) = sync_channel::<Value>(64);
        let job = ask.cancel.clone();
        let run = move || {
            if let Err(e) = on_stack(|| run_to(&ask, &code, &sender)) {
                let _ = sender.send(json!({ "kind": "error", "message": no_thread(&e) }));
            }
        };
        let thread = std::thread::Builder::new().name("script".into()).spawn(run);
        let thread = thread.map_err(|e| no_thread(&e))?;
        let mut gone = None;
        loop {
            let text = match receiver.recv_timeout(QUIET) {
                Ok(value) => format!("{value}\n"),
                Err(RecvTimeoutError::Timeout) => "\n".into(),
                Err(RecvTimeoutError::Disconnected) => break,
            };
            if let Err(e) = out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
                gone = Some(e.to_string());
                break;
            }
        }
        // The script can't send any more either, and ends.
        drop(receiver);
        if gone.is_some() {
            job.cancel();
        }
        let _ = thread.join();
        gone.map_or(Ok(()), Err)
    };
    Ok((Answer::new(LINES, ""), Box::new(write)))
}

fn run_to(ask: &Ask, code: &str, to: &SyncSender<Value>) {
    let began = Instant::now();
    let (own, shared, id) = (to.clone(), ask.shared.clone(), ask.recording.id.clone());
    let sink = move |output| {
        own.send(described(&shared, &id, output)).map_err(|_| "nobody reads the output".to_owned())
    };
    let mut script = engine(&ask.open, ask.cancel.clone(), Box::new(sink));
    let mut last = match script.run_and_print(code) {
        Ok(Ran::Whole) => json!({ "kind": "done" }),
        Ok(Ran::Exit(code)) => json!({ "kind": "done", "exit": code }),
        Err(e) => {
            let mut value = failed(&e);
            value["kind"] = "error".into();
            value
        }
    };
    last["elapsed"] = began.elapsed().as_secs_f64().into();
    // It is an error if the client is gone.
    let _ = to.send(last);
}

/// Returns the rows of the blocks that a script of a filter selects.
pub(crate) fn rows(open: &Arc<Open>, job: &Job, code: &str) -> Result<Arc<RowSet>, String> {
    let rows = || engine(open, job.clone(), Box::new(|_| Ok(()))).rows(code);
    on_stack(rows).map_err(|e| no_thread(&e))?.map_err(|e| e.to_string())
}

/// Returns all names that scripts can use.
pub(crate) fn names() -> Vec<Name> {
    prof_script::names()
}
