//! The stacks of a recording, and their nodes.

use crate::live::Map;
use crate::names::Names;
use crate::sample;

/// Functions in which the slab allocator takes pages for its objects. What they take is no memory beside the objects.
const SLAB_TAKES: [&str; 14] = [
    "allocate_slab",
    "new_slab",
    "___slab_alloc",
    "__slab_alloc",
    "alloc_slab_page",
    "cache_grow_begin",
    "kmem_getpages",
    "__kmalloc_large_node",
    "___kmalloc_large_node",
    "__kmalloc_large_noprof",
    "__kmalloc_large_node_noprof",
    "kmalloc_large_node",
    "kmalloc_large",
    "kmalloc_order",
];
/// Functions by which the per-CPU allocator takes pages for its own blocks.
const PERCPU_TAKES: [&str; 3] = ["pcpu_alloc_pages", "pcpu_populate_chunk", "pcpu_create_chunk"];
/// Beginnings of the names of the functions by which a tracepoint calls its probes where it has several: another tracer of
/// the same tracepoints puts them between the allocator and prof.
const ITERATORS: [&str; 3] = ["__traceiter_k", "__traceiter_mm_page_", "__traceiter_percpu_"];
/// Number of innermost frames that are searched for these functions.
const NEAR: usize = 8;

/// First address that stands for the name of a slab cache; see [`Stacks::cache`].
pub(crate) const CACHES: u64 = 0x10;

/// A stack.
#[derive(Clone, Debug)]
pub(crate) struct Stack {
    /// The addresses, innermost first. The first may stand for a slab cache.
    pub frames: Box<[u64]>,
    /// The stack's node in the recording; 0: no frames.
    pub node: u32,
    /// An allocator takes pages here for the blocks that it hands out itself.
    pub is_own: bool,
}

/// A node that is not written so far: id, parent, number of the code address.
pub(crate) type Node = (u32, u32, u32);

/// All stacks.
#[derive(Debug, Default)]
pub(crate) struct Stacks {
    numbers: Map<Box<[u64]>, u32>,
    all: Vec<Stack>,
    nodes: Map<(u32, u32), u32>,
    code: Map<u64, u32>,
    caches: Map<Box<[u8]>, u64>,
    cache_names: Vec<String>,
    scratch: Vec<u64>,
    own: Vec<(u64, u64)>,
    /// Address ranges of [`ITERATORS`].
    iterators: Vec<(u64, u64)>,
    /// Nodes that have been made since they were last written.
    pub new_nodes: Vec<Node>,
    /// Code addresses that have been seen since they were last written, with their numbers.
    pub new_code: Vec<(u32, u64)>,
}

impl Stacks {
    /// Creates an empty set. Pages that an allocator takes are recognised if its blocks are recorded, too.
    pub(crate) fn new(names: &Names, slab: bool, percpu: bool) -> Self {
        let wanted = |name: &str| {
            (slab && SLAB_TAKES.contains(&plain(name)))
                || (percpu && PERCPU_TAKES.contains(&plain(name)))
        };
        let iterators = names.ranges(|name| ITERATORS.iter().any(|i| name.starts_with(i)));
        Self { own: names.ranges(wanted), iterators, ..Self::default() }
    }

    /// Returns the address that stands for a slab cache's name.
    #[inline]
    pub(crate) fn cache(&mut self, name: &[u8]) -> u64 {
        if let Some(at) = self.caches.get(name) {
            return *at;
        }
        let at = CACHES + self.cache_names.len() as u64 * CACHES;
        self.caches.insert(name.into(), at);
        self.cache_names.push(String::from_utf8_lossy(name).into_owned());
        at
    }

    /// Returns the name of a slab cache; `None` if the address stands for none.
    pub(crate) fn cache_name(&self, address: u64) -> Option<&str> {
        let i = (address / CACHES).checked_sub(1)?;
        self.cache_names.get(usize::try_from(i).ok()?).map(String::as_str)
    }

    /// Returns the number of a stack, which begins with the address of a slab cache unless that is 0.
    #[inline]
    pub(crate) fn number(&mut self, cache: u64, stack: &[[u8; 8]]) -> u32 {
        let mut frames = std::mem::take(&mut self.scratch);
        frames.clear();
        frames.extend((cache != 0).then_some(cache));
        let mut stack = sample::addresses(stack).peekable();
        stack.next_if(|a| is_in(&self.iterators, *a));
        frames.extend(stack);
        let number = match self.numbers.get(&frames[..]) {
            Some(n) => *n,
            None => self.add(&frames),
        };
        self.scratch = frames;
        number
    }

    fn add(&mut self, frames: &[u64]) -> u32 {
        let mut node = 0;
        for address in frames.iter().rev() {
            let next = self.code.len() as u32 + 1;
            let code = *self.code.entry(*address).or_insert(next);
            if code == next {
                self.new_code.push((code, *address));
            }
            let next = self.nodes.len() as u32 + 1;
            let id = *self.nodes.entry((node, code)).or_insert(next);
            if id == next {
                self.new_nodes.push((id, node, code));
            }
            node = id;
        }
        let is_own = frames.iter().take(NEAR).any(|a| is_in(&self.own, *a));
        let number = self.all.len() as u32;
        self.all.push(Stack { frames: frames.into(), node, is_own });
        self.numbers.insert(frames.into(), number);
        number
    }

    /// Returns whether there is a stack with a number.
    #[inline]
    pub(crate) fn has(&self, number: u32) -> bool {
        (number as usize) < self.all.len()
    }

    /// Returns a stack by its number.
    #[inline]
    pub(crate) fn get(&self, number: u32) -> &Stack {
        &self.all[number as usize]
    }
}

/// Returns whether a return address is of a call in one of the ranges of functions. It lies behind the call, possibly in
/// the next function.
fn is_in(ranges: &[(u64, u64)], address: u64) -> bool {
    ranges.iter().any(|(start, end)| (*start + 1..=*end).contains(&address))
}

/// Returns a function's name without the suffixes that compilers add to parts and clones.
fn plain(name: &str) -> &str {
    name.split('.').next().unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str =
        "1000 T start\n2000 T allocate_slab.isra.0\n3000 T kmem_cache_alloc\n4000 T end\n";

    #[test]
    fn another_tracer_changes_no_stack() {
        let text = "1000 T start\n2000 T __traceiter_kmalloc\n2100 T kmalloc\n2200 T end\n";
        let mut s = Stacks::new(&Names::parse(text), true, false);
        let alone = s.number(0, &bytes(&[0x2110, 0x1010]));
        assert_eq!(s.number(0, &bytes(&[0x2058, 0x2110, 0x1010])), alone);
    }

    fn bytes(frames: &[u64]) -> Vec<[u8; 8]> {
        frames.iter().map(|a| a.to_ne_bytes()).collect()
    }

    #[test]
    fn stacks_share_nodes_and_know_their_cache() {
        let mut s = Stacks::new(&Names::parse(TEXT), true, false);
        let cache = s.cache(b"filp");
        assert_eq!((s.cache(b"filp"), s.cache_name(cache)), (cache, Some("filp")));
        let a = s.number(cache, &bytes(&[-128i64 as u64, 0x3010, 0x1010]));
        let b = s.number(0, &bytes(&[0x3010, 0x1010]));
        assert_eq!(s.number(0, &bytes(&[0x3010, 0x1010])), b);
        assert_ne!(a, b);
        assert_eq!(s.new_nodes.len(), 3, "{:?}", s.new_nodes);
        assert_eq!(*s.get(a).frames, [cache, 0x3010, 0x1010]);
        assert_eq!(s.get(b).node, 2);
        assert!(!s.get(a).is_own);
        let own = s.number(0, &bytes(&[0x3020, 0x3000, 0x1010]));
        assert!(s.get(own).is_own, "the call is the last instruction of allocate_slab");
        let empty = s.number(0, &[]);
        assert_eq!((s.get(empty).node, s.all.len()), (0, 4));
    }
}
