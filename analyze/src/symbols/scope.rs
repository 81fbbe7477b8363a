//! Demangles members of types in expressions, as gcc up to version 12 mangles them: `sr`, a type, and a name. The
//! standard has another form for types that do not begin with a template parameter, and demanglers that follow it
//! refuse `XsrSt..`.
//!
//! A cast of an expression to a type (`cv`, type, expression) has the same parts in the same order, and its type counts
//! among the substitutions as gcc's does. So members are replaced by casts before the name is demangled, and the casts
//! by members afterwards.

/// Greatest number of replacements: further casts stay.
const MOST: usize = 256;

/// Returns the mangled name with casts in place of members: of all, and only of those whose type begins with a name or
/// `std`.
pub(super) fn with_casts(name: &str) -> Vec<String> {
    let places = places(name.as_bytes());
    let with = |all: bool| {
        let mut bytes = name.as_bytes().to_vec();
        for &(at, is_named) in &places {
            if all || is_named {
                bytes[at..at + 2].copy_from_slice(b"cv");
            }
        }
        String::from_utf8(bytes).unwrap_or_default()
    };
    if places.is_empty() { Vec::new() } else { vec![with(true), with(false)] }
}

/// Returns the positions of `sr` outside of identifiers, and whether the type that follows begins with a name.
fn places(name: &[u8]) -> Vec<(usize, bool)> {
    let digits = |at: usize| {
        let rest = name.get(at..).unwrap_or_default();
        rest.iter().take_while(|c| c.is_ascii_digit()).count()
    };
    let mut places = Vec::new();
    let mut at = 2;
    while let Some(rest) = name.get(at..).filter(|r| !r.is_empty()) {
        at += match rest {
            [b'S' | b'T', ..] if numbered(rest).is_some() => numbered(rest).unwrap_or(1),
            // A literal, or the length of an array, not the length of a name.
            [b'L', b'a'..=b'z', b'n', ..] => 3 + digits(at + 3),
            [b'L', b'a'..=b'z', ..] => 2 + digits(at + 2),
            [b'A', ..] => 1 + digits(at + 1),
            [b'0'..=b'9', ..] => {
                let n = digits(at);
                let text = std::str::from_utf8(&rest[..n]).unwrap_or("");
                n.saturating_add(text.parse().unwrap_or(0))
            }
            [b's', b'r', first, ..] => {
                places.push((at, first.is_ascii_digit() || rest[2..].starts_with(b"St")));
                2
            }
            _ => 1,
        };
    }
    places
}

/// Returns the length of a numbered substitution or template parameter: `S12_`.
fn numbered(text: &[u8]) -> Option<usize> {
    let n = text[1..].iter().take_while(|c| c.is_ascii_digit() || c.is_ascii_uppercase()).count();
    (text.get(n + 1) == Some(&b'_')).then_some(n + 2)
}

/// Replaces `(T)(name)` by `T::name`.
pub(super) fn members(text: &str) -> String {
    let mut text = text.to_owned();
    for _ in 0..MOST {
        let Some((open, close, end)) = member(&text) else { break };
        text = format!(
            "{}{}::{}{}",
            &text[..open],
            &text[open + 1..close],
            &text[close + 2..end],
            &text[end + 1..]
        );
    }
    text
}

/// Returns the first cast in a name: start and end of its type, and end of its operand.
fn member(text: &str) -> Option<(usize, usize, usize)> {
    text.match_indices(")(").find_map(|(close, _)| {
        let operand = &text[close + 2..];
        let name = operand
            .find(|c: char| !c.is_alphanumeric() && c != '_')
            .filter(|n| *n > 0 && !operand.starts_with(|c: char| c.is_ascii_digit()))?;
        let rest = &operand[name..];
        let end = match rest.strip_prefix('<') {
            Some(args) => name + 1 + super::demangle::closing(args, '<', '>')? + 1,
            None => name,
        };
        operand[end..].starts_with(')').then_some(())?;
        let open = opening(&text[..close])?;
        let of = &text[open + 1..close];
        let is_type = of.starts_with(|c: char| c.is_alphabetic() || c == '_' || c == ':')
            && !of.ends_with(['*', '&']);
        is_type.then_some((open, close, close + 2 + end))
    })
}

/// Returns the position of the bracket that the text leaves open.
fn opening(text: &str) -> Option<usize> {
    let mut depth = 1usize;
    for (i, c) in text.char_indices().rev() {
        match c {
            ')' => depth += 1,
            '(' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(i);
        }
    }
    None
}
