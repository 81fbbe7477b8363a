//! Names of roots: variables, threads' stacks, mappings.

use crate::term::one_line;
use prof_analyze::Analysis;
use prof_analyze::symbols::Variables;
use prof_graph::Root;
use prof_os::maps::{self, Map};
use prof_os::{Pid, process};
use prof_trace::records::{ScanRoot, root_kind};
use serde::Serialize;
use std::collections::HashMap;

/// What kind of root it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum RootKind {
    Variable,
    Data,
    Stack,
    ThreadLocal,
    Mapping,
    Kernel,
    Several,
}

/// A root with its name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub(super) struct RootData {
    pub kind: RootKind,
    /// The name for people.
    pub name: String,
    /// The variable's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub variable: Option<String>,
    /// The program or library that the variable is in, or the mapping's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub module: Option<String>,
    /// The thread's id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thread: Option<Pid>,
    /// Address of the variable or of the mapping, in hexadecimal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The source file that declares the variable, and the line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
}

impl RootData {
    /// Returns what stands for several roots together.
    pub(super) fn several() -> Self {
        let name = "several roots".to_owned();
        let kind = RootKind::Several;
        Self::unnamed(kind, name)
    }

    /// Returns a root of which no more is known than what it is called.
    fn unnamed(kind: RootKind, name: String) -> Self {
        Self {
            kind,
            name,
            variable: None,
            module: None,
            thread: None,
            address: None,
            file: None,
            line: None,
        }
    }

    /// Returns the name with the place of the declaration, for people.
    pub(super) fn text(&self) -> String {
        match (&self.file, self.line) {
            (Some(file), Some(line)) => format!("{}, {file}:{line}", self.name),
            _ => self.name.clone(),
        }
    }

    /// Returns the address of the variable or of the mapping.
    pub(super) fn start(&self) -> Option<u64> {
        u64::from_str_radix(self.address.as_deref()?.strip_prefix("0x")?, 16).ok()
    }

    /// Returns the root as a recording keeps it.
    pub(super) fn record(&self) -> ScanRoot {
        ScanRoot {
            kind: match self.kind {
                RootKind::Variable => root_kind::VARIABLE,
                RootKind::Stack => root_kind::STACK,
                RootKind::ThreadLocal => root_kind::THREAD_LOCAL,
                RootKind::Mapping => root_kind::MAPPING,
                RootKind::Kernel => root_kind::KERNEL,
                RootKind::Data | RootKind::Several => root_kind::DATA,
            },
            name: self.name.clone(),
            variable: self.variable.clone(),
            module: self.module.clone(),
            thread: self.thread.map(|t| t.as_u32().into()),
            address: self.start(),
            file: self.file.clone(),
            line: self.line.unwrap_or(0),
        }
    }

    /// Returns a root of a recording. Names come from outside, so what moves a terminal's cursor is taken away.
    pub(super) fn of_record(r: &ScanRoot) -> Self {
        Self {
            kind: match r.kind {
                root_kind::VARIABLE => RootKind::Variable,
                root_kind::STACK => RootKind::Stack,
                root_kind::THREAD_LOCAL => RootKind::ThreadLocal,
                root_kind::MAPPING => RootKind::Mapping,
                root_kind::KERNEL => RootKind::Kernel,
                _ => RootKind::Data,
            },
            name: one_line(&r.name),
            variable: r.variable.as_deref().map(one_line),
            module: r.module.as_deref().map(one_line),
            thread: r.thread.map(|t| Pid::from_u32(t as u32)),
            address: r.address.map(|a| format!("{a:#x}")),
            file: r.file.as_deref().map(one_line),
            line: Some(r.line).filter(|l| *l != 0),
        }
    }
}

/// Looks up the names of roots.
pub(super) struct Roots<'a> {
    pid: Pid,
    variables: Variables<'a>,
    maps: Vec<Map>,
    threads: HashMap<Pid, String>,
}

impl<'a> Roots<'a> {
    /// Creates the lookup for a process and its recording.
    pub(super) fn new(pid: Pid, analysis: &'a Analysis) -> Self {
        let maps = maps::of(pid).unwrap_or_default();
        Self { pid, variables: Variables::new(analysis), maps, threads: HashMap::new() }
    }

    /// Returns a root with its name.
    pub(super) fn of(&mut self, root: &Root) -> RootData {
        let unnamed = RootData::unnamed;
        match *root {
            Root::Global(at) => self.global(at),
            // What a function has in a register now, it has on the stack at the next call.
            Root::Stack(tid) | Root::Registers(tid) => RootData {
                thread: Some(tid),
                ..unnamed(RootKind::Stack, format!("stack and registers of {}", self.thread(tid)))
            },
            Root::ThreadLocal(tid) => RootData {
                thread: Some(tid),
                ..unnamed(
                    RootKind::ThreadLocal,
                    format!("thread-local variables of {}", self.thread(tid)),
                )
            },
            Root::Mapping(at) => self.mapping(at),
            Root::Kernel => unnamed(RootKind::Kernel, "the kernel (epoll, timers)".to_owned()),
            // A process has none of these; a scan of a recording brings their names.
            Root::Saved(n) => unnamed(RootKind::Data, format!("root {n} of a scan")),
        }
    }

    /// Adds to variables where they are declared.
    pub(super) fn add_places(&self, roots: &mut HashMap<Root, RootData>) {
        let variables = || roots.values().filter(|r| r.kind == RootKind::Variable);
        let places = self.variables.places(variables().filter_map(RootData::start));
        for root in roots.values_mut() {
            if let Some((file, line)) = root.start().and_then(|at| places.get(&at)) {
                (root.file, root.line) = (Some(one_line(file)), Some(*line));
            }
        }
    }

    fn thread(&mut self, tid: Pid) -> String {
        let pid = self.pid;
        let name = self.threads.entry(tid).or_insert_with(|| {
            let comm = one_line(&process::comm(tid));
            if tid == pid {
                format!("the first thread ({comm})")
            } else {
                format!("thread {tid} ({comm})")
            }
        });
        name.clone()
    }

    fn global(&mut self, at: u64) -> RootData {
        let data = |module: &str, name, variable, start: u64| RootData {
            module: Some(module.to_owned()),
            address: Some(format!("{start:#x}")),
            ..RootData::unnamed(if variable { RootKind::Variable } else { RootKind::Data }, name)
        };
        let Some(v) = self.variables.at(at) else { return self.mapping(at) };
        let file = one_line(v.module.rsplit('/').next().unwrap_or(&v.module));
        match v.name.map(|n| one_line(&n)) {
            Some(name) => RootData {
                variable: Some(name.clone()),
                ..data(&v.module, format!("{name} in {file}"), true, v.start)
            },
            None => data(&v.module, format!("data of {file} at {:#x}", v.offset), false, at),
        }
    }

    fn mapping(&self, at: u64) -> RootData {
        let n = self.maps.partition_point(|m| m.start.0 <= at);
        let map = n.checked_sub(1).and_then(|n| self.maps.get(n)).filter(|m| at < m.end.0);
        let name = map.map(|m| one_line(&String::from_utf8_lossy(&m.name))).unwrap_or_default();
        let start = map.map_or(at, |m| m.start.0);
        let text = match (name.as_str(), map) {
            (_, None) => format!("memory at {at:#x}, which is not there any more"),
            ("", _) => format!("memory at {start:#x} that is no recorded block"),
            ("[heap]", _) => "memory from before the attach, in [heap]".to_owned(),
            (name, _) => format!("memory of {name}"),
        };
        RootData {
            module: (!name.is_empty()).then_some(name),
            address: Some(format!("{start:#x}")),
            ..RootData::unnamed(RootKind::Mapping, text)
        }
    }
}
