//! Names of the variables of programs and libraries.

use super::table::Table;
use super::{demangle, find, shorten};
use crate::Analysis;
use prof_trace::records::Module;
use std::collections::HashMap;

/// A place in the data of a module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variable {
    /// Demangled name of the variable; `None`: the module's files have no symbol there.
    pub name: Option<String>,
    /// Address of the variable in the process; without a name that of the place itself.
    pub start: u64,
    /// Path of the module.
    pub module: String,
    /// Offset of the place from where the module's file says that its first byte is loaded at address 0.
    pub offset: u64,
}

/// Looks up variables in the symbol tables of a recording's modules, each of which is read once.
pub struct Variables<'a> {
    analysis: &'a Analysis,
    tables: HashMap<u32, Table>,
}

impl<'a> Variables<'a> {
    /// Creates a lookup without any table.
    pub fn new(analysis: &'a Analysis) -> Self {
        Self { analysis, tables: HashMap::new() }
    }

    /// Returns the variable at an address of the process; `None`: no module that is loaded now lies there.
    pub fn at(&mut self, address: u64) -> Option<Variable> {
        let modules = &self.analysis.meta().modules;
        let is_there = |m: &&Module| (m.start..m.end).contains(&address);
        // Of modules that were loaded there one after the other the last is the one that is there.
        let (id, module) =
            modules.iter().filter(|(_, m)| is_there(m)).max_by_key(|(id, _)| **id)?;
        let table = self.tables.entry(*id).or_insert_with(|| {
            let files = find::find(self.analysis, module);
            let mut table = Table::default();
            files.image.iter().chain(&files.debug).for_each(|f| table.add_variables(f));
            table.finish();
            table
        });
        let offset = address.wrapping_sub(module.bias);
        let found = table.find(offset);
        let is_short = self.analysis.symbol_options().short_names;
        let name = found.as_ref().map(|f| match demangle(&f.name) {
            long if is_short => shorten(&long),
            long => long,
        });
        let start = found.map_or(address, |f| f.start.wrapping_add(module.bias));
        Some(Variable { name, start, module: module.path.to_string(), offset })
    }
}
