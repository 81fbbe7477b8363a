//! Recognises functions by their names: allocators, and the standard libraries of C++ and Rust.

/// Names of functions that allocate on behalf of their callers.
const ALLOCATORS: [&str; 14] = [
    "malloc",
    "calloc",
    "realloc",
    "reallocarray",
    "posix_memalign",
    "aligned_alloc",
    "memalign",
    "valloc",
    "pvalloc",
    "strdup",
    "strndup",
    "__rust_alloc",
    "__rust_alloc_zeroed",
    "__rust_realloc",
];

/// Prefixes of the names of further allocators.
const PREFIXES: [&str; 14] = [
    "operator new",
    "alloc::alloc::",
    "<alloc::alloc::Global",
    "__rdl_",
    "__rg_",
    "alloc::raw_vec::",
    // These occur with and without template arguments.
    "__gnu_cxx::new_allocator",
    "__gnu_cxx::__alloc_traits",
    "std::__new_allocator",
    "std::allocator_traits",
    "std::allocator<",
    "std::allocator::",
    "std::__1::allocator",
    "std::__1::__libcpp_",
];

/// Member functions of the C++ containers that only allocate a node, an array or a string's buffer.
const MEMBERS: [&str; 4] = ["::_M_allocate", "::_M_get_node", "::_S_allocate", "::_M_create"];

/// Returns whether a function only allocates on behalf of its caller.
pub(crate) fn is_allocator(function: &str) -> bool {
    let plain = function.split('(').next().unwrap_or(function);
    let plain = plain.strip_prefix("__GI_").unwrap_or(plain);
    let libc = plain.strip_prefix("__libc_").or(plain.strip_prefix("__"));
    ALLOCATORS.contains(&plain)
        || libc.is_some_and(|n| ALLOCATORS.contains(&n))
        || PREFIXES.iter().any(|p| function.starts_with(p))
        || (plain.starts_with("std::") && MEMBERS.iter().any(|m| is_member(plain, m)))
}

/// Module of the frames that name a slab cache of the kernel.
const SLAB: &str = "[slab]";

/// Beginnings of the names of the kernel's functions that allocate on behalf of their callers, without leading
/// underscores.
const KERNEL: [&str; 27] = [
    "kmalloc",
    "kzalloc",
    "kcalloc",
    "kvmalloc",
    "kmem_cache_alloc",
    "kmem_cache_zalloc",
    "krealloc",
    "kvrealloc",
    "kmemdup",
    "kstrdup",
    "kstrndup",
    "memdup_user",
    "vmemdup_user",
    "do_kmalloc",
    "slab_alloc",
    "alloc_pages",
    "alloc_page_",
    "alloc_frozen_pages",
    "folio_alloc",
    "vma_alloc_folio",
    "filemap_alloc_folio",
    "get_free_page",
    "get_zeroed_page",
    "pcpu_alloc",
    "alloc_percpu",
    "vmalloc",
    "vzalloc",
];

/// Returns whether a frame of a kernel's stack only allocates on behalf of its caller.
pub(super) fn is_kernel_allocator(function: &str, module: &str) -> bool {
    let plain = function.trim_start_matches('_');
    module == SLAB
        || (module == "[kernel]" && KERNEL.iter().any(|prefix| plain.starts_with(prefix)))
}

/// Returns whether the last part of a function's name, without template arguments, begins with `member`.
fn is_member(plain: &str, member: &str) -> bool {
    let plain = without_arguments(plain);
    plain.rfind(member).is_some_and(|at| !plain[at + member.len()..].contains([':', '>']))
}

/// Returns the name of a function template without its template arguments.
fn without_arguments(plain: &str) -> &str {
    if !plain.ends_with('>') {
        return plain;
    }
    let mut open = 0usize;
    for (at, c) in plain.char_indices().rev() {
        match c {
            '>' => open += 1,
            '<' => open = open.saturating_sub(1),
            _ => {}
        }
        if open == 0 {
            return &plain[..at];
        }
    }
    plain
}

/// Prefixes, behind the return type, of the names of functions of a standard library.
const LIBRARIES: [&str; 12] = [
    "std::",
    "__gnu_cxx::",
    "core::",
    "alloc::",
    "hashbrown::",
    "<alloc::",
    "<core::",
    "<std::",
    "<hashbrown::",
    "<&mut alloc::",
    "<&mut core::",
    "<&mut std::",
];

/// Returns whether a function belongs to the standard library of C++ or Rust.
pub(super) fn is_library(function: &str) -> bool {
    let name = without_type(function);
    LIBRARIES.iter().any(|p| name.starts_with(p))
}

/// Folders of Rust's standard library in the paths of source files: as the compiler that is distributed was built, and
/// where its sources are installed.
const RUST: [&str; 2] = ["/rustc/", "/lib/rustlib/src/rust/"];

/// Returns the path of a source file within Rust's standard library, such as `alloc/src/vec/mod.rs`.
fn in_rust(file: &str) -> Option<&str> {
    let behind = RUST.iter().find_map(|folder| Some(file.split_once(folder)?.1))?;
    Some(behind.split_once("library/")?.1)
}

/// Returns whether a source file belongs to the standard library of C++ or Rust. Debug information of line tables alone
/// names an inlined function without the path of its module.
pub(super) fn is_file_of_library(file: &str) -> bool {
    // The second is what the library is built with, such as hashbrown.
    in_rust(file).is_some() || file.starts_with("/rust/deps/") || file.contains("/include/c++/")
}

/// Returns whether all functions of a source file only allocate on behalf of their callers.
pub(super) fn is_file_of_allocator(file: &str) -> bool {
    in_rust(file).is_some_and(|f| {
        f == "alloc/src/alloc.rs"
            || f.starts_with("alloc/src/raw_vec")
            || f.starts_with("std/src/sys/alloc")
            || f == "std/src/alloc.rs"
    })
}

/// Returns a demangled name without the return type that C++ puts before template instances: `f<int>(int)` for `void
/// f<int>(int)`.
fn without_type(function: &str) -> &str {
    // Rust's names have no return type, and have spaces only between brackets.
    if function.starts_with('<') {
        return function;
    }
    let (mut depth, mut begin) = (0usize, 0);
    for (at, c) in function.char_indices() {
        match c {
            '<' => depth += 1,
            '>' => depth = depth.saturating_sub(1),
            '(' if depth == 0 => break,
            ' ' if depth == 0 && !function[begin..at].ends_with("operator") => begin = at + 1,
            _ => {}
        }
    }
    &function[begin..]
}

/// Returns a function's bare name, without return type, template arguments and parameters: `std::vector::resize`.
pub(crate) fn bare(function: &str) -> String {
    if function.starts_with('<') {
        return crate::symbols::shorten(function);
    }
    let (mut depth, mut out) = (0usize, String::new());
    for c in without_type(function).chars() {
        match c {
            '<' => depth += 1,
            '>' => depth = depth.saturating_sub(1),
            '(' if depth == 0 => break,
            c if depth == 0 => out.push(c),
            _ => {}
        }
    }
    out
}

/// Returns the last component of a function's name, in lower case.
fn last_part(function: &str) -> String {
    let plain = without_arguments(function.split('(').next().unwrap_or(function));
    plain.rsplit("::").next().unwrap_or(plain).to_ascii_lowercase()
}

/// Returns whether a function's name says that it allocates.
pub(super) fn says_alloc(function: &str) -> bool {
    last_part(function).contains("alloc")
}

/// Returns whether a function is named as a variant of the C library's allocator: `xmalloc`, `zrealloc_usable`.
pub(super) fn is_variant(function: &str) -> bool {
    let name = last_part(function);
    ["malloc", "realloc", "calloc"].iter().any(|n| name.contains(n))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocators_are_told_from_those_who_ask() {
        for name in [
            "malloc",
            "__libc_calloc",
            "__strdup",
            "__GI___strdup",
            "operator new(unsigned long)",
            "operator new[](unsigned long, std::nothrow_t const&)",
            "__rust_alloc",
            "alloc::raw_vec::RawVecInner<A>::finish_grow",
            "<alloc::alloc::Global as core::alloc::Allocator>::allocate",
            "<alloc::alloc::Global>::alloc_impl_runtime",
            "std::__new_allocator<int>::allocate(unsigned long, void const*)",
            "std::__new_allocator::allocate",
            "std::allocator_traits<std::allocator<int> >::allocate(std::allocator<int>&, unsigned long)",
            "std::allocator<int>::allocate(unsigned long)",
            "std::_Vector_base<int, std::allocator<int> >::_M_allocate(unsigned long)",
            "std::_Rb_tree<int, int, std::_Identity<int>, std::less<int> >::_M_get_node()",
            "std::__detail::_Hashtable_alloc<std::allocator<std::pair<int, int> > >::_M_allocate_buckets(unsigned long)",
            "std::_Rb_tree_node<int>* std::_Rb_tree<int, int, std::_Identity<int>, std::less<int> >::_M_create_node<int const&>(int const&)",
            "std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> >::_M_create(unsigned long&, unsigned long)",
            "std::__1::allocator<int>::allocate[abi:v160006](unsigned long)",
        ] {
            assert!(is_allocator(name), "{name}");
        }
        for name in [
            "main",
            "mallocator",
            "my_malloc",
            "operator+(int)",
            "__libc_start_main",
            "",
            "std::vector<int, std::allocator<int> >::push_back(int const&)",
            "std::_Vector_base<X<&A::_M_allocate>, int>::_M_fill_assign(unsigned long)",
            "std::_Rb_tree<int, int>::_M_insert_unique<std::_M_create>(int)",
            "std::operator>",
            "mine::_M_allocate",
        ] {
            assert!(!is_allocator(name), "{name}");
        }
    }

    #[test]
    fn the_kernels_allocators_are_told_from_those_who_ask() {
        for name in [
            "__kmalloc_cache_noprof",
            "kmem_cache_alloc_lru_noprof",
            "__alloc_frozen_pages_noprof",
            "alloc_pages_mpol",
            "vma_alloc_folio_noprof",
            "pcpu_alloc_noprof",
        ] {
            assert!(is_kernel_allocator(name, "[kernel]"), "{name}");
            assert!(!is_kernel_allocator(name, "/usr/bin/x"), "{name}");
        }
        assert!(is_kernel_allocator("filp", "[slab]"));
        for name in ["alloc_pipe_info", "alloc_empty_file", "do_anonymous_page", "alloc_skb"] {
            assert!(!is_kernel_allocator(name, "[kernel]"), "{name}");
        }
    }

    #[test]
    fn libraries_are_told_from_what_uses_them() {
        for name in [
            "std::vector<int, std::allocator<int> >::push_back(int const&)",
            "void std::vector<S>::_M_realloc_insert<S const&>(int, S const&)",
            "std::_Rb_tree_node<int>* std::_Rb_tree<int>::_M_insert_<int const&>(int const&)",
            "alloc::string::String::push_str",
            "<alloc::vec::Vec<T> as core::clone::Clone>::clone",
            "core::iter::adapters::map::Map<I,F>::fold",
        ] {
            assert!(is_library(name), "{name}");
        }
        for name in [
            "main",
            "open_session(std::string const&)",
            "void mine::fill<std::string>(std::string)",
            "<mine::Session as core::fmt::Display>::fmt",
            "standard::f()",
            "bool operator==<std::string>(std::string const&)",
        ] {
            assert!(!is_library(name), "{name}");
        }
    }

    #[test]
    fn source_files_tell_what_short_names_do_not() {
        let rustc = "/rustc/59807616e1fa2540724bfbac14d7976d7e4a3860/library/";
        let installed = "/home/me/.rustup/toolchains/x/lib/rustlib/src/rust/library/";
        for folder in [rustc, installed] {
            for (file, allocates) in [
                ("alloc/src/raw_vec/mod.rs", true),
                ("alloc/src/alloc.rs", true),
                ("std/src/sys/alloc/unix.rs", true),
                ("alloc/src/vec/mod.rs", false),
                ("core/src/ops/function.rs", false),
            ] {
                let file = format!("{folder}{file}");
                assert!(is_file_of_library(&file), "{file}");
                assert_eq!(is_file_of_allocator(&file), allocates, "{file}");
            }
        }
        for file in [
            "/usr/include/c++/12/bits/stl_vector.h",
            "/rust/deps/hashbrown-0.16.1/src/raw/alloc.rs",
        ] {
            assert!(is_file_of_library(file) && !is_file_of_allocator(file), "{file}");
        }
        for file in ["", "/srv/rustc/main.rs", "/srv/library/alloc/src/alloc.rs", "src/raw_vec.rs"]
        {
            assert!(!is_file_of_library(file) && !is_file_of_allocator(file), "{file}");
        }
    }

    #[test]
    fn bare_names() {
        for (name, want) in [
            (
                "std::vector<int, std::allocator<int> >::resize(unsigned long)",
                "std::vector::resize",
            ),
            ("std::shared_ptr<A> std::make_shared<A, int>(int&&)", "std::make_shared"),
            ("<alloc::vec::Vec<T>>::push", "<alloc::vec::Vec<>>::push"),
            ("zmalloc", "zmalloc"),
            ("a>b<", "ab"),
        ] {
            assert_eq!(bare(name), want);
        }
    }

    #[test]
    fn names_of_wrappers() {
        for name in
            ["zmalloc_usable", "ngx_palloc", "Perl_safesysmalloc", "my::Pool::Allocate(int)"]
        {
            assert!(says_alloc(name), "{name}");
        }
        for name in
            ["open_session", "f(std::allocator<int>)", "g<alloc::Global>", "alloc::fmt::format"]
        {
            assert!(!says_alloc(name), "{name}");
        }
        assert!(is_variant("zrealloc_usable") && is_variant("x::MallocAligned(int)"));
        assert!(!is_variant("alloc_session") && !is_variant("f(xmalloc)"));
    }
}
