//! Finds the functions of the target that are to be hooked.

use crate::hooked::calls;
use crate::hooked::found::{Found, is_libc, is_linker, merge};
use crate::hooked::functions::{
    Family, JEMALLOC, JEMALLOC_MARK, LOADER, MIMALLOC, PREFIXES, SNMALLOC, SNMALLOC_REALLOC,
    SNMALLOC_REALLOC_ARGS, TABLE, Wanted,
};
use crate::hooked::operators;
use crate::hooked::user_named::{self, Named};
use crate::hooked::watched::watched;
use crate::process::elf::{Module, Symbol};
use crate::{RemoteMemory, Result};
use prof_os::Pid;
use prof_trace::records::NotHooked;
use prof_trace::shared::Kind;
use std::cell::Cell;

/// Number of functions after which the search ends, which is far more than can be hooked.
const MOST: usize = 1024;

/// The functions to look for in the target.
#[derive(Clone, Debug, Default)]
pub struct FunctionChoice {
    /// Only search these modules; empty: all.
    pub modules: Vec<String>,
    /// Only accept this prefix; `None`: any of [`PREFIXES`].
    pub prefix: Option<String>,
    /// Functions that the user has named.
    pub named: Vec<Named>,
    /// Whether calls that change mappings are recorded, too.
    pub mappings: bool,
    /// Whether children are recorded from their fork on, in memory that the hook makes for them.
    pub heirs: bool,
}

/// Symbols of garbage collectors that stop threads by signals and look for live data between a thread's stack pointer
/// and its stack's end: Boehm's, Mono's, SBCL's, D's.
const COLLECTORS: [&str; 4] =
    ["GC_gcollect", "mono_gc_collect", "sig_stop_for_gc_handler", "thread_suspendAll"];

/// The result of the search.
#[derive(Debug, Default)]
pub(crate) struct Functions {
    /// The functions to hook.
    pub found: Vec<Found>,
    /// The functions that can't be hooked, with the reasons.
    pub not_hooked: Vec<NotHooked>,
    /// Whether the target has a garbage collector that stops threads by signals.
    pub collects: bool,
}

/// The prefixes that may stand in front of an allocator's usual names.
struct Names<'a> {
    prefixes: Vec<&'a str>,
}

impl<'a> Names<'a> {
    fn split(&self, name: &str) -> Option<(&'a str, &'static Wanted)> {
        self.prefixes.iter().find_map(|p| {
            let rest = name.strip_prefix(p)?;
            // C++ names have no prefix.
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

    /// Returns whether a symbol shows that a module is jemalloc, rather than a program with functions of the same
    /// names.
    fn marks(&self, name: &str) -> bool {
        name.strip_suffix(JEMALLOC_MARK).is_some_and(|p| self.prefixes.contains(&p))
    }
}

/// Returns whether `f` is a malloc that calls no other hooked one: libc's, or the only one.
#[must_use]
pub(crate) fn is_last_malloc(f: &Found, all: &[Found], modules: &[Module]) -> bool {
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

/// Finds all functions of the table in all modules that have an allocator of their own, and the functions that the
/// user has named.
///
/// # Errors
/// If a module or function that the user has named does not exist.
pub(crate) fn find(
    pid: Pid,
    mem: &RemoteMemory,
    modules: &[Module],
    choice: &FunctionChoice,
) -> Result<Functions> {
    let (mut found, mut not) = (Vec::new(), Vec::new());
    let collects = Cell::new(modules.iter().any(|m| m.file_name().starts_with("libgc.so")));
    for name in &choice.modules {
        user_named::module(pid, modules, name)?;
    }
    // These come first, since the user's description of a function takes precedence.
    for n in &choice.named {
        found.extend(n.find(pid, mem, modules)?);
    }
    let prefixes = choice.prefix.as_deref().map_or(PREFIXES.to_vec(), |p| vec![p]);
    let names = Names { prefixes };
    let alone = modules.iter().filter(|m| m.path.as_os_str() != "[vdso]").count() == 1;
    for (index, m) in modules.iter().enumerate() {
        if found.len() > MOST {
            let (function, module) = ("others".into(), m.path.display().to_string());
            let reason =
                format!("more than {MOST} functions were found; choose modules with --obj");
            not.push(NotHooked { function, module, reason });
            break;
        }
        if is_linker(m) {
            let loader = m.symbols(pid, mem, |n| n == LOADER);
            found.extend(loader.iter().map(|s| Found::new(s, Kind::Loader, index)));
        }
        for w in watched(pid, mem, index, m, (alone, choice.heirs)) {
            if !found.iter().any(|f| f.addr == w.addr) {
                found.push(w);
            }
        }
        if choice.mappings {
            calls::add((pid, mem), index, m, alone, &mut found);
        }
        // The dynamic linker's own malloc only serves until libc is loaded.
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
            names.split(n).is_some() || names.marks(n) || calls::is_control(n)
        });
        if choice.mappings {
            calls::add_controls(index, &symbols, &mut found);
        }
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

/// Returns whether only a program and its dynamic linker are mapped yet.
pub(crate) fn is_starting(modules: &[Module]) -> bool {
    let files = modules.iter().filter(|m| m.path.as_os_str() != "[vdso]");
    modules.iter().any(is_linker) && files.count() <= 2
}

/// Prefixes of allocators whose free calls no other free.
const KNOWN: [&str; 4] = [MIMALLOC, SNMALLOC, "_rjem_", "tc_"];

/// Returns whether a function is the allocator's own, rather than a C++ operator that calls it.
fn is_c(w: &Wanted) -> bool {
    !w.name.starts_with("_Z")
}

/// A module with the functions that it defines.
struct Own<'a> {
    index: usize,
    module: &'a Module,
    symbols: &'a [Symbol],
    names: &'a Names<'a>,
    /// Whether there is no other module.
    alone: bool,
}

impl Own<'_> {
    /// Returns whether the module's free calls no other free. That holds for libc and for known allocators. Any other
    /// free may be a wrapper of libc's, as in `libc_malloc_debug.so` and many programs.
    fn is_last(&self) -> bool {
        let known = |n: &str| KNOWN.iter().any(|p| n.starts_with(p)) || self.names.marks(n);
        self.alone || is_libc(self.module) || self.symbols.iter().any(|s| known(&s.name))
    }

    fn not_hooked(&self, s: &Symbol, reason: &str) -> NotHooked {
        let module = self.module.path.display().to_string();
        NotHooked { function: s.name.clone(), module, reason: reason.into() }
    }

    /// Adds the functions of one allocator, which share a prefix.
    fn add(&self, prefix: &str, found: &mut Vec<Found>, not: &mut Vec<NotHooked>) {
        let marked = |s: &Symbol| s.name.strip_suffix(JEMALLOC_MARK) == Some(prefix);
        let jemalloc = JEMALLOC.contains(&prefix) || self.symbols.iter().any(marked);
        let mut own: Vec<(&Symbol, &Wanted)> = self
            .symbols
            .iter()
            .filter_map(|s| Some((s, self.names.split(&s.name).filter(|(p, _)| *p == prefix)?.1)))
            .filter(|(_, w)| w.family != Family::Jemalloc || jemalloc)
            .collect();
        // If one function has several names, the first in the table counts: free rather than cfree.
        own.sort_by_key(|(_, w)| TABLE.iter().position(|t| t.name == w.name));
        let has = |name: &str| own.iter().any(|(_, w)| w.name == name);
        // A linker keeps only those functions of an allocator that the program calls: Rust calls jemalloc's sdallocx
        // and no free. Names without a prefix may be anybody's, so there a malloc is required. operator new and
        // delete of libstdc++ end in a hooked malloc and free.
        let begins = |w: &Wanted| match prefix {
            "" => matches!(w.name, "malloc" | "mallocx"),
            _ => !matches!(w.kind, Kind::Free | Kind::Delete),
        };
        let allocates = own.iter().any(|(_, w)| is_c(w) && begins(w));
        let ends = |w: &Wanted| is_c(w) && matches!(w.kind, Kind::Free | Kind::Delete);
        // A static program that frees nothing contains no free.
        if !allocates || !(self.alone || own.iter().any(|(_, w)| ends(w))) {
            let malloc = own.iter().find(|(s, w)| is_c(w) && begins(w) && !s.indirect);
            let named = |s: &Symbol| found.iter().any(|f| f.addr == s.addr);
            if let Some((s, _)) = malloc.filter(|(s, _)| !named(s)) {
                let reason = "the module has no function that frees its blocks; --alloc-fn records it nevertheless";
                not.push(self.not_hooked(s, reason));
            }
            return;
        }
        let last = self.is_last();
        for (s, w) in &own {
            let reason = if s.indirect {
                Some(
                    "the dynamic linker chooses its code at run time (IFUNC), which prof can't hook",
                )
            } else if !w.nothrow.is_empty() && !has(w.nothrow) {
                Some(
                    "the module has no nothrow form of it, which prof would call instead, as no exception can pass through prof's hook",
                )
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
