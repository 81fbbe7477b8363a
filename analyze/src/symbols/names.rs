//! Interns names: each is held once.

use super::demangle::{demangle, shorten};
use std::collections::HashMap;
use std::sync::Arc;

/// Interned names of functions and files.
#[derive(Default)]
pub(super) struct Names {
    /// Show functions without template arguments and parameters.
    short: bool,
    /// Demangled names by mangled name, as a look-up is faster than demangling.
    functions: HashMap<Box<str>, Arc<str>>,
    files: HashMap<Box<str>, Arc<str>>,
}

impl Names {
    pub(super) fn new(short: bool) -> Self {
        Self { short, ..Self::default() }
    }

    /// Returns the demangled name of a function.
    pub(super) fn function(&mut self, raw: &str) -> Arc<str> {
        if let Some(known) = self.functions.get(raw) {
            return known.clone();
        }
        let name = demangle(raw);
        let name: Arc<str> = if self.short { shorten(&name).into() } else { name.into() };
        self.functions.insert(raw.into(), name.clone());
        name
    }

    /// Returns the interned path of a source file.
    pub(super) fn file(&mut self, path: &str) -> Arc<str> {
        if let Some(known) = self.files.get(path) {
            return known.clone();
        }
        let name: Arc<str> = path.into();
        self.files.insert(path.into(), name.clone());
        name
    }
}
