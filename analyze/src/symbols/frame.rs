//! A frame of a stack.

use std::sync::Arc;

/// A frame of a stack, symbolised as far as possible.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Frame {
    /// The address in the stack: mostly a return address.
    pub address: u64,
    /// The function, demangled.
    pub function: Option<Arc<str>>,
    /// Distance of the address from the start of its symbol in bytes, if it is known.
    pub function_offset: Option<u64>,
    /// The source file.
    pub file: Option<Arc<str>>,
    /// The line in the source file.
    pub line: Option<u32>,
    /// Path of the module.
    pub module: Option<Arc<str>>,
    /// The address relative to the module's file, as `addr2line` and `objdump` take it.
    pub offset: Option<u64>,
    /// The compiler inlined this function into that of the next frame.
    pub inlined: bool,
}

/// Why a frame has no function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Unnamed {
    /// The address is in no module: it belongs to a just-in-time compiler that writes no map, or is invalid.
    NoModule,
    /// The module's file was not found.
    NoFile,
    /// The module's file has been replaced by another build.
    Replaced,
    /// No symbol of the module covers the address: the file was stripped.
    NoSymbol,
}

impl Unnamed {
    /// Returns the reason in words.
    pub fn why(self) -> &'static str {
        match self {
            Unnamed::NoModule => "in no module, and in no /tmp/perf-PID.map",
            Unnamed::NoFile => "the file was not found",
            Unnamed::Replaced => "the file is another build by now",
            Unnamed::NoSymbol => "no symbol for these addresses, and no debug file found",
        }
    }
}
