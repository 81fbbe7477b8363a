//! Runtimes and programs that take memory from the kernel themselves and divide it into blocks, which the
//! hooked functions do not see.

/// A runtime or program with an allocator of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)] // the variants are named as the runtimes
pub enum Runtime {
    Pymalloc,
    Zend,
    Beam,
    Go,
    Memcached,
    Java,
    V8,
    Ruby,
    CoreClr,
    LuaJit,
}

impl Runtime {
    /// All runtimes.
    pub const ALL: [Self; 10] = [
        Self::Pymalloc,
        Self::Zend,
        Self::Beam,
        Self::Go,
        Self::Memcached,
        Self::Java,
        Self::V8,
        Self::Ruby,
        Self::CoreClr,
        Self::LuaJit,
    ];

    /// Returns the name used in recordings and in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Pymalloc => "pymalloc",
            Self::Zend => "zend",
            Self::Beam => "beam",
            Self::Go => "go",
            Self::Memcached => "memcached",
            Self::Java => "java",
            Self::V8 => "v8",
            Self::Ruby => "ruby",
            Self::CoreClr => "coreclr",
            Self::LuaJit => "luajit",
        }
    }

    /// Returns the runtime with a name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|r| r.name() == name)
    }

    /// Returns whether nearly all of the program's work is done in that memory, so that a busy program has
    /// next to no events.
    #[must_use]
    pub fn takes_all(self) -> bool {
        matches!(self, Self::Zend | Self::Beam | Self::Go | Self::Memcached)
    }

    /// Describes the memory, and how to see more of it.
    #[must_use]
    pub fn what(self) -> &'static str {
        match self {
            Self::Pymalloc => {
                "CPython keeps objects of up to 512 bytes in pymalloc's arenas, which it maps itself; started \
                 with PYTHONMALLOC=malloc it asks malloc for each"
            }
            Self::Zend => {
                "PHP's Zend memory manager maps chunks of 2 MiB itself and cuts them up; started with \
                 USE_ZEND_ALLOC=0 it asks malloc for each block"
            }
            Self::Beam => {
                "Erlang's allocators map carriers themselves and cut them up; started with +Mea min (erl \
                 +Mea min, or ERL_FLAGS) it asks malloc for each block"
            }
            Self::Go => {
                "Go's runtime maps its heap itself; net/http/pprof shows that, and prof what C code asks for"
            }
            Self::Memcached => {
                "memcached keeps items in slab pages of 1 MiB, which it cuts up itself; its commands stats \
                 slabs and stats items show them"
            }
            Self::Java => {
                "Java's heap is mapped by the JVM itself; jcmd PID GC.class_histogram shows that, and prof \
                 native memory"
            }
            Self::V8 => {
                "JavaScript's heap is mapped by V8 itself; a heap snapshot (node --heapsnapshot-signal=USR2) \
                 shows that, and prof native memory"
            }
            Self::Ruby => {
                "Ruby's objects lie in heap pages that it maps itself; ObjectSpace.dump_all shows them, and \
                 prof what objects ask malloc for"
            }
            Self::CoreClr => {
                ".NET's heap is mapped by the runtime itself; dotnet-gcdump shows that, and prof native memory"
            }
            Self::LuaJit => "LuaJIT maps its heap itself, and prof shows what C code asks for",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back() {
        for r in Runtime::ALL {
            assert_eq!(Runtime::from_name(r.name()), Some(r));
        }
        assert_eq!(Runtime::from_name("malloc"), None);
    }
}
