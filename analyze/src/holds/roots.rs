//! Names of roots: variables, threads' stacks, mappings.

use crate::style::printable;
use prof_os::Pid;
use prof_trace::records::{ScanRoot, root_kind};
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
    /// The program or library that the variable is in, or the mapping's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub module: Option<String>,
    /// The thread's id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thread: Option<Pid>,
    /// Address of the variable or of the mapping, in hexadecimal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The source file that declares the variable.
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
            module: None,
            thread: None,
            address: None,
            file: None,
            line: None,
        }
    }

    /// Returns the name with the place of the declaration, for people.
    #[must_use]
    pub fn text(&self) -> String {
        match (&self.file, self.line) {
            (Some(file), Some(line)) => format!("{}, {file}:{line}", self.name),
            _ => self.name.clone(),
        }
    }

    /// Returns the address of the variable or of the mapping.
    #[must_use]
    pub fn start(&self) -> Option<u64> {
        u64::from_str_radix(self.address.as_deref()?.strip_prefix("0x")?, 16).ok()
    }

    /// Returns the root as a recording keeps it.
    #[must_use]
    pub fn record(&self) -> ScanRoot {
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
            module: r.module.as_deref().map(printable),
            thread: r.thread.map(|t| Pid::from_u32(t as u32)),
            address: r.address.map(|a| format!("{a:#x}")),
            file: r.file.as_deref().map(printable),
            line: Some(r.line).filter(|l| *l != 0),
        }
    }
}
