//! Reads settings and statistics of other allocators, where variables with names hold them.

use super::{Found, has, not};
use prof_trace::records::{Allocators, allocator, setting};
use std::fs::File;
use std::os::unix::fs::FileExt;

/// Greatest length of a text that is read.
const MAX_TEXT: usize = 1024;

/// The type of a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Type {
    Bool,
    Int,
    Word,
    SignedWord,
    /// A pointer to a text.
    Text,
}

/// A variable of an allocator.
#[derive(Clone, Copy, Debug)]
pub(super) struct Variable {
    /// The symbol.
    pub symbol: &'static str,
    of: &'static str,
    name: &'static str,
    kind: Type,
    /// Whether the allocator counts the value; otherwise the value is a setting.
    is_figure: bool,
}

const fn setting_of(
    of: &'static str,
    symbol: &'static str,
    name: &'static str,
    kind: Type,
) -> Variable {
    Variable { symbol, of, name, kind, is_figure: false }
}

const fn figure_of(symbol: &'static str, name: &'static str, kind: Type) -> Variable {
    Variable { symbol, of: allocator::TCMALLOC, name, kind, is_figure: true }
}

const JE: &str = allocator::JEMALLOC;

/// The variables. Those of jemalloc other than the first are there only if its symbols were not stripped.
pub(super) const VARIABLES: [Variable; 15] = [
    setting_of(JE, "malloc_conf", "malloc_conf", Type::Text),
    setting_of(JE, "_rjem_malloc_conf", "malloc_conf", Type::Text),
    setting_of(JE, "je_malloc_conf", "malloc_conf", Type::Text),
    setting_of(JE, "je_opt_narenas", "opt.narenas", Type::Int),
    setting_of(JE, "je_opt_dirty_decay_ms", "opt.dirty_decay_ms", Type::SignedWord),
    setting_of(JE, "je_opt_muzzy_decay_ms", "opt.muzzy_decay_ms", Type::SignedWord),
    setting_of(JE, "je_opt_background_thread", "opt.background_thread", Type::Bool),
    setting_of(JE, "je_opt_retain", "opt.retain", Type::Bool),
    setting_of(JE, "je_opt_tcache", "opt.tcache", Type::Bool),
    setting_of(JE, "je_opt_oversize_threshold", "opt.oversize_threshold", Type::Word),
    figure_of("TCMalloc_SystemTaken", "from_system", Type::Word),
    figure_of("_ZN8tcmalloc11ThreadCache18thread_heap_count_E", "thread_caches", Type::Int),
    figure_of(
        "_ZN8tcmalloc11ThreadCache26overall_thread_cache_size_E",
        "thread_cache_limit",
        Type::Word,
    ),
    figure_of(
        "_ZN8tcmalloc11ThreadCache22unclaimed_cache_space_E",
        "thread_cache_unclaimed",
        Type::Word,
    ),
    figure_of(
        "_ZN8tcmalloc11ThreadCache22per_thread_cache_size_E",
        "per_thread_cache_limit",
        Type::Word,
    ),
];

/// Adds the variables of an allocator that its file names.
pub(super) fn add(mem: &File, bias: u64, found: &Found, all: &mut Allocators) {
    for (index, addr) in &found.symbols {
        let Some(v) = VARIABLES.get(*index).filter(|v| v.of == found.name) else { continue };
        let Some(value) = read(mem, bias.wrapping_add(*addr), v.kind) else { continue };
        match value.parse() {
            Ok(n) if v.is_figure => all.note(v.of, v.name, n),
            _ => all.set(setting::MEMORY, v.name, value),
        }
    }
}

fn read(mem: &File, at: u64, kind: Type) -> Option<String> {
    let mut bytes = [0u8; size_of::<usize>()];
    let len = match kind {
        Type::Bool => 1,
        Type::Int => 4,
        _ => bytes.len(),
    };
    mem.read_exact_at(&mut bytes[..len], at).ok()?;
    let word = usize::from_ne_bytes(bytes);
    Some(match kind {
        Type::Bool => (bytes[0] != 0).to_string(),
        Type::Int => u32::from_ne_bytes(*bytes.first_chunk()?).to_string(),
        Type::Word => word.to_string(),
        Type::SignedWord => (word as isize).to_string(),
        Type::Text => text(mem, word as u64)?,
    })
}

/// Reads a text; `None` if there is none.
fn text(mem: &File, at: u64) -> Option<String> {
    let mut bytes = vec![0; MAX_TEXT];
    let n = if at == 0 { 0 } else { mem.read_at(&mut bytes, at).unwrap_or(0) };
    let end = bytes[..n].iter().position(|b| *b == 0)?;
    Some(String::from_utf8_lossy(&bytes[..end]).into_owned())
}

/// Notes what can't be told of allocators that the target has.
pub(super) fn say_unknown(all: &mut Allocators) {
    let facts = [
        (
            allocator::JEMALLOC,
            "its retained, dirty and muzzy pages: no variable with a name holds its statistics; the program can write \
             them itself (malloc_stats_print, or stats_print:true in MALLOC_CONF)",
        ),
        (
            allocator::MIMALLOC,
            "its reserved, committed and purged pages: no variable with a name holds its statistics; \
             MIMALLOC_SHOW_STATS=1 has it write them when the program ends",
        ),
        (
            allocator::TCMALLOC,
            "how much of the memory from the system is in its page heap, central lists and threads' caches: no variable \
             with a name holds that; the program can write it itself (MallocExtension::GetStats)",
        ),
        (
            allocator::MUSL,
            "its groups of blocks and how many of them are free: no variable with a name holds them",
        ),
    ];
    for (name, what) in facts {
        if has(all, name) {
            not(all, name, what);
        }
    }
}
