//! The reference of the language, made from the registrations.

use crate::registry::Name;
use std::fmt::Write;

/// Returns the names that contain a text, or begin with it if it ends in `*`, with what they do.
pub fn help(names: &[Name], pattern: &str) -> String {
    let pattern = pattern.to_lowercase();
    let has = |name: &&Name| match pattern.strip_suffix('*') {
        Some(start) => name.name.to_lowercase().starts_with(start),
        None => name.title().to_lowercase().contains(&pattern),
    };
    let mut out = String::new();
    for name in names.iter().filter(has) {
        let _ = writeln!(out, "{}\n    {}", name.title(), name.doc);
        if !name.note.is_empty() {
            let _ = writeln!(out, "    {}", name.note);
        }
    }
    out
}

/// Text in front of the names of a type.
const TYPES: [(&str, &str, &str); 14] = [
    ("", "Functions", "They can be called anywhere."),
    ("Data", "Data", "A recording."),
    (
        "AllocationList",
        "AllocationList",
        "A list of blocks in the order of time. It is a selection in the recording's index: filters return a new one, \
         and compute nothing until its blocks are needed. Several filters on one list must all hold.",
    ),
    ("AllocationGroupList", "AllocationGroupList", "Groups of blocks, each with the same stack."),
    ("Allocation", "Allocation", "A block of memory."),
    (
        "MapList",
        "MapList",
        "A list of mappings, in the order in which they were made or seen first.",
    ),
    ("Map", "Map", "A mapping."),
    (
        "Scan",
        "Scan",
        "A scan of the process's memory, which `prof holds PID --save` has put into the recording: who held the live \
         blocks at a moment, and how much would go with whom. It is read when something is asked of it; the two that were \
         read last are kept. Blocks from before the attach, of a scan with `--census`, count in the figures, but are in no \
         AllocationList.",
    ),
    (
        "Backtrace",
        "Backtrace",
        "A stack, from the start of the thread to the allocator. println prints a frame a line.",
    ),
    ("Graph", "Graph", "A graph over time, of stacked areas. Each method returns a changed copy."),
    ("Duration", "Duration", "A length of time, or a moment since the start of the recording."),
    ("Option<Duration>", "Option<Duration>", "A duration that may be missing."),
    ("Array", "Array", "An array of the language, with what it has beyond the language itself."),
    ("Option<Backtrace>", "Option<Backtrace>", "A stack that may be missing."),
];

/// Returns the reference as Markdown.
pub fn reference(names: &[Name]) -> String {
    let mut out = String::from(
        "# Script reference\n\n\
         <!-- Made from the registrations: `tests/names/` of prof-script says how. -->\n\n\
         All names that scripts can use, with the types of arguments and results. `A|B` stands for either type, `[A]` \
         for an array. The last arguments can be left out where the text says so. [Scripts](scripts.md) tells how to \
         run them.\n",
    );
    for (of, title, about) in TYPES {
        let own: Vec<&Name> = names.iter().filter(|n| n.of == of).collect();
        if own.is_empty() {
            continue;
        }
        let _ = write!(out, "\n## {title}\n\n{about}\n");
        for n in own {
            let _ = write!(out, "\n### {}\n\n    {}\n\n{}", heading(n), n.title(), n.doc);
            if !n.note.is_empty() {
                let _ = write!(out, " *{}*", n.note);
            }
            let _ = write!(out, "\n\n```rust,ignore\n{}\n```\n", n.example);
        }
    }
    out
}

fn heading(n: &Name) -> String {
    match n.of {
        "" => format!("`{}`", n.name),
        of => format!("`{of}` `{}`", n.name),
    }
}
