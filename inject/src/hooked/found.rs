//! A function that was found in the target, and the modules that are told apart by name.

use crate::RemoteAddr;
use crate::process::elf::{Module, Symbol};
use prof_trace::shared::{Area, Kind};

/// A function of the target that is to be hooked.
#[derive(Clone, Debug)]
pub struct Found {
    /// The function's name.
    pub name: String,
    /// Other names for the same code.
    pub aliases: Vec<String>,
    /// The kind of function, by which the hook handles its calls.
    pub kind: Kind,
    /// The function's address.
    pub addr: RemoteAddr,
    /// The function's length; 0 if it is not known.
    pub size: u64,
    /// Index of the function's module.
    pub module: usize,
    /// Address of the `nothrow` form.
    pub nothrow: Option<RemoteAddr>,
    /// Indices of the arguments that are the size and the block, from 0, if the user has named the function.
    pub args: (u8, u8),
    /// See [`Function::asks`](prof_trace::shared::Function::asks).
    pub asks: u64,
    /// Places in libc that the hook needs for calls that change mappings.
    pub helpers: Helpers,
}

/// Places in libc that the hook looks at, see [`Function`](prof_trace::shared::Function).
#[derive(Clone, Copy, Debug, Default)]
pub struct Helpers {
    /// Address of the function that returns the address of the thread's error number; 0: unknown.
    pub errno_at: u64,
    /// Address of the variable that holds the break; 0: unknown.
    pub break_at: u64,
    /// Code of `sbrk`.
    pub caller: Area,
}

impl Found {
    /// Returns the function of a symbol in the module with index `module`.
    #[must_use]
    pub fn new(s: &Symbol, kind: Kind, module: usize) -> Self {
        let (name, addr, size) = (s.name.clone(), s.addr, s.size);
        let aliases = Vec::new();
        let (asks, helpers) = (0, Helpers::default());
        Self { name, aliases, kind, addr, size, module, nothrow: None, args: (0, 0), asks, helpers }
    }
}

/// Adds a function, or another name to one that has the same address.
pub(crate) fn merge(found: &mut Vec<Found>, f: Found) {
    let Some(same) = found.iter_mut().find(|o| o.addr == f.addr) else { return found.push(f) };
    // Of two kinds, the safer one is that of a free that may call another hooked free.
    if same.kind == Kind::Free && f.kind == Kind::Delete {
        same.kind = Kind::Delete;
    }
    if same.name != f.name && !same.aliases.contains(&f.name) {
        same.aliases.push(f.name);
    }
}

/// Returns whether a module is the dynamic linker alone. musl's is libc, too.
pub(crate) fn is_linker(m: &Module) -> bool {
    // On MIPS, glibc's linker is ld.so.1.
    let name = m.file_name();
    (name.starts_with("ld-") || name.starts_with("ld.so")) && !name.starts_with("ld-musl")
}

/// Returns whether a module is libc.
pub(crate) fn is_libc(m: &Module) -> bool {
    ["libc.", "libc-", "ld-musl"].iter().any(|n| m.file_name().starts_with(n))
}
