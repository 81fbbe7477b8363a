//! What programs have to know of the kernel that runs.

use super::btf::Btf;
use crate::live::Kind;
use crate::tracepoints::Tracepoint;

/// Facts about the kernel.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts {
    /// Offsets of the size and of the name in a slab cache's description, in bytes.
    pub cache_size: i16,
    pub cache_name: i16,
    /// Bytes of a page's description.
    pub page: u32,
}

/// Indices of a tracepoint's arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Arguments {
    pub address: u8,
    /// The size, or the order of pages; `None`: the cache has it, or it is not told.
    pub size: Option<u8>,
    /// The slab cache.
    pub cache: Option<u8>,
}

impl Facts {
    /// Finds the facts.
    ///
    /// # Errors
    /// If one is missing; says which.
    pub(super) fn new(btf: &Btf) -> Result<Self, String> {
        let missing = |what: &str| format!("the kernel's BTF lacks {what}");
        let cache = |m: &str| {
            small(btf.member("kmem_cache", m)).ok_or_else(|| missing(&format!("kmem_cache.{m}")))
        };
        let facts = Self {
            cache_size: cache("size")?,
            cache_name: cache("name")?,
            page: btf.size("page").filter(|n| *n > 0).ok_or_else(|| missing("struct page"))?,
        };
        if facts.cache_size.abs_diff(facts.cache_name) > 1000 {
            return Err("the kernel's kmem_cache is larger than expected".into());
        }
        Ok(facts)
    }
}

fn small(offset: Option<u32>) -> Option<i16> {
    offset.and_then(|n| i16::try_from(n).ok())
}

impl Arguments {
    /// Finds the arguments of a tracepoint.
    ///
    /// # Errors
    /// If one is missing; says which.
    pub(super) fn new(btf: &Btf, t: &Tracepoint) -> Result<Self, String> {
        let name = t.name.rsplit(':').next().unwrap_or(t.name);
        // The first parameter of these functions is no argument of the tracepoint.
        let all = ["__bpf_trace_", "__traceiter_", "__probestub_"]
            .iter()
            .find_map(|prefix| btf.parameters(&format!("{prefix}{name}")))
            .ok_or_else(|| format!("the kernel's BTF lacks the arguments of {}", t.name))?;
        Self::among(&all, t)
            .ok_or_else(|| format!("the tracepoint {} has unknown arguments ({all:?})", t.name))
    }

    fn among(all: &[String], t: &Tracepoint) -> Option<Self> {
        let find = |name: &str| {
            let at = all.iter().skip(1).position(|p| p == name)?;
            u8::try_from(at).ok().filter(|n| *n < 12)
        };
        let cache = if t.is_alloc { find("s") } else { None };
        let address = find(if t.kind == Kind::Page { "page" } else { "ptr" })?;
        let size = match (t.kind, t.is_alloc) {
            (Kind::Page, _) => Some(find("order")?),
            (_, false) => None,
            (Kind::Percpu, true) => Some(find("bytes_alloc").or_else(|| find("size"))?),
            (Kind::Slab, true) => find("bytes_alloc"),
        };
        (!t.is_alloc || size.is_some() || cache.is_some()).then_some(Self { address, size, cache })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(name: &'static str, kind: Kind, is_alloc: bool) -> Tracepoint {
        let address = crate::format::Field::default();
        Tracepoint { name, id: 1, kind, is_alloc, address, size: None, size_name: "", cache: None }
    }

    fn among(names: &str, kind: Kind, is_alloc: bool) -> Option<Arguments> {
        let all: Vec<String> = names.split(' ').map(Into::into).collect();
        Arguments::among(&all, &point("kmem:x", kind, is_alloc))
    }

    #[test]
    fn arguments_of_several_kernels_are_found() {
        let found = |address, size, cache| Some(Arguments { address, size, cache });
        let slab = |names| among(names, Kind::Slab, true);
        assert_eq!(slab("__data call_site ptr s gfp_flags node"), found(1, None, Some(2)));
        // Linux 6.0
        let old = "__data call_site ptr s bytes_req bytes_alloc gfp_flags";
        assert_eq!(slab(old), found(1, Some(4), Some(2)));
        assert_eq!(slab("__data call_site ptr bytes_req bytes_alloc"), found(1, Some(3), None));
        assert_eq!(slab("__data call_site ptr"), None);
        assert_eq!(slab("ptr s"), None, "the first parameter is none");
        assert_eq!(among("__data call_site ptr s", Kind::Slab, false), found(1, None, None));
        assert_eq!(among("__data page order", Kind::Page, false), found(0, Some(1), None));
        assert_eq!(among("__data page", Kind::Page, true), None);
        let percpu = "__data reserved is_atomic size align base_addr off ptr";
        assert_eq!(among(percpu, Kind::Percpu, true), found(6, Some(2), None));
    }

    #[test]
    fn this_kernels_facts_are_plausible() {
        let Ok(btf) = Btf::read() else { return eprintln!("skipped: no BTF") };
        if cfg!(target_arch = "x86_64") {
            let facts = Facts::new(&btf).expect("facts");
            assert!(facts.page >= 32, "{facts:?}");
            assert_ne!(facts.cache_size, facts.cache_name);
        }
        let t = point("kmem:kfree", Kind::Slab, false);
        assert_eq!(Arguments::new(&btf, &t).map(|a| a.address), Ok(1));
    }
}
