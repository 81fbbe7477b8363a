//! The one table of hooked functions.

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
    /// Whose it is.
    pub family: Family,
}

/// Which allocators have a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Any.
    Any,
    /// jemalloc: one that has `mallctl`.
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

/// Prefixes under which allocators are linked into programs beside libc's.
pub const PREFIXES: &[&str] = &["", "je_", "_rjem_", "mi_", "tc_", SNMALLOC];

/// The prefix of mimalloc's own names.
pub const MIMALLOC: &str = "mi_";

/// The prefix of snmalloc's interface for Rust.
pub const SNMALLOC: &str = "sn_";

/// snmalloc's realloc for Rust: block, alignment, old size, new size.
pub const SNMALLOC_REALLOC: &str = "rust_realloc";

/// Argument of [`SNMALLOC_REALLOC`] that is the new size, and that of the block, counted from 0.
pub const SNMALLOC_REALLOC_ARGS: (u8, u8) = (3, 0);

/// Prefixes that nobody but jemalloc uses. Linkers drop `mallctl` from programs that do not call it.
pub const JEMALLOC: &[&str] = &["je_", "_rjem_"];

/// What jemalloc has beside its functions, with the same prefix.
pub const JEMALLOC_MARK: &str = "mallctl";

/// Where the dynamic linker says that its list of modules changes.
pub const LOADER: &str = "_dl_debug_state";
