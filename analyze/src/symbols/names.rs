//! Names, each held once.

use super::demangle::{demangle, shorten};
use std::collections::HashMap;
use std::sync::Arc;

/// Names of functions and files that were met.
#[derive(Default)]
pub(super) struct Names {
    /// Functions are shown without template arguments and parameters.
    short: bool,
    /// By the name in the file: demangling takes longer than finding.
    functions: HashMap<Box<str>, Arc<str>>,
    files: HashMap<Box<str>, Arc<str>>,
}

impl Names {
    pub(super) fn new(short: bool) -> Self {
        Self { short, ..Self::default() }
    }

    /// A function, demangled.
    pub(super) fn function(&mut self, raw: &str) -> Arc<str> {
        if let Some(known) = self.functions.get(raw) {
            return known.clone();
        }
        let name = demangle(raw);
        let name: Arc<str> = if self.short { shorten(&name).into() } else { name.into() };
        self.functions.insert(raw.into(), name.clone());
        name
    }

    /// A file.
    pub(super) fn file(&mut self, path: &str) -> Arc<str> {
        if let Some(known) = self.files.get(path) {
            return known.clone();
        }
        let name: Arc<str> = path.into();
        self.files.insert(path.into(), name.clone());
        name
    }
}
