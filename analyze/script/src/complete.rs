//! Completes names at a prompt, by the type of what stands before them, and finds the name that was meant.

use crate::registry::Name;

/// A part of a chain of calls: `allocations()`, `[0]`, `.backtrace`.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    /// A name, and whether it is called.
    Name(String, bool),
    /// An index in brackets.
    Index,
    /// A text, a number, or an expression in parentheses.
    Other,
}

/// The end of a text, as far as it matters for completion.
#[derive(Debug, Default)]
struct Tail {
    /// The chain of calls at the end, its last word included.
    chain: Vec<Part>,
    /// The chain ends in a dot, or a dot stands before its last word.
    dot: bool,
    /// The end is in a text or in a comment.
    quoted: bool,
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Returns the text behind the text or comment that begins here, if one does; empty if it has no end.
fn skipped(rest: &str) -> Option<Option<&str>> {
    if let Some(line) = rest.strip_prefix("//") {
        return Some(line.find('\n').map(|end| &line[end..]));
    }
    if let Some(inner) = rest.strip_prefix("/*") {
        return Some(inner.find("*/").map(|end| &inner[end + 2..]));
    }
    let quote = rest.chars().next().filter(|c| ['"', '\'', '`'].contains(c))?;
    let mut escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == quote => return Some(Some(&rest[at + c.len_utf8()..])),
            _ => {}
        }
    }
    Some(None)
}

fn tail(code: &str) -> Tail {
    let (mut outer, mut now) = (Vec::new(), Tail::default());
    let mut rest = code;
    while let Some(c) = rest.chars().next() {
        if let Some(behind) = skipped(rest) {
            let Some(behind) = behind else { return Tail { quoted: true, ..Tail::default() } };
            if !rest.starts_with('/') {
                now = Tail { chain: vec![Part::Other], ..Tail::default() };
            }
            rest = behind;
            continue;
        }
        if is_word(c) {
            let (word, behind) = rest.split_at(rest.find(|c| !is_word(c)).unwrap_or(rest.len()));
            if !now.dot {
                now.chain.clear();
            }
            let part = Part::Name(word.to_owned(), false);
            now.chain.push(if c.is_ascii_digit() { Part::Other } else { part });
            // The dot belongs to the word for as long as nothing follows.
            now.dot &= behind.is_empty();
            rest = behind;
            continue;
        }
        match c {
            '.' => now.dot = true,
            '(' | '[' => {
                match (c, now.chain.last_mut()) {
                    ('(', Some(Part::Name(_, called))) if !*called => *called = true,
                    ('[', Some(_)) => now.chain.push(Part::Index),
                    _ => now.chain = vec![Part::Other],
                }
                outer.push(std::mem::take(&mut now));
            }
            ')' | ']' => now = outer.pop().unwrap_or_default(),
            c if c.is_whitespace() => {}
            _ => now = Tail::default(),
        }
        rest = &rest[c.len_utf8()..];
    }
    now
}

/// Returns the type that a function returns, if it is one.
fn result(name: &Name) -> Option<&str> {
    let (_, result) = name.signature.split_once("->")?;
    Some(result.trim()).filter(|r| !r.contains('|'))
}

/// Returns the type of what an index or a loop gets.
fn element(of: &str) -> Option<&str> {
    match of {
        "AllocationList" => Some("Allocation"),
        "AllocationGroupList" => Some("AllocationList"),
        "MapList" => Some("Map"),
        _ => of.strip_prefix('[')?.strip_suffix(']'),
    }
}

fn type_of<'a>(
    chain: &[Part],
    names: &'a [Name],
    variables: &'a [(String, String)],
) -> Option<&'a str> {
    let mut of: Option<&str> = None;
    for (i, part) in chain.iter().enumerate() {
        of = match part {
            Part::Name(name, true) => {
                let owner = if i == 0 { "" } else { of? };
                result(names.iter().find(|n| n.of == owner && n.name == *name)?)
            }
            Part::Name(name, false) if i == 0 => {
                variables.iter().find(|v| v.0 == *name).map(|v| v.1.as_str())
            }
            Part::Index => element(of?),
            _ => None,
        };
    }
    of
}

/// Returns a name with what is typed behind it.
fn call(name: &Name) -> String {
    let end = if name.signature.starts_with("()") { "()" } else { "(" };
    format!("{}{end}", name.name)
}

/// Returns where the last word of a text begins, and what it may become. `variables`: the names of the script's own
/// variables, with their types; `functions`: those of its functions.
pub(crate) fn complete(
    before: &str,
    names: &[Name],
    variables: &[(String, String)],
    functions: &[String],
) -> (usize, Vec<String>) {
    let word = before.len() - before.trim_end_matches(is_word).len();
    let (start, word) = (before.len() - word, &before[before.len() - word..]);
    let mut tail = tail(before);
    let is_number = word.starts_with(|c: char| c.is_ascii_digit());
    if tail.quoted || is_number || word.is_empty() && !tail.dot {
        return (start, Vec::new());
    }
    if !word.is_empty() {
        tail.chain.pop();
    }
    let known = type_of(&tail.chain, names, variables);
    let fits = |n: &&Name| match (tail.dot, known) {
        (false, _) => n.of.is_empty(),
        (true, Some(of)) => n.of == of,
        (true, None) => !n.of.is_empty(),
    };
    let registered = names.iter().filter(fits).filter(|n| n.name.starts_with(char::is_alphabetic));
    let mut found: Vec<String> = registered.map(call).collect();
    if !tail.dot {
        found.extend(variables.iter().map(|v| v.0.clone()));
        found.extend(functions.iter().map(|f| format!("{f}(")));
    }
    found.retain(|n| n.starts_with(word));
    found.sort();
    found.dedup();
    (start, found)
}

/// Returns the message of an error with the types in the words of the reference, and with the name that was meant.
pub(crate) fn explained(message: &str, names: &[Name]) -> String {
    let types = [
        ("&str | ImmutableString | String", "String"),
        ("i64", "Integer"),
        ("f64", "Float"),
        ("bool", "Boolean"),
    ];
    if let Some(call) = message.strip_prefix("Function not found: ") {
        let (name, args) = call.split_once(" (").unwrap_or((call, ""));
        let args = types.iter().fold(args.to_owned(), |a, t| a.replace(t.0, t.1));
        let message = format!("Function not found: {name} ({args}");
        let of = args.split([',', ')']).next().unwrap_or_default();
        let is_of = |n: &&Name| n.of == of || !names.iter().any(|m| m.name == name && m.of == of);
        let known = names.iter().filter(|n| n.name == name).filter(is_of).map(Name::title);
        let known: Vec<String> = known.take(3).collect();
        return match nearest(name, names) {
            _ if !known.is_empty() => format!("{message}; there is {}", known.join(", ")),
            Some(near) => format!("{message}; is it {near}?"),
            None => message,
        };
    }
    let property = message.strip_prefix("Unknown property '").and_then(|m| m.split_once('\''));
    if let Some((name, _)) = property
        && names.iter().any(|n| n.name == name)
    {
        return format!("{message}; it is a function: {name}()");
    }
    match message.strip_prefix("Variable not found: ") {
        Some(name) if names.iter().any(|n| n.of.is_empty() && n.name == name) => {
            format!("{message}; it is a function: {name}()")
        }
        _ => message.to_owned(),
    }
}

/// Returns the name that differs least from a text, if it differs little.
fn nearest<'a>(text: &str, names: &'a [Name]) -> Option<&'a str> {
    let most = (text.chars().count() / 4).clamp(1, 3);
    let far = |n: &&Name| strsim::damerau_levenshtein(text, &n.name);
    let near = names.iter().filter(|n| n.name.len() > 2).min_by_key(far)?;
    (far(&near) <= most).then_some(near.name.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn completed(before: &str) -> Vec<String> {
        let variables = [("groups", "AllocationGroupList"), ("early", "AllocationList")];
        let variables = variables.map(|(n, t)| (n.to_owned(), t.to_owned()));
        let (start, found) = complete(before, &crate::names(), &variables, &["growth".into()]);
        assert!(before.is_char_boundary(start));
        found
    }

    #[test]
    fn names_are_completed_by_the_type_before_them() {
        for (before, found) in [
            ("alloc", &["allocations()"][..]),
            ("gr", &["graph()", "groups", "growth("]),
            ("println(allocations()[0].dea", &["deallocated_at()", "deallocation_backtrace()"]),
            ("groups[0].group_b", &["group_by_backtrace()"]),
            ("groups.sort_by_l", &["sort_by_leaked_size()"]),
            ("early.only_leaked().only_larger(kb(5)).group_b", &["group_by_backtrace()"]),
            ("maps()[0].al", &["allocated_at()"]),
            ("for g in early\n  .group_by_backtrace()\n  .un", &["ungroup()"]),
            ("data().all", &["allocations()"]),
            ("let x = 5; early.only_le", &["only_leaked()", "only_leaked_or_deallocated_after("]),
            (
                "/* ( */ \"a(\" + early.only_chain_l",
                &[
                    "only_chain_leaked()",
                    "only_chain_length_at_least(",
                    "only_chain_length_at_most(",
                ],
            ),
            ("\"alloc", &[]),
            ("// alloc", &[]),
            ("12", &[]),
            ("", &[]),
        ] {
            assert_eq!(completed(before), found, "{before}");
        }
        assert!(completed("early.").contains(&"only_leaked()".to_owned()));
        assert!(!completed("groups.").contains(&"only_leaked()".to_owned()));
        // What is not known may be anything.
        assert!(completed("(early + early).").contains(&"only_leaked()".to_owned()));
    }

    #[test]
    fn errors_tell_the_name_that_was_meant() {
        for (message, text) in [
            ("Function not found: only_leakd (AllocationList)", "is it only_leaked?"),
            (
                "Function not found: only_larger (AllocationList, &str | ImmutableString | String)",
                "(AllocationList, String); there is AllocationList.only_larger(n: Integer)",
            ),
            ("Variable not found: exit", "it is a function: exit()"),
            (
                "Unknown property 'size' - a getter is not registered for type 'Allocation'",
                "it is a function: size()",
            ),
        ] {
            let told = explained(message, &crate::names());
            assert!(told.contains(text), "{told}");
        }
        for plain in ["Function not found: f (i64)", "Variable not found: x", "other"] {
            let told = explained(plain, &crate::names());
            assert!(!told.contains(" is it ") && !told.contains("there is"), "{told}");
        }
    }
}
