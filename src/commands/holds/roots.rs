//! Looks up the names of roots in a process: variables, threads' stacks, mappings.

use crate::term::one_line;
use prof_analyze::Analysis;
use prof_analyze::holds::{Root, RootData, RootKind};
use prof_analyze::report::FrameData;
use prof_analyze::symbols::{Symbolizer, Variables};
use prof_os::maps::{self, Map};
use prof_os::{Pid, process};
use std::collections::HashMap;

/// Looks up the names of roots.
pub(super) struct Roots<'a> {
    pid: Pid,
    variables: Variables<'a>,
    functions: Symbolizer<'a>,
    maps: Vec<Map>,
    threads: HashMap<Pid, String>,
}

impl<'a> Roots<'a> {
    /// Creates the lookup for a process and its recording.
    pub(super) fn new(pid: Pid, analysis: &'a Analysis) -> Self {
        let maps = maps::of(pid).unwrap_or_default();
        let (variables, functions) = (Variables::new(analysis), Symbolizer::new(analysis));
        Self { pid, variables, functions, maps, threads: HashMap::new() }
    }

    /// Returns a root with its name.
    pub(super) fn of(&mut self, root: &Root) -> RootData {
        let unnamed = RootData::unnamed;
        match *root {
            Root::Global(at) => self.global(at),
            // A pointer that a function has in a register now stands on the stack at its next call.
            Root::Stack(tid) | Root::Registers(tid) => RootData {
                thread: Some(tid),
                ..unnamed(RootKind::Stack, format!("stack and registers of {}", self.thread(tid)))
            },
            Root::Frame { thread, number, pc, exact } => self.frame(thread, number, pc, exact),
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

    fn frame(&mut self, tid: Pid, number: u32, pc: u64, exact: bool) -> RootData {
        let frames = self.functions.frames_at(pc, exact);
        // The last is the function whose frame it is; those before it were inlined into that.
        let f = frames.last().map(FrameData::new);
        let f = f.as_ref();
        let file = f.and_then(|f| f.file.as_deref());
        let mut data = RootData {
            thread: Some(tid),
            frame: Some(number),
            function: f.and_then(|f| f.function.clone()),
            module: f.and_then(|f| f.module.clone()),
            address: Some(format!("{pc:#x}")),
            file: file.map(|path| path.rsplit('/').next().unwrap_or(path).to_owned()),
            line: f.and_then(|f| f.line),
            ..RootData::unnamed(RootKind::Frame, String::new())
        };
        let thread = self.thread(tid);
        data.name = format!("stack of {thread}, in {} (frame {number})", data.code());
        data
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
