//! Where the target has the functions that are to be hooked.

use crate::elf::{Module, Symbol};
use crate::functions::{
    Family, JEMALLOC, JEMALLOC_MARK, LOADER, MIMALLOC, PREFIXES, SNMALLOC, SNMALLOC_REALLOC,
    SNMALLOC_REALLOC_ARGS, TABLE, Wanted,
};
use crate::named::{self, Named};
use crate::{RemoteAddr, RemoteMemory, Result, operators, sandbox};
use prof_trace::records::NotHooked;
use prof_trace::shared::Kind;
use std::cell::Cell;

/// Functions after which no more are looked for: far more than can be hooked.
const MOST: usize = 1024;

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
    /// Which arguments are the size and the block, from 0, if the user has named it.
    pub args: (u8, u8),
}

impl Found {
    /// Of a symbol in the module with this index.
    #[must_use]
    pub fn new(s: &Symbol, kind: Kind, module: usize) -> Self {
        let (name, addr, size) = (s.name.clone(), s.addr, s.size);
        let aliases = Vec::new();
        Self { name, aliases, kind, addr, size, module, nothrow: None, args: (0, 0) }
    }
}

/// Which functions of the target to look for.
#[derive(Clone, Debug, Default)]
pub struct Choice {
    /// Only in these modules; empty: in all.
    pub modules: Vec<String>,
    /// Only with this prefix; `None`: with any of [`PREFIXES`].
    pub prefix: Option<String>,
    /// Functions that the user has named.
    pub named: Vec<Named>,
}

/// What garbage collectors are known by that stop threads by signals, and look for live data between a thread's stack
/// pointer and its stack's end: Boehm's, Mono's, SBCL's, D's.
const COLLECTORS: [&str; 4] =
    ["GC_gcollect", "mono_gc_collect", "sig_stop_for_gc_handler", "thread_suspendAll"];

/// What is found of a target's functions.
#[derive(Debug, Default)]
pub struct Functions {
    /// Those to hook.
    pub found: Vec<Found>,
    /// Those that can't be.
    pub not_hooked: Vec<NotHooked>,
    /// Whether there is a garbage collector that stops threads by signals.
    pub collects: bool,
}

/// What stands before an allocator's usual names in a module.
struct Names<'a> {
    prefixes: Vec<&'a str>,
}

impl<'a> Names<'a> {
    fn split(&self, name: &str) -> Option<(&'a str, &'static Wanted)> {
        self.prefixes.iter().find_map(|p| {
            let rest = name.strip_prefix(p)?;
            // A C++ name has no prefix.
            let w = TABLE.iter().find(|w| w.name == rest)?;
            let fits = match w.family {
                Family::Any => p.is_empty() || !w.name.starts_with("_Z"),
                Family::Jemalloc => true,
                Family::Mimalloc => *p == MIMALLOC,
                Family::Snmalloc => *p == SNMALLOC,
            };
            fits.then_some((*p, w))
        })
    }

    /// What tells jemalloc from a program that has functions of the same names.
    fn marks(&self, name: &str) -> bool {
        name.strip_suffix(JEMALLOC_MARK).is_some_and(|p| self.prefixes.contains(&p))
    }
}

/// Whether this is a malloc that ends in no other one that is hooked: libc's, or the only one.
#[must_use]
pub fn is_last_malloc(f: &Found, all: &[Found], modules: &[Module]) -> bool {
    let table = Names { prefixes: PREFIXES.to_vec() };
    let is_malloc = |f: &Found| {
        let names = std::iter::once(&f.name).chain(&f.aliases);
        names.filter_map(|n| table.split(n)).any(|(_, w)| w.name == "malloc")
    };
    let others = |o: &&Found| o.addr != f.addr && is_malloc(o);
    let in_libc = modules.get(f.module).is_some_and(|m| m.file_name().starts_with("libc."));
    is_malloc(f)
        && match in_libc {
            true => !all.iter().filter(others).any(|o| o.module == f.module),
            false => !all.iter().any(|o| others(&o)),
        }
}

/// Looks for all functions of the table in all modules that have an allocator of their own, and for
/// those that the user has named.
///
/// # Errors
/// If a module or function that the user has named is not there.
pub fn find(
    pid: i32,
    mem: &RemoteMemory,
    modules: &[Module],
    choice: &Choice,
) -> Result<Functions> {
    let (mut found, mut not) = (Vec::new(), Vec::new());
    let collects = Cell::new(modules.iter().any(|m| m.file_name().starts_with("libgc.so")));
    for name in &choice.modules {
        named::module(pid, modules, name)?;
    }
    // First, so that what the user says of a function counts.
    for n in &choice.named {
        found.extend(n.find(pid, mem, modules)?);
    }
    let prefixes = choice.prefix.as_deref().map_or(PREFIXES.to_vec(), |p| vec![p]);
    let names = Names { prefixes };
    let alone = modules.iter().filter(|m| m.path.as_os_str() != "[vdso]").count() == 1;
    for (index, m) in modules.iter().enumerate() {
        if found.len() > MOST {
            let (function, module) = ("others".into(), m.path.display().to_string());
            not.push(NotHooked { function, module, reason: "there are too many".into() });
            break;
        }
        if is_linker(m) {
            let loader = m.symbols(pid, mem, |n| n == LOADER);
            found.extend(loader.iter().map(|s| Found::new(s, Kind::Loader, index)));
        }
        for w in sandbox::watched(pid, mem, index, m, alone) {
            if !found.iter().any(|f| f.addr == w.addr) {
                found.push(w);
            }
        }
        // The linker's own malloc serves only until libc is there.
        let chosen = match choice.modules.is_empty() {
            true => !is_linker(m) && m.path.as_os_str() != "[vdso]",
            false => choice.modules.iter().any(|n| m.is_named(n)),
        };
        if !chosen {
            continue;
        }
        let symbols = m.symbols(pid, mem, |n| {
            if COLLECTORS.contains(&n) {
                collects.set(true);
            }
            names.split(n).is_some() || names.marks(n)
        });
        for prefix in &names.prefixes {
            let own = Own { index, module: m, symbols: &symbols, names: &names, alone };
            own.add(prefix, &mut found, &mut not);
        }
        operators::add(
            &operators::Program { pid, mem, modules },
            index,
            &symbols,
            &mut found,
            &mut not,
        );
    }
    Ok(Functions { found, not_hooked: not, collects: collects.get() })
}

/// Whether a module is the dynamic linker alone; musl's is libc, too.
fn is_linker(m: &Module) -> bool {
    // MIPS's glibc has ld.so.1.
    let name = m.file_name();
    (name.starts_with("ld-") || name.starts_with("ld.so")) && !name.starts_with("ld-musl")
}

/// Whether nothing is mapped yet but a program and the dynamic linker.
pub(crate) fn is_starting(modules: &[Module]) -> bool {
    let files = modules.iter().filter(|m| m.path.as_os_str() != "[vdso]");
    modules.iter().any(is_linker) && files.count() <= 2
}

/// Whether a module is libc.
pub(crate) fn is_libc(m: &Module) -> bool {
    ["libc.", "libc-", "ld-musl"].iter().any(|n| m.file_name().starts_with(n))
}

/// Prefixes of allocators whose free ends in no other.
const KNOWN: [&str; 4] = [MIMALLOC, SNMALLOC, "_rjem_", "tc_"];

/// Whether a function is the allocator's own, and no operator of C++, which ends in it.
fn is_c(w: &Wanted) -> bool {
    !w.name.starts_with("_Z")
}

/// The functions that a module defines.
struct Own<'a> {
    index: usize,
    module: &'a Module,
    symbols: &'a [Symbol],
    names: &'a Names<'a>,
    /// There is no other module.
    alone: bool,
}

impl Own<'_> {
    /// Whether its free ends in no other: libc's does not, nor that of an allocator that is known. Any other
    /// may be a wrapper of libc's, as `libc_malloc_debug.so` and many a program's own are.
    fn is_last(&self) -> bool {
        let known = |n: &str| KNOWN.iter().any(|p| n.starts_with(p)) || self.names.marks(n);
        self.alone || is_libc(self.module) || self.symbols.iter().any(|s| known(&s.name))
    }

    fn not_hooked(&self, s: &Symbol, reason: &str) -> NotHooked {
        let module = self.module.path.display().to_string();
        NotHooked { function: s.name.clone(), module, reason: reason.into() }
    }

    /// Adds what one allocator (a prefix) has.
    fn add(&self, prefix: &str, found: &mut Vec<Found>, not: &mut Vec<NotHooked>) {
        let marked = |s: &Symbol| s.name.strip_suffix(JEMALLOC_MARK) == Some(prefix);
        let jemalloc = JEMALLOC.contains(&prefix) || self.symbols.iter().any(marked);
        let mut own: Vec<(&Symbol, &Wanted)> = self
            .symbols
            .iter()
            .filter_map(|s| Some((s, self.names.split(&s.name).filter(|(p, _)| *p == prefix)?.1)))
            .filter(|(_, w)| w.family != Family::Jemalloc || jemalloc)
            .collect();
        // Of several names of one function the first counts: free, and not cfree.
        own.sort_by_key(|(_, w)| TABLE.iter().position(|t| t.name == w.name));
        let has = |name: &str| own.iter().any(|(_, w)| w.name == name);
        // Linkers keep of an allocator what a program calls: Rust calls jemalloc's sdallocx and no free. Names
        // without a prefix may be anybody's, so there malloc is asked for. operator new and delete of
        // libstdc++ end in a hooked malloc and free.
        let begins = |w: &Wanted| match prefix {
            "" => matches!(w.name, "malloc" | "mallocx"),
            _ => !matches!(w.kind, Kind::Free | Kind::Delete),
        };
        let allocates = own.iter().any(|(_, w)| is_c(w) && begins(w));
        let ends = |w: &Wanted| is_c(w) && matches!(w.kind, Kind::Free | Kind::Delete);
        // A static program that frees nothing has no free.
        if !allocates || !(self.alone || own.iter().any(|(_, w)| ends(w))) {
            let malloc = own.iter().find(|(s, w)| is_c(w) && begins(w) && !s.indirect);
            let named = |s: &Symbol| found.iter().any(|f| f.addr == s.addr);
            if let Some((s, _)) = malloc.filter(|(s, _)| !named(s)) {
                let reason = "there is no free beside it; --alloc-fn records it";
                not.push(self.not_hooked(s, reason));
            }
            return;
        }
        let last = self.is_last();
        for (s, w) in &own {
            let reason = if s.indirect {
                Some("it is chosen at run time (IFUNC)")
            } else if !w.nothrow.is_empty() && !has(w.nothrow) {
                Some("its nothrow form is missing, and an exception must not pass through the hook")
            } else {
                None
            };
            if let Some(reason) = reason {
                not.push(self.not_hooked(s, reason));
                continue;
            }
            let nothrow = own.iter().find(|(_, o)| o.name == w.nothrow).map(|(o, _)| o.addr);
            let kind = if w.kind == Kind::Free && !last { Kind::Delete } else { w.kind };
            let args = if w.name == SNMALLOC_REALLOC { SNMALLOC_REALLOC_ARGS } else { (0, 0) };
            merge(found, Found { nothrow, args, ..Found::new(s, kind, self.index) });
        }
    }
}

/// Adds a function; one piece of code may have several names.
pub(crate) fn merge(found: &mut Vec<Found>, f: Found) {
    let Some(same) = found.iter_mut().find(|o| o.addr == f.addr) else { return found.push(f) };
    // What may end in another hooked function is the more careful of two kinds.
    if same.kind == Kind::Free && f.kind == Kind::Delete {
        same.kind = Kind::Delete;
    }
    if same.name != f.name && !same.aliases.contains(&f.name) {
        same.aliases.push(f.name);
    }
}
