//! Finds who asked for a block: the innermost frame of its stack that does not allocate on behalf of another function.
//!
//! The search passes over three kinds of frames: allocators, the standard libraries of C++ and Rust ([`names`]), and
//! the program's own wrappers, such as `zmalloc`, which are recognised by their use ([`wrappers`]).

mod names;
mod wrappers;

use crate::Analysis;
use crate::symbols::Symbolizer;
use regex::Regex;
use std::collections::{HashMap, HashSet};

pub(crate) use names::bare;

/// The set of functions that the search for the asking frame passes over.
pub(crate) struct Askers {
    patterns: Vec<Regex>,
    /// Names of the wrapper functions, by the path of their module (empty if it is not known).
    wrappers: HashMap<Box<str>, HashSet<Box<str>>>,
    /// Passes over allocators only, not over wrappers and libraries.
    shows_wrappers: bool,
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
    pub fn new(analysis: &Analysis, symbols: &mut Symbolizer<'_>) -> Self {
        let options = analysis.symbol_options();
        let patterns = options.skip.iter().filter_map(|p| Regex::new(p).ok()).collect();
        let mut askers =
            Self { patterns, wrappers: HashMap::new(), shows_wrappers: options.show_wrappers };
        if !askers.shows_wrappers {
            wrappers::find(&mut askers, analysis, symbols);
        }
        askers
    }

    fn kind(&self, function: Option<&str>, module: Option<&str>) -> Kind {
        let Some(name) = function else { return Kind::Asker };
        if names::is_allocator(name) {
            Kind::Allocator
        } else if self.patterns.iter().any(|p| p.is_match(name)) {
            Kind::Wrapper
        } else if self.shows_wrappers {
            Kind::Asker
        } else if names::is_library(name) {
            Kind::Library
        } else if self.is_wrapper(name, module) {
            Kind::Wrapper
        } else {
            Kind::Asker
        }
    }

    fn is_wrapper(&self, name: &str, module: Option<&str>) -> bool {
        self.wrappers.get(module.unwrap_or("")).is_some_and(|names| names.contains(name))
    }

    /// Returns the frame that asked. `frame` returns the function and module of a frame, counted from the innermost,
    /// and `None` behind the outermost. If every frame is to be passed over, the innermost that is not an allocator
    /// counts as the asker. Returns `None` for a stack without frames.
    pub fn find<'a>(
        &self,
        frame: impl Fn(usize) -> Option<(Option<&'a str>, Option<&'a str>)>,
    ) -> Option<Asked> {
        let (mut through, mut first) = (None, None);
        for i in 0.. {
            let Some((function, module)) = frame(i) else { break };
            match self.kind(function, module) {
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
