//! Writes the Firefox Profiler's processed profile, version 48 of its format (`docs-developer` and
//! `src/types/profile.js` of the profiler; later versions upgrade it).
//!
//! The profile has one thread, with a sample for each stack: its weight is the cost, its time that of the stack's first
//! block. A counter shows the live bytes over time.

use super::profile::{base, label};
use super::timeline::Timeline;
use super::{ExportError, Source};
use crate::load::Meta;
use crate::symbols::Frame;
use prof_trace::ticks::Ticks;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::io::Write;

/// Number of moments at which the counter has a value.
const MOMENTS: usize = 1000;

/// String table: the index of a string is its number in the profile.
#[derive(Default)]
struct Strings {
    all: Vec<String>,
    known: HashMap<String, usize>,
}

impl Strings {
    fn get(&mut self, s: &str) -> usize {
        if let Some(n) = self.known.get(s) {
            return *n;
        }
        self.all.push(s.to_owned());
        self.known.insert(s.to_owned(), self.all.len() - 1);
        self.all.len() - 1
    }
}

/// Key of a function: name, file, resource.
type Function = (usize, Option<usize>, Option<usize>);
/// Key of a frame: address, inline depth, function, line.
type FrameKey = (Option<u64>, usize, usize, Option<u32>);

/// Tables of the profile's only thread.
#[derive(Default)]
struct Tables {
    strings: Strings,
    libs: Vec<Value>,
    /// Number of the resource, which is also that of the library, by path.
    resources: HashMap<String, usize>,
    resource_names: Vec<usize>,
    functions: Vec<Function>,
    known_functions: HashMap<Function, usize>,
    frames: Vec<FrameKey>,
    known_frames: HashMap<FrameKey, usize>,
    /// Prefix (caller's stack) and frame of each stack.
    stacks: Vec<(Option<usize>, usize)>,
    known_stacks: HashMap<(Option<usize>, usize), usize>,
}

/// Returns the index of a key, which is added if it is new.
fn number<K: Copy + Eq + std::hash::Hash>(
    all: &mut Vec<K>,
    known: &mut HashMap<K, usize>,
    key: K,
) -> usize {
    *known.entry(key).or_insert_with(|| {
        all.push(key);
        all.len() - 1
    })
}

impl Tables {
    fn resource(&mut self, path: &str, meta: &Meta) -> usize {
        if let Some(n) = self.resources.get(path) {
            return *n;
        }
        let module = meta.modules.values().find(|m| m.path == path);
        let id: String =
            module.iter().flat_map(|m| &m.build_id).map(|b| format!("{b:02x}")).collect();
        let name = base(path);
        let code = if id.is_empty() { Value::Null } else { json!(id) };
        self.libs.push(json!({
            "arch": meta.target.arch, "name": name, "path": path, "debugName": name,
            "debugPath": path, "breakpadId": breakpad(&id), "codeId": code,
        }));
        let name = self.strings.get(name);
        self.resource_names.push(name);
        let n = self.resources.len();
        self.resources.insert(path.to_owned(), n);
        n
    }

    fn frame(&mut self, f: &Frame, inline_depth: usize, meta: &Meta) -> usize {
        let resource = f.module.as_deref().map(|m| self.resource(m, meta));
        let name = self.strings.get(&label(f));
        let file = f.file.as_deref().map(|p| self.strings.get(p));
        let function =
            number(&mut self.functions, &mut self.known_functions, (name, file, resource));
        let key = (f.offset.filter(|_| resource.is_some()), inline_depth, function, f.line);
        number(&mut self.frames, &mut self.known_frames, key)
    }

    fn json(&self) -> [(&'static str, Value); 5] {
        let column = |f: &dyn Fn(&FrameKey) -> Value| self.frames.iter().map(f).collect::<Vec<_>>();
        let nulls = |n: usize| vec![Value::Null; n];
        let (frames, functions) = (self.frames.len(), self.functions.len());
        let (stacks, resources) = (self.stacks.len(), self.resource_names.len());
        let of = |f: &dyn Fn(&Function) -> Value| self.functions.iter().map(f).collect::<Vec<_>>();
        let falses = vec![false; functions];
        [
            (
                "frameTable",
                json!({
                    "length": frames,
                    "address": column(&|f| f.0.map_or(json!(-1), |a| json!(a))),
                    "inlineDepth": column(&|f| json!(f.1)),
                    "category": vec![0; frames], "subcategory": vec![0; frames],
                    "func": column(&|f| json!(f.2)),
                    "nativeSymbol": nulls(frames), "innerWindowID": nulls(frames),
                    "implementation": nulls(frames),
                    "line": column(&|f| json!(f.3)), "column": nulls(frames),
                }),
            ),
            (
                "funcTable",
                json!({
                    "length": functions,
                    "name": of(&|f| json!(f.0)), "isJS": falses, "relevantForJS": falses,
                    "resource": of(&|f| f.2.map_or(json!(-1), |r| json!(r))),
                    "fileName": of(&|f| json!(f.1)),
                    "lineNumber": nulls(functions), "columnNumber": nulls(functions),
                }),
            ),
            (
                "stackTable",
                json!({
                    "length": stacks,
                    "prefix": self.stacks.iter().map(|s| s.0).collect::<Vec<_>>(),
                    "frame": self.stacks.iter().map(|s| s.1).collect::<Vec<_>>(),
                    "category": vec![0; stacks], "subcategory": vec![0; stacks],
                }),
            ),
            (
                "resourceTable",
                json!({
                    "length": resources,
                    "lib": (0..resources).collect::<Vec<_>>(), "name": self.resource_names,
                    "host": nulls(resources), "type": vec![1; resources],
                }),
            ),
            ("stringArray", json!(self.strings.all)),
        ]
    }
}

/// Returns the ID by which symbol servers know a library: the first 16 bytes of its build ID, as a GUID of
/// little-endian parts, and an age of 0.
fn breakpad(id: &str) -> String {
    let id = format!("{:0<32}", id.get(..id.len().min(32)).unwrap_or_default()).to_uppercase();
    let swapped = |part: &str| -> String {
        let pairs: Vec<&str> = (0..part.len() / 2).map(|i| &part[i * 2..i * 2 + 2]).collect();
        pairs.into_iter().rev().collect()
    };
    format!("{}{}{}{}0", swapped(&id[..8]), swapped(&id[8..12]), swapped(&id[12..16]), &id[16..])
}

pub(super) fn write(source: &Source<'_>, out: &mut dyn Write) -> Result<(), ExportError> {
    let analysis = source.index.analysis();
    let (profile, meta) = (source.profile()?, analysis.meta());
    let ms = |ns: u64| ns as f64 / 1e6;
    let mut t = Tables::default();
    let first: HashMap<u32, Ticks> = analysis.groups().iter().map(|g| (g.node, g.first)).collect();
    let mut samples: Vec<(u64, usize, u64)> = Vec::new();
    for s in profile.stacks.iter().filter(|s| s.cost(source.cost) > 0) {
        let mut prefix = None;
        for l in s.locations.iter().rev() {
            let frames = &profile.locations[*l as usize].frames;
            for (depth, f) in frames.iter().rev().enumerate() {
                let frame = t.frame(f, depth, meta);
                let stack = (prefix, frame);
                prefix = Some(number(&mut t.stacks, &mut t.known_stacks, stack));
            }
        }
        let stack = prefix.unwrap_or_else(|| {
            let frame = t.frame(&Frame::default(), 0, meta);
            number(&mut t.stacks, &mut t.known_stacks, (None, frame))
        });
        let at = meta.clock.ns(first.get(&s.node).copied().unwrap_or_default());
        samples.push((at, stack, s.cost(source.cost)));
    }
    samples.sort_unstable();
    let timeline = Timeline::new(source, MOMENTS)?;
    let mut thread = json!({
        "processType": "default", "processName": meta.target.comm,
        "processStartupTime": 0, "processShutdownTime": null,
        "registerTime": 0, "unregisterTime": null, "pausedRanges": [],
        "name": source.cost.name(), "isMainThread": true,
        "pid": meta.target.pid.to_string(), "tid": meta.target.pid,
        "samples": {
            "length": samples.len(),
            "weightType": if source.cost.unit() == "bytes" { "bytes" } else { "samples" },
            "stack": samples.iter().map(|s| s.1).collect::<Vec<_>>(),
            "time": samples.iter().map(|s| ms(s.0)).collect::<Vec<_>>(),
            "weight": samples.iter().map(|s| s.2).collect::<Vec<_>>(),
        },
        "markers": {
            "length": 0, "data": [], "name": [], "startTime": [], "endTime": [], "phase": [],
            "category": [],
        },
        "nativeSymbols": {
            "length": 0, "libIndex": [], "address": [], "name": [], "functionSize": [],
        },
    });
    for (name, table) in t.json() {
        thread[name] = table;
    }
    let file = json!({
        "meta": about(source),
        "libs": t.libs,
        "pages": [],
        "counters": [counter(&timeline, &meta.target)],
        "profilerOverhead": [],
        "threads": [thread],
    });
    serde_json::to_writer(&mut *out, &file).map_err(std::io::Error::from)?;
    writeln!(out)?;
    Ok(())
}

/// Returns the counter of live bytes over time.
fn counter(timeline: &Timeline, target: &prof_trace::records::Target) -> Value {
    let mut before = 0;
    let steps: Vec<i64> = timeline
        .last
        .iter()
        .map(|v| (*v as i64).wrapping_sub(std::mem::replace(&mut before, *v) as i64))
        .collect();
    let step = timeline.end_ns as f64 / 1e6 / timeline.last.len().max(1) as f64;
    let times: Vec<f64> = (1..=steps.len()).map(|i| i as f64 * step).collect();
    json!({
        "name": "malloc", "category": "Memory", "description": "Live bytes",
        "pid": target.pid.to_string(), "mainThreadIndex": 0,
        "samples": { "length": steps.len(), "time": times, "count": steps },
    })
}

fn about(source: &Source<'_>) -> Value {
    let analysis = source.index.analysis();
    let target = &analysis.meta().target;
    let estimated = if analysis.capture().is_sampled() { ", estimated from a sample" } else { "" };
    let what = format!("{} {}{estimated}", source.cost.unit(), source.cost.name());
    json!({
        "version": 29, "preprocessedProfileVersion": 48,
        "interval": 1, "startTime": target.wall_ns as f64 / 1e6,
        "processType": 0, "product": format!("{}: {what}", target.comm),
        "importedFrom": format!("prof {}", env!("CARGO_PKG_VERSION")),
        "stackwalk": 1, "debug": false, "toolkit": "", "platform": "Linux", "oscpu": "Linux",
        "abi": target.arch, "misc": "", "symbolicated": true,
        "arguments": target.command(),
        "usesOnlyOneStackType": true, "doesNotUseFrameImplementation": true,
        "sourceCodeIsNotOnSearchfox": true,
        "categories": [{ "name": "Other", "color": "grey", "subcategories": ["Other"] }],
        "extensions": { "length": 0, "baseURL": [], "id": [], "name": [] },
        "markerSchema": [],
        "sampleUnits": { "time": "ms", "eventDelay": "ms", "threadCPUDelta": "ns" },
    })
}

#[cfg(test)]
mod tests {
    use super::breakpad;

    #[test]
    fn build_ids_become_guids() {
        let id = "b8037b6260865346802321dd2256b8ad1d857e63";
        assert_eq!(breakpad(id), "627B03B886604653802321DD2256B8AD0");
        assert_eq!(breakpad(""), "0".repeat(33));
        assert_eq!(breakpad("ab"), format!("000000AB{}", "0".repeat(25)));
    }
}
