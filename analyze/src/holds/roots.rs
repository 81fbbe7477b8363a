//! Names of roots: variables, threads' stacks, mappings.

use crate::style::printable;
use prof_os::Pid;
use prof_trace::records::{ScanFrame, ScanRoot, root_kind};
use serde::Serialize;

/// Kind of a root.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RootKind {
    /// A variable with a symbol.
    Variable,
    /// Data of a program or library without one.
    Data,
    /// A thread's stack and registers.
    Stack,
    /// A frame of a thread's stack, with the registers that are its function's. It is a part of [`RootKind::Stack`].
    Frame,
    /// A thread's thread-local variables.
    ThreadLocal,
    /// A mapping: memory that no allocator has handed out, or from before the attach.
    Mapping,
    /// The kernel.
    Kernel,
    /// Several roots together.
    Several,
}

impl RootKind {
    /// Returns the word for it, as JSON has it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Variable => "variable",
            Self::Data => "data",
            Self::Stack => "stack",
            Self::Frame => "frame",
            Self::ThreadLocal => "thread-local",
            Self::Mapping => "mapping",
            Self::Kernel => "kernel",
            Self::Several => "several",
        }
    }
}

/// A root with its name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct RootData {
    /// Kind of a root.
    pub kind: RootKind,
    /// The name for people.
    pub name: String,
    /// The variable's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub variable: Option<String>,
    /// The number of the frame, counted from the innermost, which is 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frame: Option<u32>,
    /// The frame's function.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub function: Option<String>,
    /// The program or library that the variable or the function is in, or the mapping's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub module: Option<String>,
    /// The thread's id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thread: Option<Pid>,
    /// Address of the variable, of the mapping, or of the instruction at which the function goes on, in hexadecimal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The source file that declares the variable, or has the instruction.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// The line in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
}

impl RootData {
    /// Returns what stands for several roots together.
    #[must_use]
    pub fn several() -> Self {
        let name = "several roots".to_owned();
        let kind = RootKind::Several;
        Self::unnamed(kind, name)
    }

    /// Returns a root of which no more is known than what it is called.
    #[must_use]
    pub fn unnamed(kind: RootKind, name: String) -> Self {
        Self {
            kind,
            name,
            variable: None,
            frame: None,
            function: None,
            module: None,
            thread: None,
            address: None,
            file: None,
            line: None,
        }
    }

    /// Returns the name with the place of the declaration or of the instruction, for people.
    #[must_use]
    pub fn text(&self) -> String {
        self.placed(&self.name)
    }

    /// Returns what a frame is called where its thread has been named: `frame 3: serve_one, server.c:88`.
    #[must_use]
    pub fn frame_text(&self) -> String {
        self.placed(&format!("frame {}: {}", self.frame.unwrap_or(0), self.code()))
    }

    /// Returns the frame's function, or the place of its code.
    #[must_use]
    pub fn code(&self) -> String {
        let at = self.address.as_deref().unwrap_or("?");
        match (&self.function, &self.module) {
            (Some(function), _) => function.clone(),
            (None, Some(m)) => format!("code of {} at {at}", m.rsplit('/').next().unwrap_or(m)),
            (None, None) => format!("code at {at}"),
        }
    }

    fn placed(&self, name: &str) -> String {
        match (&self.file, self.line) {
            (Some(file), Some(line)) => format!("{name}, {file}:{line}"),
            _ => name.to_owned(),
        }
    }

    /// Returns the address of the variable or of the mapping; `None` for a frame, whose address is one of code.
    #[must_use]
    pub fn start(&self) -> Option<u64> {
        self.at().filter(|_| self.kind != RootKind::Frame)
    }

    fn at(&self) -> Option<u64> {
        u64::from_str_radix(self.address.as_deref()?.strip_prefix("0x")?, 16).ok()
    }

    /// Returns the root as a recording keeps it.
    #[must_use]
    pub fn record(&self) -> ScanRoot {
        ScanRoot {
            kind: match self.kind {
                RootKind::Variable => root_kind::VARIABLE,
                RootKind::Stack | RootKind::Frame => root_kind::STACK,
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

    /// Returns a frame as a recording keeps it. It does not have the number of its root.
    #[must_use]
    pub fn frame_record(&self) -> ScanFrame {
        ScanFrame {
            root: 0,
            number: self.frame.unwrap_or(0),
            address: self.at().unwrap_or(0),
            name: self.name.clone(),
            function: self.function.clone(),
            module: self.module.clone(),
            file: self.file.clone(),
            line: self.line.unwrap_or(0),
        }
    }

    /// Returns a frame of a recording; `stack` is the root that it is a part of. See [`Self::of_record`].
    #[must_use]
    pub fn of_frame(f: &ScanFrame, stack: Option<&ScanRoot>) -> Self {
        Self {
            frame: Some(f.number),
            function: f.function.as_deref().map(printable),
            module: f.module.as_deref().map(printable),
            thread: stack.and_then(|s| s.thread).map(|t| Pid::from_u32(t as u32)),
            address: Some(format!("{:#x}", f.address)),
            file: f.file.as_deref().map(printable),
            line: Some(f.line).filter(|l| *l != 0),
            ..Self::unnamed(RootKind::Frame, printable(&f.name))
        }
    }

    /// Returns a root of a recording. Names come from outside, so what moves a terminal's cursor is taken away.
    #[must_use]
    pub fn of_record(r: &ScanRoot) -> Self {
        Self {
            kind: match r.kind {
                root_kind::VARIABLE => RootKind::Variable,
                root_kind::STACK => RootKind::Stack,
                root_kind::THREAD_LOCAL => RootKind::ThreadLocal,
                root_kind::MAPPING => RootKind::Mapping,
                root_kind::KERNEL => RootKind::Kernel,
                _ => RootKind::Data,
            },
            name: printable(&r.name),
            variable: r.variable.as_deref().map(printable),
            frame: None,
            function: None,
            module: r.module.as_deref().map(printable),
            thread: r.thread.map(|t| Pid::from_u32(t as u32)),
            address: r.address.map(|a| format!("{a:#x}")),
            file: r.file.as_deref().map(printable),
            line: Some(r.line).filter(|l| *l != 0),
        }
    }
}
