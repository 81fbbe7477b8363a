//! The kernel's functions by address, from `/proc/kallsyms`.

use crate::Error;
use std::collections::HashMap;
use std::fs;

/// Path of the list.
const KALLSYMS: &str = "/proc/kallsyms";
/// Module of the kernel's own functions.
pub(crate) const KERNEL: &str = "[kernel]";

/// A function at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelFunction<'a> {
    /// Name of the function.
    pub function: &'a str,
    /// Distance of the address from its start, in bytes.
    pub offset: u64,
    /// Name of its module in brackets; `[kernel]` for what is built in.
    pub module: &'a str,
}

/// The functions of the kernel and its modules.
#[derive(Debug, Default)]
pub struct Names {
    /// Start, place of the name in `text`, module.
    symbols: Vec<(u64, u32, u16, u16)>,
    text: String,
    modules: Vec<String>,
}

impl Names {
    /// Reads the list.
    ///
    /// # Errors
    /// If it can't be read, or the kernel hides the addresses.
    pub fn read() -> Result<Self, Error> {
        let bytes = fs::read(KALLSYMS).map_err(Error::io(format!("cannot read {KALLSYMS}")))?;
        let names = Self::parse(&String::from_utf8_lossy(&bytes));
        if names.symbols.iter().all(|s| s.0 == 0) {
            let what = format!(
                "{KALLSYMS} has no addresses; run prof as root (CAP_SYSLOG), or set kernel.kptr_restrict to 0 or 1"
            );
            return Err(Error::Io { what, source: std::io::ErrorKind::PermissionDenied.into() });
        }
        Ok(names)
    }

    /// Parses lines of address, type, name, and possibly a module in brackets.
    pub fn parse(text: &str) -> Self {
        let mut all = Self { modules: vec![KERNEL.into()], ..Self::default() };
        let mut numbers: HashMap<String, u16> = HashMap::new();
        for line in text.lines() {
            let mut words = line.split_ascii_whitespace();
            let (Some(address), Some(kind), Some(name)) =
                (words.next(), words.next(), words.next())
            else {
                continue;
            };
            let Ok(address) = u64::from_str_radix(address, 16) else { continue };
            if !matches!(kind, "t" | "T" | "w" | "W") || name.len() > usize::from(u16::MAX) {
                continue;
            }
            let module = words.next().map_or(0, |module| {
                *numbers.entry(module.into()).or_insert_with(|| {
                    all.modules.push(module.into());
                    (all.modules.len() - 1) as u16
                })
            });
            all.symbols.push((address, all.text.len() as u32, name.len() as u16, module));
            all.text.push_str(name);
        }
        all.symbols.sort_by_key(|s| s.0);
        // Of several names of one address the first counts.
        all.symbols.dedup_by_key(|s| s.0);
        all
    }

    /// Returns the function that contains an address; `None` below the first one.
    pub fn find(&self, address: u64) -> Option<KernelFunction<'_>> {
        let i = self.symbols.partition_point(|s| s.0 <= address).checked_sub(1)?;
        let (start, at, len, module) = self.symbols[i];
        Some(KernelFunction {
            function: self.text.get(at as usize..at as usize + usize::from(len))?,
            offset: address - start,
            module: self.modules.get(usize::from(module))?,
        })
    }

    /// Returns the first and the last address of a module's functions; `None` if it is not known.
    pub fn extent(&self, module: &str) -> Option<(u64, u64)> {
        let number = self.modules.iter().position(|m| m == module)? as u16;
        let mut all = self.symbols.iter().filter(|s| s.3 == number).map(|s| s.0);
        let first = all.next()?;
        Some((first, all.next_back().unwrap_or(first)))
    }

    /// Returns the addresses of two names; `None` if one is missing.
    pub fn between(&self, first: &str, second: &str) -> Option<(u64, u64)> {
        let name =
            |s: &(u64, u32, u16, u16)| &self.text[s.1 as usize..s.1 as usize + usize::from(s.2)];
        let find = |wanted| Some(self.symbols.iter().find(|s| name(s) == wanted)?.0);
        Some((find(first)?, find(second)?))
    }

    /// Returns the ranges of addresses of the functions whose names `wanted` accepts.
    pub fn ranges(&self, wanted: impl Fn(&str) -> bool) -> Vec<(u64, u64)> {
        let name =
            |s: &(u64, u32, u16, u16)| &self.text[s.1 as usize..s.1 as usize + usize::from(s.2)];
        let pairs = self.symbols.windows(2).filter(|w| wanted(name(&w[0])));
        pairs.map(|w| (w[0].0, w[1].0)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "ffffffff81000000 T _stext\nffffffff81000100 t alloc_pipe_info\n\
        ffffffff81000200 D data\nffffffff81000300 T kfree\nffffffffc0000000 t ext4_get\t[ext4]\nbad\n";

    #[test]
    fn addresses_get_the_function_below_them() {
        let n = Names::parse(TEXT);
        let find = |a| n.find(a).map(|f| (f.function, f.offset, f.module));
        assert_eq!(find(0xffff_ffff_8100_0101), Some(("alloc_pipe_info", 1, "[kernel]")));
        assert_eq!(find(0xffff_ffff_c000_0010), Some(("ext4_get", 0x10, "[ext4]")));
        assert_eq!(find(0x1000), None);
        let ranges = n.ranges(|name| name == "alloc_pipe_info");
        assert_eq!(ranges, [(0xffff_ffff_8100_0100, 0xffff_ffff_8100_0300)]);
    }
}
