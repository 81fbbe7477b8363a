//! Table of the functions that prof hooks.

use prof_trace::shared::Kind;

/// A function that prof hooks wherever it finds it.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// Name, without an allocator's prefix.
    pub name: &'static str,
    /// Effect of the function on memory.
    pub kind: Kind,
    /// Name of the `nothrow` form, for throwing forms of operator new; else empty.
    pub nothrow: &'static str,
    /// Allocators that have the function.
    pub family: Family,
}

/// Set of allocators that have a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Any allocator.
    Any,
    /// jemalloc, known by `mallctl` or by a prefix of its own ([`JEMALLOC`]).
    Jemalloc,
    /// mimalloc, with its own prefix.
    Mimalloc,
    /// snmalloc's interface for Rust, with its own prefix.
    Snmalloc,
}

const fn w(name: &'static str, kind: Kind) -> Wanted {
    Wanted { name, kind, nothrow: "", family: Family::Any }
}

const fn new(name: &'static str, kind: Kind, nothrow: &'static str) -> Wanted {
    Wanted { name, kind, nothrow, family: Family::Any }
}

const fn je(name: &'static str, kind: Kind) -> Wanted {
    Wanted { name, kind, nothrow: "", family: Family::Jemalloc }
}

const fn mi(name: &'static str, kind: Kind) -> Wanted {
    Wanted { name, kind, nothrow: "", family: Family::Mimalloc }
}

const fn sn(name: &'static str, kind: Kind) -> Wanted {
    Wanted { name, kind, nothrow: "", family: Family::Snmalloc }
}

/// All functions that hand out or take back memory. C names may carry a prefix ([`PREFIXES`]). C++ names are mangled
/// by the Itanium C++ ABI (`m`: a `size_t` of 64 bits, `j`: of 32).
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
    je("mallocx", Kind::Malloc),
    je("rallocx", Kind::Realloc),
    je("xallocx", Kind::Resize),
    je("sdallocx", Kind::Delete),
    je("dallocx", Kind::Delete),
    mi("malloc_small", Kind::Malloc),
    mi("zalloc_small", Kind::Malloc),
    mi("zalloc", Kind::Malloc),
    mi("mallocn", Kind::Calloc),
    mi("malloc_aligned", Kind::Malloc),
    mi("zalloc_aligned", Kind::Malloc),
    mi("calloc_aligned", Kind::Calloc),
    mi("reallocn", Kind::ReallocArray),
    mi("reallocf", Kind::Realloc),
    mi("rezalloc", Kind::Realloc),
    mi("recalloc", Kind::ReallocArray),
    mi("realloc_aligned", Kind::Realloc),
    mi("rezalloc_aligned", Kind::Realloc),
    mi("free_size", Kind::Delete),
    mi("free_aligned", Kind::Delete),
    mi("free_size_aligned", Kind::Delete),
    mi("new_nothrow", Kind::Malloc),
    mi("new_aligned_nothrow", Kind::Malloc),
    mi("heap_malloc", Kind::Memalign),
    mi("heap_zalloc", Kind::Memalign),
    mi("heap_malloc_small", Kind::Memalign),
    mi("heap_malloc_aligned", Kind::Memalign),
    mi("heap_zalloc_aligned", Kind::Memalign),
    sn("rust_alloc", Kind::Memalign),
    sn("rust_alloc_zeroed", Kind::Memalign),
    sn("rust_dealloc", Kind::Delete),
    sn(SNMALLOC_REALLOC, Kind::NamedRealloc),
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

/// Prefixes of allocators that are linked into programs beside libc's.
pub const PREFIXES: &[&str] = &["", "je_", "_rjem_", "mi_", "tc_", SNMALLOC];

/// Prefix of mimalloc's own names.
pub const MIMALLOC: &str = "mi_";

/// Prefix of snmalloc's interface for Rust.
pub const SNMALLOC: &str = "sn_";

/// Name of snmalloc's realloc for Rust, which takes block, alignment, old size and new size.
pub const SNMALLOC_REALLOC: &str = "rust_realloc";

/// Index of the new size, and of the block, among the arguments of [`SNMALLOC_REALLOC`], counted from 0.
pub const SNMALLOC_REALLOC_ARGS: (u8, u8) = (3, 0);

/// Prefixes that only jemalloc uses, and by which it is known: linkers drop `mallctl` from programs that do not call
/// it.
pub const JEMALLOC: &[&str] = &["je_", "_rjem_"];

/// Name of a function that only jemalloc has, with the prefix of its other functions.
pub const JEMALLOC_MARK: &str = "mallctl";

/// Function that the dynamic linker calls when its list of modules changes.
pub const LOADER: &str = "_dl_debug_state";
