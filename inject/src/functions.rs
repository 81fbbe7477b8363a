//! The one table of hooked functions, and where the target has them.

use crate::elf::{Module, Symbol};
use crate::{RemoteAddr, RemoteMemory};
use prof_trace::records::NotHooked;
use prof_trace::shared::Kind;

/// A function that is hooked where it is found.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// Its name, without an allocator's prefix.
    pub name: &'static str,
    /// What it does.
    pub kind: Kind,
    /// For throwing forms of operator new, the name of the `nothrow` form.
    pub nothrow: &'static str,
}

const fn w(name: &'static str, kind: Kind) -> Wanted {
    Wanted { name, kind, nothrow: "" }
}

const fn new(name: &'static str, kind: Kind, nothrow: &'static str) -> Wanted {
    Wanted { name, kind, nothrow }
}

/// Everything that hands out or takes back memory. C names may carry a prefix ([`PREFIXES`]); C++
/// names are mangled by the Itanium C++ ABI (`m`: a `size_t` of 64 bits, `j`: of 32).
pub const TABLE: &[Wanted] = &[
    w("malloc", Kind::Malloc),
    w("calloc", Kind::Calloc),
    w("realloc", Kind::Realloc),
    w("reallocarray", Kind::ReallocArray),
    w("free", Kind::Free),
    w("cfree", Kind::Free),
    w("posix_memalign", Kind::PosixMemalign),
    w("aligned_alloc", Kind::Memalign),
    w("memalign", Kind::Memalign),
    w("valloc", Kind::Malloc),
    w("pvalloc", Kind::Malloc),
    w("free_sized", Kind::Delete),
    w("free_aligned_sized", Kind::Delete),
    new("_Znwm", Kind::New, "_ZnwmRKSt9nothrow_t"),
    new("_Znam", Kind::New, "_ZnamRKSt9nothrow_t"),
    new("_Znwj", Kind::New, "_ZnwjRKSt9nothrow_t"),
    new("_Znaj", Kind::New, "_ZnajRKSt9nothrow_t"),
    new("_ZnwmSt11align_val_t", Kind::NewAligned, "_ZnwmSt11align_val_tRKSt9nothrow_t"),
    new("_ZnamSt11align_val_t", Kind::NewAligned, "_ZnamSt11align_val_tRKSt9nothrow_t"),
    w("_ZnwmRKSt9nothrow_t", Kind::Malloc),
    w("_ZnamRKSt9nothrow_t", Kind::Malloc),
    w("_ZnwjRKSt9nothrow_t", Kind::Malloc),
    w("_ZnajRKSt9nothrow_t", Kind::Malloc),
    w("_ZnwmSt11align_val_tRKSt9nothrow_t", Kind::Malloc),
    w("_ZnamSt11align_val_tRKSt9nothrow_t", Kind::Malloc),
    w("_ZdlPv", Kind::Delete),
    w("_ZdaPv", Kind::Delete),
    w("_ZdlPvm", Kind::Delete),
    w("_ZdaPvm", Kind::Delete),
    w("_ZdlPvj", Kind::Delete),
    w("_ZdaPvj", Kind::Delete),
    w("_ZdlPvRKSt9nothrow_t", Kind::Delete),
    w("_ZdaPvRKSt9nothrow_t", Kind::Delete),
    w("_ZdlPvSt11align_val_t", Kind::Delete),
    w("_ZdaPvSt11align_val_t", Kind::Delete),
    w("_ZdlPvmSt11align_val_t", Kind::Delete),
    w("_ZdaPvmSt11align_val_t", Kind::Delete),
    w("_ZdlPvSt11align_val_tRKSt9nothrow_t", Kind::Delete),
    w("_ZdaPvSt11align_val_tRKSt9nothrow_t", Kind::Delete),
];

/// Prefixes under which allocators are linked into programs beside libc's.
pub const PREFIXES: &[&str] = &["", "je_", "_rjem_", "mi_", "tc_"];

/// Where the dynamic linker says that its list of modules changes.
pub const LOADER: &str = "_dl_debug_state";

/// A function of the target that is to be hooked.
#[derive(Clone, Debug)]
pub struct Found {
    /// Its name.
    pub name: String,
    /// Other names for the same code.
    pub aliases: Vec<String>,
    /// What it does.
    pub kind: Kind,
    /// Where.
    pub addr: RemoteAddr,
    /// Length; 0: not known.
    pub size: u64,
    /// Index of its module.
    pub module: usize,
    /// Address of the `nothrow` form.
    pub nothrow: Option<RemoteAddr>,
}

fn split(name: &str) -> Option<(&'static str, &'static Wanted)> {
    PREFIXES.iter().find_map(|p| {
        let rest = name.strip_prefix(p)?;
        // A C++ name has no prefix.
        let w = TABLE.iter().find(|w| w.name == rest)?;
        (p.is_empty() || !w.name.starts_with("_Z")).then_some((*p, w))
    })
}

/// Looks for all functions of the table in all modules that have an allocator of their own.
#[must_use]
pub fn find(pid: i32, mem: &RemoteMemory, modules: &[Module]) -> (Vec<Found>, Vec<NotHooked>) {
    let (mut found, mut not) = (Vec::new(), Vec::new());
    for (index, m) in modules.iter().enumerate() {
        let linker = m.file_name().starts_with("ld-") || m.path.as_os_str() == "[vdso]";
        if linker {
            // Its own malloc serves only until libc is there.
            for s in m.symbols(pid, mem, |n| n == LOADER) {
                found.push(Found {
                    name: s.name,
                    aliases: Vec::new(),
                    kind: Kind::Loader,
                    addr: s.addr,
                    size: s.size,
                    module: index,
                    nothrow: None,
                });
            }
            continue;
        }
        let symbols = m.symbols(pid, mem, |n| split(n).is_some());
        for prefix in PREFIXES {
            in_module(index, m, prefix, &symbols, &mut found, &mut not);
        }
    }
    (found, not)
}

/// Whether this is a malloc that ends in no other one that is hooked: libc's, or the only one.
#[must_use]
pub fn is_last_malloc(f: &Found, all: &[Found], modules: &[Module]) -> bool {
    let is_malloc = |f: &Found| {
        let names = std::iter::once(&f.name).chain(&f.aliases);
        names.filter_map(|n| split(n)).any(|(_, w)| w.name == "malloc")
    };
    let others = |o: &&Found| o.addr != f.addr && is_malloc(o);
    let in_libc = modules.get(f.module).is_some_and(|m| m.file_name().starts_with("libc."));
    is_malloc(f)
        && match in_libc {
            true => !all.iter().filter(others).any(|o| o.module == f.module),
            false => !all.iter().any(|o| others(&o)),
        }
}

/// Adds what one allocator (a prefix in a module) defines.
fn in_module(
    index: usize,
    m: &Module,
    prefix: &str,
    symbols: &[Symbol],
    found: &mut Vec<Found>,
    not: &mut Vec<NotHooked>,
) {
    let own: Vec<(&Symbol, &Wanted)> = symbols
        .iter()
        .filter_map(|s| split(&s.name).filter(|(p, _)| *p == prefix).map(|(_, w)| (s, w)))
        .collect();
    let has = |name: &str| own.iter().any(|(_, w)| w.name == name);
    if !(has("malloc") && has("free")) {
        // operator new and delete of libstdc++, or of the program, end in a hooked malloc and free.
        return;
    }
    let module = m.path.display().to_string();
    for (s, w) in &own {
        let reason = if s.indirect {
            Some("it is chosen at run time (IFUNC)")
        } else if !w.nothrow.is_empty() && !has(w.nothrow) {
            Some("its nothrow form is missing, and an exception must not pass through the hook")
        } else {
            None
        };
        if let Some(reason) = reason {
            let function = s.name.clone();
            not.push(NotHooked { function, module: module.clone(), reason: reason.into() });
            continue;
        }
        // One piece of code may have several names.
        if let Some(same) = found.iter_mut().find(|f| f.addr == s.addr) {
            // What may end in another hooked function is the more careful of two kinds.
            if same.kind == Kind::Free && w.kind == Kind::Delete {
                same.kind = Kind::Delete;
            }
            if same.name != s.name && !same.aliases.contains(&s.name) {
                same.aliases.push(s.name.clone());
            }
            continue;
        }
        let nothrow = own.iter().find(|(_, o)| o.name == w.nothrow).map(|(o, _)| o.addr);
        found.push(Found {
            name: s.name.clone(),
            aliases: Vec::new(),
            kind: w.kind,
            addr: s.addr,
            size: s.size,
            module: index,
            nothrow,
        });
    }
}
