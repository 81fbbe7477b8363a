//! Messages of prof's other parts in the words of scripts: they speak of the command line's options.

use crate::only::ALL;

/// Parts of messages, and what they say in a script.
const PHRASES: [(&str, &str); 5] = [
    ("`prof report --threads` lists", "`allocations().by_thread()` lists"),
    ("`prof report` lists", "`allocations().report()` lists"),
    (
        "--mmapped, --arena and --min- and --max-usable-size ask",
        "only_ptmalloc_mmaped, only_ptmalloc_from_main_arena, only_usable_size_at_least and their like ask",
    ),
    ("prof maps has it", "maps() has it"),
    ("--from is later than --to", "the first moment is later than the last"),
];

/// Returns the message of a query with methods in place of the options that it begins with, and in place of those that
/// it advises. What it quotes of the script stays.
pub(crate) fn of_methods(message: &str) -> String {
    let mut text = message.to_owned();
    for (options, methods) in PHRASES {
        text = text.replace(options, methods);
    }
    let (mut named, mut rest) = (Vec::new(), text.as_str());
    while let Some(behind) = rest.strip_prefix("--") {
        let end = behind.find(|c: char| !c.is_ascii_lowercase() && c != '-');
        let (field, behind) = behind.split_at(end.unwrap_or(behind.len()));
        let Some(method) = method(field) else { break };
        named.push(method);
        rest = behind.trim_start_matches(' ');
    }
    match (named.is_empty(), rest.starts_with(':')) {
        (true, _) => text,
        (false, true) => format!("{}{rest}", named.join(" ")),
        (false, false) => format!("{} {rest}", named.join(" ")),
    }
}

/// Returns the method by which a script asks for a field of the filters, if there is one.
fn method(field: &str) -> Option<&'static str> {
    let field = if field == "alive-at-2" { "alive-at" } else { field };
    let of = ALL.iter().find(|o| o.field == field && !o.not).map(|o| o.name);
    // The one method that counts marks, and is not in the table.
    of.or((field == "marker").then_some("only_with_marker"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_become_methods() {
        for (message, says) in [
            (
                "--thread --x: no thread of that id or name; `prof report --threads` lists them",
                "only_thread --x: no thread of that id or name; `allocations().by_thread()` lists them",
            ),
            ("--part: parts are numbered from 1", "only_part: parts are numbered from 1"),
            ("--part 9: has 1", "only_part 9: has 1"),
            (
                "--min-size --thread: single blocks (--aggregate)",
                "only_larger_or_equal only_thread: single blocks (--aggregate)",
            ),
            ("no scan; `prof holds 1 --save` adds one", "no scan; `prof holds 1 --save` adds one"),
        ] {
            assert_eq!(of_methods(message), says);
        }
    }
}
