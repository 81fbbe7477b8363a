//! The table of the `only_…` methods.

use Arg::{Address, Amount, Flag, Maps as OfMaps, Number, Stacks, Text, Time, Times};
use On::{Blocks, Both, Maps};

/// The argument of a method, and what becomes of it in the text of the field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arg {
    /// None: the field has this value.
    Flag(&'static str),
    /// A number of bytes or items. The number given is increased by the second: `only_larger(n)` is from n + 1 on.
    Number(i64),
    /// An address.
    Address,
    /// A moment, or a duration.
    Time,
    /// A number, or a part of 1.
    Amount,
    /// A regular expression, or another text.
    Text,
    /// Moments, at each of which a condition holds.
    Times,
    /// Stacks: ids, and what has stacks.
    Stacks,
    /// Mappings: ids, and what has ids.
    Maps,
}

/// The lists that have a method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum On {
    Blocks,
    Maps,
    Both,
}

/// A method that selects part of a list.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Only {
    pub name: &'static str,
    pub on: On,
    /// The field of the filter.
    pub field: &'static str,
    pub arg: Arg,
    /// The blocks that meet the condition are removed, and the others stay.
    pub not: bool,
    /// Description of a block or mapping that stays, to follow "Keeps those".
    pub(super) doc: &'static str,
    pub(super) note: &'static str,
}

const fn only(
    name: &'static str,
    on: On,
    field: &'static str,
    arg: Arg,
    doc: &'static str,
) -> Only {
    Only { name, on, field, arg, not: false, doc, note: "" }
}

impl Only {
    const fn not(self) -> Self {
        Self { not: true, ..self }
    }

    const fn note(self, note: &'static str) -> Self {
        Self { note, ..self }
    }
}

pub(super) const NEW: &str = "New in prof.";
const REMOVED: &str = "bytehound removed it in 2022; kept for older scripts.";

/// Notes on names that only older scripts have. Such a script is told so once.
pub(super) const OLD: [&str; 5] = [
    REMOVED,
    "bytehound renamed it in 2022, to only_ptmalloc_mmaped; kept for older scripts.",
    "bytehound renamed it in 2022, to only_ptmalloc_not_mmaped; kept for older scripts.",
    "bytehound renamed it in 2022, to only_ptmalloc_from_main_arena; kept for older scripts.",
    "bytehound renamed it in 2022, to only_ptmalloc_not_from_main_arena; kept for older scripts.",
];

/// All methods. Those of which the field alone is wanted as code come first of their field.
pub(crate) const ALL: &[Only] = &[
    only(
        "only_passing_through_function",
        Both,
        "function",
        Text,
        "whose stack has a function that matches",
    ),
    only(
        "only_not_passing_through_function",
        Both,
        "not-function",
        Text,
        "whose stack has no function that matches",
    ),
    only(
        "only_passing_through_source",
        Both,
        "source",
        Text,
        "whose stack has a source file that matches",
    ),
    only(
        "only_not_passing_through_source",
        Both,
        "not-source",
        Text,
        "whose stack has no source file that matches",
    ),
    only(
        "only_passing_through_module",
        Blocks,
        "module",
        Text,
        "whose stack has a module that matches",
    )
    .note(NEW),
    only(
        "only_not_passing_through_module",
        Blocks,
        "not-module",
        Text,
        "whose stack has no module that matches",
    )
    .note(NEW),
    only("only_matching_backtraces", Both, "stacks", Stacks, "made at one of these stacks"),
    only("only_not_matching_backtraces", Both, "stacks", Stacks, "made at none of these stacks")
        .not(),
    only(
        "only_matching_deallocation_backtraces",
        Both,
        "free-stacks",
        Stacks,
        "that ended at one of these stacks",
    ),
    only(
        "only_not_matching_deallocation_backtraces",
        Both,
        "free-stacks",
        Stacks,
        "that ended at none of these stacks",
    )
    .not(),
    only(
        "only_backtrace_length_at_least",
        Both,
        "min-depth",
        Number(0),
        "whose stack has at least so many frames",
    ),
    only(
        "only_backtrace_length_at_most",
        Both,
        "max-depth",
        Number(0),
        "whose stack has at most so many frames",
    ),
    only("only_larger_or_equal", Both, "min-size", Number(0), "of at least this size"),
    only("only_larger", Both, "min-size", Number(1), "larger than this"),
    only("only_smaller_or_equal", Both, "max-size", Number(0), "of at most this size"),
    only("only_smaller", Both, "max-size", Number(-1), "smaller than this"),
    only("only_address_at_least", Both, "min-address", Address, "at this address or above"),
    only("only_address_at_most", Both, "max-address", Address, "at this address or below"),
    only(
        "only_allocated_after_at_least",
        Both,
        "from",
        Time,
        "made at or after this time since the start",
    ),
    only("only_allocated_until_at_most", Both, "to", Time, "made at or before this time"),
    only("only_since", Both, "since", Text, "made at or after this mark")
        .note("Beyond bytehound. A mark is one that `prof mark` has set: its name, or its number as `#3`."),
    only(
        "only_between",
        Both,
        "between",
        Text,
        "made at or after the first of two marks, and before the second: `A,B`",
    )
    .note("Beyond bytehound."),
    only(
        "only_deallocated_after_at_least",
        Both,
        "freed-from",
        Time,
        "that ended at or after this time",
    ),
    only(
        "only_deallocated_until_at_most",
        Both,
        "freed-to",
        Time,
        "that ended at or before this time",
    ),
    only(
        "only_not_deallocated_after_at_least",
        Both,
        "freed-from",
        Time,
        "that did not end at or after this time",
    )
    .not()
    .note(REMOVED),
    only(
        "only_not_deallocated_until_at_most",
        Both,
        "freed-to",
        Time,
        "that did not end until this time",
    )
    .not()
    .note(REMOVED),
    only("only_alive_for_at_least", Both, "min-lifetime", Time, "that lived at least this long"),
    only("only_alive_for_at_most", Both, "max-lifetime", Time, "that lived at most this long"),
    only("only_alive_at", Both, "alive-at", Times, "that are live at all of these times"),
    only(
        "only_leaked_or_deallocated_after",
        Both,
        "held-until",
        Time,
        "that never end, or at or after this time",
    ),
    only("only_leaked", Both, "lifetime", Flag("leaked"), "that never end"),
    only("only_temporary", Both, "lifetime", Flag("freed"), "that end, at any time"),
    only(
        "only_first_size_larger_or_equal",
        Blocks,
        "min-first-size",
        Number(0),
        "whose chain of reallocations begins with at least this size",
    ),
    only(
        "only_first_size_larger",
        Blocks,
        "min-first-size",
        Number(1),
        "whose chain begins with a larger size",
    ),
    only(
        "only_first_size_smaller_or_equal",
        Blocks,
        "max-first-size",
        Number(0),
        "whose chain begins with at most this size",
    ),
    only(
        "only_first_size_smaller",
        Blocks,
        "max-first-size",
        Number(-1),
        "whose chain begins with a smaller size",
    ),
    only(
        "only_last_size_larger_or_equal",
        Blocks,
        "min-last-size",
        Number(0),
        "whose chain ends with at least this size",
    ),
    only(
        "only_last_size_larger",
        Blocks,
        "min-last-size",
        Number(1),
        "whose chain ends with a larger size",
    ),
    only(
        "only_last_size_smaller_or_equal",
        Blocks,
        "max-last-size",
        Number(0),
        "whose chain ends with at most this size",
    ),
    only(
        "only_last_size_smaller",
        Blocks,
        "max-last-size",
        Number(-1),
        "whose chain ends with a smaller size",
    ),
    only(
        "only_chain_length_at_least",
        Blocks,
        "min-chain-length",
        Number(0),
        "whose chain has at least so many blocks",
    ),
    only(
        "only_chain_length_at_most",
        Blocks,
        "max-chain-length",
        Number(0),
        "whose chain has at most so many blocks",
    ),
    only(
        "only_chain_alive_for_at_least",
        Blocks,
        "min-chain-lifetime",
        Time,
        "whose chain lived at least this long",
    ),
    only(
        "only_chain_alive_for_at_most",
        Blocks,
        "max-chain-lifetime",
        Time,
        "whose chain lived at most this long",
    ),
    only(
        "only_position_in_chain_at_least",
        Blocks,
        "min-chain-position",
        Number(0),
        "at least at this place of their chain; the first is 0",
    ),
    only(
        "only_position_in_chain_at_most",
        Blocks,
        "max-chain-position",
        Number(0),
        "at most at this place of their chain",
    ),
    only(
        "only_chain_leaked",
        Blocks,
        "lifetime",
        Flag("chain-leaked"),
        "of which the last of the chain never ends",
    ),
    only(
        "only_group_allocations_at_least",
        Blocks,
        "min-group-allocations",
        Number(0),
        "whose stack made at least so many blocks",
    ),
    only(
        "only_group_allocations_at_most",
        Blocks,
        "max-group-allocations",
        Number(0),
        "whose stack made at most so many blocks",
    ),
    only(
        "only_group_interval_at_least",
        Blocks,
        "min-group-interval",
        Time,
        "whose stack's first and last block lie at least this far apart",
    ),
    only(
        "only_group_interval_at_most",
        Blocks,
        "max-group-interval",
        Time,
        "whose stack's first and last block lie at most this far apart",
    ),
    only(
        "only_group_max_total_usage_first_seen_at_least",
        Blocks,
        "min-group-peak-at",
        Time,
        "whose stack first held the most at or after this time",
    ),
    only(
        "only_group_max_total_usage_first_seen_at_most",
        Blocks,
        "max-group-peak-at",
        Time,
        "whose stack first held the most at or before this time",
    ),
    only(
        "only_group_leaked_allocations_at_least",
        Blocks,
        "min-group-leaked",
        Amount,
        "of whose stack's blocks at least so many (or this part of 1) never end",
    ),
    only(
        "only_group_leaked_allocations_at_most",
        Blocks,
        "max-group-leaked",
        Amount,
        "of whose stack's blocks at most so many (or this part of 1) never end",
    ),
    only("only_ptmalloc_mmaped", Blocks, "mmapped", Flag("yes"), "that glibc mapped on their own"),
    only(
        "only_ptmalloc_not_mmaped",
        Blocks,
        "mmapped",
        Flag("no"),
        "that glibc did not map on their own",
    ),
    only("only_ptmalloc_from_main_arena", Blocks, "arena", Flag("main"), "in glibc's main arena"),
    only(
        "only_ptmalloc_not_from_main_arena",
        Blocks,
        "arena",
        Flag("non-main"),
        "in another of glibc's arenas",
    ),
    only("only_mmaped", Blocks, "mmapped", Flag("yes"), "that glibc mapped on their own")
        .note(OLD[1]),
    only("only_not_mmaped", Blocks, "mmapped", Flag("no"), "that glibc did not map on their own")
        .note(OLD[2]),
    only("only_from_main_arena", Blocks, "arena", Flag("main"), "in glibc's main arena")
        .note(OLD[3]),
    only("only_from_not_main_arena", Blocks, "arena", Flag("non-main"), "in another of glibc's arenas")
        .note(OLD[4]),
    only("only_from_maps", Blocks, "from-map", OfMaps, "in one of these mappings"),
    only(
        "only_part",
        Blocks,
        "part",
        Number(0),
        "made in this part of the recording; the first is 1",
    )
    .note(NEW),
    only("only_thread", Blocks, "thread", Text, "made by the thread of this name or id").note(NEW),
    only("only_older", Blocks, "older", Time, "made at least this long before the end").note(NEW),
    only(
        "only_usable_size_at_least",
        Blocks,
        "min-usable-size",
        Number(0),
        "of which glibc made at least so many bytes usable",
    )
    .note(NEW),
    only(
        "only_usable_size_at_most",
        Blocks,
        "max-usable-size",
        Number(0),
        "of which glibc made at most so many bytes usable",
    )
    .note(NEW),
    only(
        "only_temporary_of_thread",
        Blocks,
        "lifetime",
        Flag("temporary"),
        "freed by the next event of the thread that made them",
    )
    .note(NEW),
    only(
        "only_whole_group_leaked",
        Blocks,
        "lifetime",
        Flag("whole-group-leaked"),
        "of whose stack no block ever ends",
    )
    .note(NEW),
    only(
        "only_peak_rss_at_least",
        Maps,
        "min-peak-rss",
        Number(0),
        "of which at least so many bytes were once resident",
    ),
    only(
        "only_peak_rss_at_most",
        Maps,
        "max-peak-rss",
        Number(0),
        "of which never more bytes were resident",
    ),
    only("only_jemalloc", Maps, "jemalloc", Flag("yes"), "made by jemalloc"),
    only("only_not_jemalloc", Maps, "jemalloc", Flag("no"), "not made by jemalloc"),
    only("only_bytehound", Maps, "bytehound", Flag("yes"), "of the profiler itself")
        .note("These are prof's own mappings."),
    only("only_not_bytehound", Maps, "bytehound", Flag("no"), "not of the profiler itself")
        .note("These are all but prof's own mappings."),
    only("only_readable", Maps, "readable", Flag("yes"), "that can be read"),
    only("only_not_readable", Maps, "readable", Flag("no"), "that can't be read"),
    only("only_writable", Maps, "writable", Flag("yes"), "that can be written to"),
    only("only_not_writable", Maps, "writable", Flag("no"), "that can't be written to"),
    only("only_executable", Maps, "executable", Flag("yes"), "that can be executed"),
    only("only_not_executable", Maps, "executable", Flag("no"), "that can't be executed"),
    only(
        "only_kind",
        Maps,
        "kind",
        Text,
        "of this kind, or of one of several with commas between: heap, anonymous, stack, code, data, file, shared, reserved, kernel or prof",
    )
    .note(NEW),
    only("only_name", Maps, "name", Text, "whose path or name matches").note(NEW),
];
