//! Completes names at a prompt, by the type of what stands before them, and finds the name that was meant.

use crate::registry::Name;
use crate::types::{Place, Type, Variable};

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Returns a name with what is typed behind it.
fn call(name: &Name) -> String {
    let end = if name.signature.starts_with("()") { "()" } else { "(" };
    format!("{}{end}", name.name)
}

/// Returns where the last word of a text begins, and what it may become. `variables`: those of the script so far;
/// `functions`: the names of its functions.
pub(crate) fn complete(
    before: &str,
    names: &[Name],
    variables: &[Variable],
    functions: &[String],
) -> (usize, Vec<String>) {
    let word = before.len() - before.trim_end_matches(is_word).len();
    let (start, word) = (before.len() - word, &before[before.len() - word..]);
    let is_number = word.starts_with(|c: char| c.is_ascii_digit());
    let Some(place) = Place::behind(before, names, variables).filter(|_| !is_number) else {
        return (start, Vec::new());
    };
    let is_method = place.is_behind_dot();
    if word.is_empty() && !is_method {
        return (start, Vec::new());
    }
    let owner = place.owner(!word.is_empty());
    let fits = |n: &&Name| match (is_method, &owner) {
        (false, _) => n.of.is_empty(),
        (true, Some(of)) => n.of == of.registered(),
        (true, None) => !n.of.is_empty(),
    };
    let registered = names.iter().filter(fits).filter(|n| n.name.starts_with(char::is_alphabetic));
    let mut found: Vec<String> = registered.map(call).collect();
    match (is_method, owner) {
        (true, Some(Type { of, fields })) if of == "Object" => found.extend(fields),
        (true, _) => {}
        (false, _) => {
            found.extend(place.variables.into_iter().map(|v| v.0));
            found.extend(functions.iter().map(|f| format!("{f}(")));
        }
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
        let mut variables = variables.map(|(n, t)| (n.to_owned(), Some(Type::new(t)))).to_vec();
        let fields = vec!["retained".to_owned(), "retained_blocks".into(), "name".into()];
        variables.push(("roots".into(), Some(Type { of: "[Object]".into(), fields })));
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
            ("for s in scans() { s.retained", &["retained_by("]),
            ("for s in scans() { s.save_as_h", &["save_as_html("]),
            ("let second = scan(2); for s in scans() { sec", &["second"]),
            ("for r in roots { r.ret", &["retained", "retained_blocks"]),
            ("roots[0].n", &["name"]),
            ("roots.filter(|r| r.n", &["name"]),
            ("roots.save_as_c", &["save_as_csv("]),
            ("roots.ret", &[]),
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
