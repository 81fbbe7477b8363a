//! The tracepoints that report allocations and frees.

use crate::Error;
use crate::format::{Field, Format};
use crate::live::Kind;
use crate::tracefs::Tracefs;

/// The kinds of allocations that are recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct What {
    /// Slab objects: `kmalloc`, `kmem_cache_alloc`.
    pub slab: bool,
    /// Pages.
    pub pages: bool,
    /// Per-CPU memory.
    pub percpu: bool,
}

impl What {
    /// All of them.
    pub const ALL: Self = Self { slab: true, pages: true, percpu: true };

    fn has(self, kind: Kind) -> bool {
        match kind {
            Kind::Slab => self.slab,
            Kind::Page => self.pages,
            Kind::Percpu => self.percpu,
        }
    }
}

/// A tracepoint that this crate knows.
struct Known {
    name: &'static str,
    /// Path below tracefs's folder of events.
    path: &'static str,
    kind: Kind,
    /// Names of the fields with the address, and with the size or order; of frees only the pages' order.
    address: &'static str,
    sizes: &'static [&'static str],
    is_alloc: bool,
    /// Only some kernels have it.
    optional: bool,
}

const fn known(
    name: &'static str,
    path: &'static str,
    kind: Kind,
    address: &'static str,
    sizes: &'static [&'static str],
    is_alloc: bool,
    optional: bool,
) -> Known {
    Known { name, path, kind, address, sizes, is_alloc, optional }
}

/// All tracepoints. Those with a node were merged into the others in Linux 6.1. A page of a batch is also reported by
/// `mm_page_free`, so `mm_page_free_batched` would be a second report.
const ALL: [Known; 10] = [
    known("kmem:kmalloc", "kmem/kmalloc", Kind::Slab, "ptr", &["bytes_alloc"], true, false),
    known(
        "kmem:kmem_cache_alloc",
        "kmem/kmem_cache_alloc",
        Kind::Slab,
        "ptr",
        &["bytes_alloc"],
        true,
        false,
    ),
    known(
        "kmem:kmalloc_node",
        "kmem/kmalloc_node",
        Kind::Slab,
        "ptr",
        &["bytes_alloc"],
        true,
        true,
    ),
    known(
        "kmem:kmem_cache_alloc_node",
        "kmem/kmem_cache_alloc_node",
        Kind::Slab,
        "ptr",
        &["bytes_alloc"],
        true,
        true,
    ),
    known("kmem:kfree", "kmem/kfree", Kind::Slab, "ptr", &[], false, false),
    known("kmem:kmem_cache_free", "kmem/kmem_cache_free", Kind::Slab, "ptr", &[], false, false),
    known("kmem:mm_page_alloc", "kmem/mm_page_alloc", Kind::Page, "pfn", &["order"], true, false),
    known("kmem:mm_page_free", "kmem/mm_page_free", Kind::Page, "pfn", &["order"], false, false),
    known(
        "percpu:percpu_alloc_percpu",
        "percpu/percpu_alloc_percpu",
        Kind::Percpu,
        "ptr",
        &["bytes_alloc", "size"],
        true,
        true,
    ),
    known(
        "percpu:percpu_free_percpu",
        "percpu/percpu_free_percpu",
        Kind::Percpu,
        "ptr",
        &[],
        false,
        true,
    ),
];

/// A tracepoint of this kernel.
#[derive(Clone, Debug)]
pub(crate) struct Tracepoint {
    /// Name, such as `kmem:kmalloc`.
    pub name: &'static str,
    /// Number.
    pub id: u64,
    /// Kind of memory.
    pub kind: Kind,
    /// Whether the tracepoint reports allocations rather than frees.
    pub is_alloc: bool,
    /// The address, or the number of the page.
    pub address: Field,
    /// The size in bytes, or the order of pages.
    pub size: Option<Field>,
    /// Name of the field of the size.
    pub size_name: &'static str,
    /// Name of the slab cache.
    pub cache: Option<Field>,
}

/// Returns the kernel's tracepoints of the kinds that are wanted.
///
/// # Errors
/// If one is missing that every supported kernel has, or lacks a field.
pub(crate) fn all(tracefs: &Tracefs, what: What) -> Result<Vec<Tracepoint>, Error> {
    let mut found = Vec::new();
    for k in ALL.iter().filter(|k| what.has(k.kind)) {
        let bad = |why: String| Error::Tracepoint { name: k.name, why };
        let text = match tracefs.format(k.path) {
            Err(e) if k.optional && e.kind() == std::io::ErrorKind::NotFound => continue,
            result => result.map_err(|e| bad(format!("its description can't be read: {e}")))?,
        };
        let format = Format::parse(&text).ok_or_else(|| bad("it has no number".into()))?;
        let need = |name| format.field(name).ok_or_else(|| bad(format!("it has no field {name}")));
        let size = k.sizes.iter().find_map(|name| Some((*name, format.field(name)?)));
        if k.is_alloc && size.is_none() {
            return Err(bad("it has no size".into()));
        }
        found.push(Tracepoint {
            name: k.name,
            id: format.id,
            kind: k.kind,
            is_alloc: k.is_alloc,
            address: need(k.address)?,
            // Of a free, only pages have one.
            size: size.map(|s| s.1).or_else(|| format.field("order").filter(|_| !k.is_alloc)),
            size_name: size.map_or("", |s| s.0),
            cache: format.field("name").filter(|_| k.is_alloc && k.kind == Kind::Slab),
        });
    }
    Ok(found)
}

impl Tracepoint {
    /// Returns the least and the greatest size of allocations of `min` to `max` bytes, or order of pages; `None` if that
    /// is all.
    pub(crate) fn sizes(&self, min: u64, max: u64, page: u64) -> Option<(u64, u64)> {
        if !self.is_alloc || (min == 0 && max == u64::MAX) {
            return None;
        }
        if self.kind != Kind::Page {
            return Some((min, max.min(i64::MAX as u64)));
        }
        // The smallest order with at least `min` bytes, and the largest with at most `max`.
        let least = min.div_ceil(page).max(1).next_power_of_two().trailing_zeros();
        Some((max / page).checked_ilog2().map_or((1, 0), |most| (least.into(), most.into())))
    }

    /// Returns the expression that lets allocations of `min` to `max` bytes through; `None` if that is all.
    pub(crate) fn filter(&self, min: u64, max: u64, page: u64) -> Option<String> {
        let (name, (least, most)) = (self.size_name, self.sizes(min, max, page)?);
        Some(format!("{name} >= {least} && {name} <= {most}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_selected_in_the_kernel() {
        let mut t = Tracepoint {
            name: "kmem:kmalloc",
            id: 1,
            kind: Kind::Slab,
            is_alloc: true,
            address: Field::default(),
            size: Some(Field::default()),
            size_name: "bytes_alloc",
            cache: None,
        };
        assert_eq!(t.filter(0, u64::MAX, 4096), None);
        assert_eq!(
            t.filter(16, 32, 4096).as_deref(),
            Some("bytes_alloc >= 16 && bytes_alloc <= 32")
        );
        (t.kind, t.size_name) = (Kind::Page, "order");
        assert_eq!(t.filter(4097, 20000, 4096).as_deref(), Some("order >= 1 && order <= 2"));
        assert_eq!(t.filter(0, 4095, 4096).as_deref(), Some("order >= 1 && order <= 0"));
        t.is_alloc = false;
        assert_eq!(t.filter(16, 32, 4096), None);
    }
}
