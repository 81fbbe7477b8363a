//! Stacks, as bytehound prints them: from the start of the thread to the allocator.

use crate::recording::Recording;
use prof_analyze::maps::Shower;
use prof_analyze::report::FrameData;
use std::fmt::{self, Write};
use std::sync::Arc;

/// A stack of calls.
#[derive(Clone)]
pub(crate) struct Backtrace {
    pub(crate) of: Arc<Recording>,
    /// Stack node; 0: there is no stack.
    pub(crate) node: u32,
    stripped: bool,
}

/// Parts of names of functions by which Rust's runtime starts `main` and threads.
const RUNTIME: [&str; 6] = [
    "FnOnce::call_once",
    "FnOnce<",
    "std::panic::catch_unwind",
    "std::panicking::",
    "std::rt::lang_start",
    "__rust_begin_short_backtrace",
];

fn is_runtime(function: &str) -> bool {
    let of_panics = function.starts_with("std::panicking::")
        && !["try", "catch_unwind"].iter().any(|part| function.contains(part));
    let calls = function.contains("FnOnce<") && !function.ends_with("call_once");
    !of_panics && !calls && RUNTIME.iter().any(|part| function.contains(part))
}

/// Returns whether the frames below belong to the growth of a vector.
fn is_resize(function: &str) -> bool {
    function.starts_with("alloc::vec::Vec<") && function.ends_with("::resize")
}

fn base(path: &str) -> &str {
    path.rsplit('/').find(|s| !s.is_empty()).unwrap_or(path)
}

impl Backtrace {
    pub(crate) fn new(of: &Arc<Recording>, node: u32) -> Self {
        Self { of: of.clone(), node, stripped: false }
    }

    /// Returns the stack without the frames of Rust's runtime.
    pub(crate) fn strip(&self) -> Self {
        Self { stripped: true, ..self.clone() }
    }

    /// Returns the frames, outermost first, each with its number in the whole stack.
    pub(crate) fn frames(&self) -> Vec<(usize, FrameData)> {
        if self.node == 0 {
            return Vec::new();
        }
        let frames = Shower::new(self.of.analysis()).frames(self.node);
        let mut out = Vec::new();
        for (number, frame) in frames.into_iter().rev().enumerate() {
            let function = frame.function.clone().unwrap_or_default();
            if self.stripped && is_runtime(&function) {
                continue;
            }
            out.push((number, frame));
            if self.stripped && is_resize(&function) {
                break;
            }
        }
        out
    }
}

impl fmt::Display for Backtrace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.node == 0 {
            return f.write_str("None");
        }
        let mut text = String::new();
        for (number, frame) in self.frames() {
            if !text.is_empty() {
                text.push('\n');
            }
            write!(text, "#{number:02}")?;
            if let Some(module) = &frame.module {
                write!(text, " [{}]", base(module))?;
            }
            match &frame.function {
                Some(function) => write!(text, " {function}")?,
                None => write!(text, " {}", frame.address.trim_start_matches("0x"))?,
            }
            match (&frame.file, frame.line) {
                (Some(file), Some(line)) => write!(text, " [{}:{line}]", base(file))?,
                (Some(file), None) => write!(text, " [{}]", base(file))?,
                _ => {}
            }
        }
        f.write_str(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_runtime_is_stripped() {
        for name in [
            "std::rt::lang_start",
            "std::rt::lang_start_internal::{{closure}}",
            "std::panic::catch_unwind",
            "std::panicking::try::do_call",
            "core::ops::function::impls::<impl core::ops::function::FnOnce<A> for &F>::call_once",
            "core::ops::function::FnOnce::call_once",
            "std::sys_common::backtrace::__rust_begin_short_backtrace",
        ] {
            assert!(is_runtime(name), "{name}");
        }
        for name in ["simulation::main", "std::panicking::begin_panic", "std::rt::init", "main"] {
            assert!(!is_runtime(name), "{name}");
        }
        assert!(
            is_resize("alloc::vec::Vec<T,A>::resize") && !is_resize("alloc::vec::Vec<T,A>::push")
        );
    }
}
