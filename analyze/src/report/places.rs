//! Frames without their addresses: what stacks have in common.

use super::head::shown;
use crate::Analysis;
use crate::load::Pc;
use crate::symbols::{Frame, Symbolizer};
use serde::Serialize;
use std::collections::HashMap;
use std::sync::Arc;

/// A place in the code: the same for all addresses of a line, or of a function without lines.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct PlaceData {
    /// The function, if it is known.
    pub function: Option<String>,
    /// The source file, if it is known.
    pub file: Option<String>,
    /// The line, if it is known.
    pub line: Option<u32>,
    /// Path of the module, if it is known.
    pub module: Option<String>,
    /// Where the function is not known: the address as the module's file counts it, or without a
    /// module the address itself, in hexadecimal.
    pub offset: Option<String>,
    /// Whether its code was put into that of the next frame.
    pub inlined: bool,
}

impl PlaceData {
    fn new(f: &Frame) -> Self {
        let offset = match f.function {
            Some(_) => None,
            None => Some(format!("{:#x}", f.offset.unwrap_or(f.address))),
        };
        Self {
            function: f.function.as_deref().map(shown),
            file: f.file.as_deref().map(shown),
            line: f.line,
            module: f.module.as_deref().map(shown),
            offset,
            inlined: f.inlined,
        }
    }
}

/// Functions that hand out memory for somebody else.
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

/// What the names of others begin with.
const PREFIXES: [&str; 14] = [
    "operator new",
    "alloc::alloc::",
    "<alloc::alloc::Global",
    "__rdl_",
    "__rg_",
    "alloc::raw_vec::",
    // With and without template arguments.
    "__gnu_cxx::new_allocator",
    "__gnu_cxx::__alloc_traits",
    "std::__new_allocator",
    "std::allocator_traits",
    "std::allocator<",
    "std::allocator::",
    "std::__1::allocator",
    "std::__1::__libcpp_",
];

/// Members of the standard library's containers that only make a node, an array or a string's buffer.
const MEMBERS: [&str; 4] = ["::_M_allocate", "::_M_get_node", "::_S_allocate", "::_M_create"];

/// Whether a function only hands out memory, so that the one that called it is who asked for it.
pub(super) fn is_allocator(function: &str) -> bool {
    let plain = function.split('(').next().unwrap_or(function);
    let libc = plain.strip_prefix("__libc_").or(plain.strip_prefix("__"));
    ALLOCATORS.contains(&plain)
        || libc.is_some_and(|n| ALLOCATORS.contains(&n))
        || PREFIXES.iter().any(|p| function.starts_with(p))
        || (plain.starts_with("std::") && MEMBERS.iter().any(|m| is_member(plain, m)))
}

/// Whether a function's own name, behind all template arguments, begins with this.
fn is_member(plain: &str, member: &str) -> bool {
    let plain = without_arguments(plain);
    plain.rfind(member).is_some_and(|at| !plain[at + member.len()..].contains([':', '>']))
}

/// The name of a function template without the arguments that it was made with.
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

/// The places of a recording's stacks, each with a number.
pub(super) struct Places<'a> {
    analysis: &'a Analysis,
    pub symbols: Symbolizer<'a>,
    places: Vec<PlaceData>,
    ids: HashMap<PlaceData, u32>,
    known: HashMap<Pc, Arc<[u32]>>,
}

impl<'a> Places<'a> {
    pub fn new(analysis: &'a Analysis) -> Self {
        Self {
            analysis,
            symbols: Symbolizer::new(analysis),
            places: Vec::new(),
            ids: HashMap::new(),
            known: HashMap::new(),
        }
    }

    pub fn get(&self, id: u32) -> &PlaceData {
        &self.places[id as usize]
    }

    /// The places of a stack, innermost first.
    pub fn stack(&mut self, node: u32) -> Vec<u32> {
        let mut out = Vec::new();
        for pc in self.analysis.meta().stack(node) {
            match self.known.get(&pc) {
                Some(ids) => out.extend_from_slice(ids),
                None => out.extend_from_slice(&self.look(pc)),
            }
        }
        out
    }

    fn look(&mut self, pc: Pc) -> Arc<[u32]> {
        let frames = self.symbols.frames(pc);
        let ids: Arc<[u32]> = frames.iter().map(|f| self.id(PlaceData::new(f))).collect();
        self.known.insert(pc, ids.clone());
        ids
    }

    fn id(&mut self, place: PlaceData) -> u32 {
        if let Some(id) = self.ids.get(&place) {
            return *id;
        }
        let id = self.places.len() as u32;
        self.ids.insert(place.clone(), id);
        self.places.push(place);
        id
    }

    /// Which frame of a stack asked for the memory: the innermost that is no allocator.
    pub fn asker(&self, stack: &[u32]) -> Option<usize> {
        let asks =
            |id: &u32| self.get(*id).function.as_deref().is_none_or(|name| !is_allocator(name));
        stack.iter().position(asks).or(if stack.is_empty() { None } else { Some(0) })
    }
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
}
