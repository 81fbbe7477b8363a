//! The table of the fields that select blocks: names, kinds of values and help.

/// A field of the grammar.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Name of the field.
    pub name: &'static str,
    /// Further names, as in other tools. `-` and `_` are equal.
    pub aliases: &'static [&'static str],
    /// Kind of the value.
    pub value: &'static str,
    /// Help text.
    pub help: &'static str,
    /// Reason for refusing the field, if recordings don't contain the data it needs.
    pub refused: Option<&'static str>,
}

const fn field(name: &'static str, value: &'static str, help: &'static str) -> Field {
    Field { name, aliases: &[], value, help, refused: None }
}

impl Field {
    const fn or(self, aliases: &'static [&'static str]) -> Self {
        Self { aliases, ..self }
    }

    const fn refused(self, why: &'static str) -> Self {
        Self { refused: Some(why), ..self }
    }
}

const NO_MAPS: &str = "it is a property of mappings; prof maps has it";

/// All fields, in the order of the help text.
pub const FIELDS: &[Field] = &[
    field(
        "from",
        "TIME",
        "Allocated at or after this time since the start (30 or 30s, 4h3m2s, N%)",
    ),
    field("to", "TIME", "Allocated at or before this time"),
    field("since", "MARK", "Allocated at or after this mark (its name, or its number as #3)"),
    field("between", "MARK,MARK", "Allocated at or after the first mark, and before the second"),
    field("freed-from", "TIME", "Freed at or after this time, or passed to realloc"),
    field("freed-to", "TIME", "Freed at or before this time, or passed to realloc"),
    field("held-until", "TIME", "Freed at or after this time, or never"),
    field("alive-at", "TIME", "Live at this time"),
    field("alive-at-2", "TIME", "Live at this time as well"),
    field(
        "lifetime",
        "KIND",
        "leaked (live at the end), freed, temporary (freed by its thread's next event), \
         chain-leaked (the last of its reallocations is live), whole-group-leaked, or all",
    ),
    field("older", "TIME", "Allocated at least this long before the end"),
    field("min-lifetime", "TIME", "Lived at least this long").or(&["lifetime-min"]),
    field("max-lifetime", "TIME", "Lived at most this long").or(&["lifetime-max"]),
    field("min-size", "SIZE", "Of at least this size").or(&["size-min"]),
    field("max-size", "SIZE", "Of at most this size").or(&["size-max"]),
    field("min-address", "ADDR", "At this address or above").or(&["address-min"]),
    field("max-address", "ADDR", "At this address or below").or(&["address-max"]),
    field(
        "thread",
        "TID|NAME",
        "Allocated by this thread: its id, its name, or a part of its name",
    ),
    field("part", "N", "Allocated in this part of the recording; the first is 1"),
    field("function", "REGEX", "A function of the stack matches").or(&["function-regex"]),
    field("not-function", "REGEX", "No function of the stack matches")
        .or(&["negative-function-regex"]),
    field("source", "REGEX", "A source file of the stack matches").or(&["source-regex"]),
    field("not-source", "REGEX", "No source file of the stack matches")
        .or(&["negative-source-regex"]),
    field("module", "REGEX", "The path of a module of the stack matches"),
    field("not-module", "REGEX", "No path of a module of the stack matches"),
    field("min-depth", "N", "The stack has at least so many frames").or(&["backtrace-depth-min"]),
    field("max-depth", "N", "The stack has at most so many frames").or(&["backtrace-depth-max"]),
    field("stacks", "ID,...", "Allocated at one of these stacks, by the ids in --format json")
        .or(&["backtraces"]),
    field("free-stacks", "ID,...", "Freed, or reallocated, at one of these stacks")
        .or(&["deallocation-backtraces"]),
    field("min-group-allocations", "N", "Its stack made at least so many allocations")
        .or(&["group-allocations-min"]),
    field("max-group-allocations", "N", "Its stack made at most so many allocations")
        .or(&["group-allocations-max"]),
    field("min-group-leaked", "N|N%", "At least so many of its stack's allocations are live")
        .or(&["group-leaked-allocations-min"]),
    field("max-group-leaked", "N|N%", "At most so many of its stack's allocations are live")
        .or(&["group-leaked-allocations-max"]),
    field(
        "min-group-interval",
        "TIME",
        "Between its stack's first and last allocation lies this much",
    )
    .or(&["group-interval-min"]),
    field(
        "max-group-interval",
        "TIME",
        "Between its stack's first and last allocation lies no more",
    )
    .or(&["group-interval-max"]),
    field("min-group-peak-at", "TIME", "Its stack first held the most at or after this time")
        .or(&["group-max-total-usage-first-seen-min"]),
    field("max-group-peak-at", "TIME", "Its stack first held the most at or before this time")
        .or(&["group-max-total-usage-first-seen-max"]),
    field("min-chain-length", "N", "Part of a chain of reallocations of at least so many blocks")
        .or(&["chain-length-min"]),
    field("max-chain-length", "N", "Part of a chain of at most so many blocks")
        .or(&["chain-length-max"]),
    field("min-chain-position", "N", "At least at this place of its chain; the first is 0")
        .or(&["position-in-chain-min"]),
    field("max-chain-position", "N", "At most at this place of its chain")
        .or(&["position-in-chain-max"]),
    field("min-chain-lifetime", "TIME", "Its chain lived at least this long")
        .or(&["chain-lifetime-min"]),
    field("max-chain-lifetime", "TIME", "Its chain lived at most this long")
        .or(&["chain-lifetime-max"]),
    field("min-first-size", "SIZE", "The first block of its chain has at least this size")
        .or(&["first-size-min"]),
    field("max-first-size", "SIZE", "The first block of its chain has at most this size")
        .or(&["first-size-max"]),
    field("min-last-size", "SIZE", "The last block of its chain has at least this size")
        .or(&["last-size-min"]),
    field("max-last-size", "SIZE", "The last block of its chain has at most this size")
        .or(&["last-size-max"]),
    field("mmapped", "yes|no", "Mapped on its own by glibc").or(&["mmaped"]),
    field("arena", "main|non-main", "In this kind of glibc's arenas"),
    field("min-usable-size", "SIZE", "glibc has made at least so many bytes of it usable")
        .or(&["usable-size-min"]),
    field("max-usable-size", "SIZE", "glibc has made at most so many bytes of it usable")
        .or(&["usable-size-max"]),
    field("jemalloc", "yes|no", "Allocated by a function of jemalloc, by the names in the stack"),
    field(
        "marker",
        "N",
        "Allocated after the mark of this number, before the next one; 0: before the first",
    ),
    field("from-map", "ID,...", "In one of these mappings, by the ids of prof maps"),
    field("min-peak-rss", "SIZE", "Of mappings: once resident with so much")
        .or(&["peak-rss-min"])
        .refused(NO_MAPS),
    field("max-peak-rss", "SIZE", "Of mappings: never resident with more")
        .or(&["peak-rss-max"])
        .refused(NO_MAPS),
    field("readable", "yes|no", "Of mappings: readable").refused(NO_MAPS),
    field("writable", "yes|no", "Of mappings: writable").or(&["writeable"]).refused(NO_MAPS),
    field("executable", "yes|no", "Of mappings: executable").refused(NO_MAPS),
];

/// Returns the field with that name or alias.
pub fn find(name: &str) -> Option<&'static Field> {
    let name = name.replace('_', "-");
    FIELDS.iter().find(|f| f.name == name || f.aliases.contains(&name.as_str()))
}
