//! Entries of the hook that stubs jump to.

/// Entries that stubs jump to, by what they do.
#[repr(C)]
#[allow(missing_docs)] // the kinds that use them say what they are for
#[derive(Clone, Copy, Debug)]
pub struct Entries {
    pub alloc: Code,
    pub realloc: Code,
    pub free: Code,
    pub delete: Code,
    pub loader: Code,
    pub resize: Code,
    pub named_alloc: Code,
    pub named_realloc: Code,
    pub named_free: Code,
    pub sandbox: Code,
    pub fork: Code,
    pub call: Code,
    pub limit: Code,
}

/// The address of code in the hook's image: a pointer of the target's width.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub struct Code(pub *const ());

// SAFETY: the address is only a number here; nothing dereferences it.
unsafe impl Sync for Code {}
// SAFETY: as above.
unsafe impl Send for Code {}
