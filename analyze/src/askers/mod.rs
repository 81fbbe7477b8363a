//! Finds who asked for a block: the innermost frame of its stack that does not allocate on behalf of another function.
//!
//! The search passes over three kinds of frames: allocators, the standard libraries of C++ and Rust ([`names`]), and
//! the program's own wrappers, such as `zmalloc`, which are recognised by their use ([`wrappers`]).

mod names;
mod wrappers;

use crate::Analysis;
use crate::symbols::{Frame, Symbolizer};
use regex::Regex;
use std::collections::{HashMap, HashSet};

pub(crate) use names::{bare, is_allocator};

/// The set of functions that the search for the asking frame passes over.
pub(crate) struct Askers {
    patterns: Vec<Regex>,
    /// Names of the wrapper functions, by the path of their module (empty if it is not known).
    wrappers: HashMap<Box<str>, HashSet<Box<str>>>,
    /// Passes over allocators only, not over wrappers and libraries.
    shows_wrappers: bool,
}

/// Properties of a frame in the search for the code that asked.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen<'a> {
    /// The function, demangled.
    pub function: Option<&'a str>,
    /// Path of the module.
    pub module: Option<&'a str>,
    /// The source file.
    pub file: Option<&'a str>,
}

impl<'a> Seen<'a> {
    /// Returns the place of a frame.
    pub(crate) fn of(f: &'a Frame) -> Self {
        Self {
            function: f.function.as_deref(),
            module: f.module.as_deref(),
            file: f.file.as_deref(),
        }
    }
}

/// Indices of frames in a stack, counted from the innermost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    /// The frame that asked for the memory.
    pub asker: usize,
    /// The outermost frame that was passed over, if it is not an allocator: the function that the asker called.
    pub through: Option<usize>,
}

/// The reason why a frame is passed over; `Asker` if it is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Allocator,
    Library,
    Wrapper,
    Asker,
}

impl Askers {
    /// Finds the wrappers of a recording, and compiles the patterns of functions to skip from its
    /// [`SymbolOptions`](crate::symbols::SymbolOptions).
    pub(crate) fn new(analysis: &Analysis, symbols: &mut Symbolizer<'_>) -> Self {
        let options = analysis.symbol_options();
        let patterns = options.skip.iter().filter_map(|p| Regex::new(p).ok()).collect();
        let mut askers =
            Self { patterns, wrappers: HashMap::new(), shows_wrappers: options.show_wrappers };
        if !askers.shows_wrappers {
            wrappers::find(&mut askers, analysis, symbols);
        }
        askers
    }

    fn kind(&self, seen: Seen<'_>) -> Kind {
        let Some(name) = seen.function else { return Kind::Asker };
        let file = seen.file.unwrap_or_default();
        if names::is_allocator(name)
            || names::is_file_of_allocator(file)
            || names::is_kernel_allocator(name, seen.module.unwrap_or_default())
        {
            Kind::Allocator
        } else if self.patterns.iter().any(|p| p.is_match(name)) {
            Kind::Wrapper
        } else if self.shows_wrappers {
            Kind::Asker
        } else if names::is_library(name) || names::is_file_of_library(file) {
            Kind::Library
        } else if self.is_wrapper(name, seen.module) {
            Kind::Wrapper
        } else {
            Kind::Asker
        }
    }

    fn is_wrapper(&self, name: &str, module: Option<&str>) -> bool {
        self.wrappers.get(module.unwrap_or("")).is_some_and(|names| names.contains(name))
    }

    /// Returns the frame that asked. `frame` returns what is known of a frame, counted from the innermost, and `None`
    /// behind the outermost. If every frame is to be passed over, the innermost that is not an allocator
    /// counts as the asker. Returns `None` for a stack without frames.
    pub(crate) fn find<'a>(&self, frame: impl Fn(usize) -> Option<Seen<'a>>) -> Option<Asked> {
        let (mut through, mut first) = (None, None);
        for i in 0.. {
            let Some(seen) = frame(i) else { break };
            match self.kind(seen) {
                Kind::Asker => return Some(Asked { asker: i, through }),
                Kind::Allocator => {}
                Kind::Library | Kind::Wrapper => {
                    first.get_or_insert(i);
                    through = Some(i);
                }
            }
        }
        frame(0)?;
        Some(Asked { asker: first.unwrap_or(0), through: None })
    }
}
