//! Counts the frames without a name, and the reasons.

use super::Style;
use crate::style::{WARN, base, printable};
use crate::symbols::Symbolizer;
use prof_trace::values::text::{count, number};
use serde::Serialize;
use std::fmt;

/// Number of reasons listed in text.
const REASONS: usize = 5;

/// Statistics of the symbolised code addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SymbolsData {
    /// Number of distinct code addresses.
    pub addresses: u64,
    /// Number of those without a function.
    pub unnamed: u64,
    /// The reasons, the most frequent first.
    pub reasons: Vec<UnnamedData>,
}

/// Addresses without a function, for one reason and module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UnnamedData {
    /// Path of the module; `None` for addresses outside of modules.
    pub module: Option<String>,
    /// The reason.
    pub reason: &'static str,
    /// Number of addresses.
    pub addresses: u64,
}

impl SymbolsData {
    pub(crate) fn new(symbols: &Symbolizer<'_>) -> Self {
        let data = |(why, module, addresses): (crate::symbols::Unnamed, Option<&str>, u64)| {
            UnnamedData { module: module.map(printable), reason: symbols.why(why), addresses }
        };
        let mut reasons: Vec<_> = symbols.unnamed().map(data).collect();
        reasons.sort_by(|a, b| (b.addresses, &a.module).cmp(&(a.addresses, &b.module)));
        let unnamed = reasons.iter().map(|r| r.addresses).sum();
        Self { addresses: symbols.looked_up(), unnamed, reasons }
    }

    /// Writes the statistics if any address has no function.
    pub(super) fn write(&self, style: Style, out: &mut String) -> fmt::Result {
        if self.unnamed == 0 {
            return Ok(());
        }
        let all = count(self.addresses, "code address", "code addresses");
        let text = format!("{} of {all} have no function name:", number(self.unnamed));
        style.line(out, "symbols", &style.paint(WARN, &text))?;
        for r in self.reasons.iter().take(REASONS) {
            let module = r
                .module
                .as_deref()
                .map_or(String::new(), |m| format!(" in {}", printable(base(m))));
            style.line(out, "", &format!("{}{module}: {}", number(r.addresses), r.reason))?;
        }
        if let Some(more) = self.reasons.get(REASONS..).filter(|m| !m.is_empty()) {
            let n = more.iter().map(|r| r.addresses).sum::<u64>();
            let modules = count(more.len() as u64, "other module", "other modules");
            let by = style.hint("--format json", "`prof report --format json`");
            style.line(out, "", &format!("{} in {modules}, listed by {by}", number(n)))?;
        }
        Ok(())
    }
}
