//! Names of the variables of programs and libraries.

use super::find::Files;
use super::table::Table;
use super::{declared, demangle, find, shorten};
use crate::Analysis;
use std::collections::{BTreeSet, HashMap};

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
    tables: HashMap<u32, (Table, Files)>,
}

impl<'a> Variables<'a> {
    /// Creates a lookup without any table.
    pub fn new(analysis: &'a Analysis) -> Self {
        Self { analysis, tables: HashMap::new() }
    }

    /// Returns the variable at an address of the process; `None`: no module that is loaded now lies there.
    pub fn at(&mut self, address: u64) -> Option<Variable> {
        let (id, module) = self.analysis.meta().module_at(address)?;
        let (table, _) = self.tables.entry(id).or_insert_with(|| {
            let files = find::find(self.analysis, module);
            let mut table = Table::default();
            files.image.iter().chain(&files.debug).for_each(|f| table.add_variables(f));
            table.finish();
            (table, files)
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

    /// Returns the file and the line where variables are declared, by [`Variable::start`], of modules whose variables were
    /// looked up. Those without debug information are left out.
    pub fn places(&self, starts: impl IntoIterator<Item = u64>) -> HashMap<u64, (String, u32)> {
        let mut by_module: HashMap<u32, (u64, BTreeSet<u64>)> = HashMap::new();
        for start in starts {
            if let Some((id, m)) = self.analysis.meta().module_at(start) {
                let (_, wanted) = by_module.entry(id).or_insert((m.bias, BTreeSet::new()));
                wanted.insert(start.wrapping_sub(m.bias));
            }
        }
        let mut all = HashMap::new();
        for (id, (bias, wanted)) in by_module {
            let Some((_, files)) = self.tables.get(&id) else { continue };
            for file in files.debug.iter().chain(&files.image) {
                let found = declared::declared(file, &wanted);
                all.extend(found.into_iter().map(|(at, place)| (at.wrapping_add(bias), place)));
            }
        }
        all
    }
}
