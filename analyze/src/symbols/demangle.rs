//! Names as their authors wrote them.

use std::fmt::{self, Write};

/// Longer names are left as they are, and so are those that get longer.
const LONGEST: usize = 32 << 10;

/// A text that does not grow without end: some mangled names double with every few characters.
#[derive(Default)]
struct Bounded(String);

impl Write for Bounded {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        if self.0.len() + s.len() > LONGEST {
            return Err(fmt::Error);
        }
        self.0.push_str(s);
        Ok(())
    }
}

/// The name of a C++ or Rust function, demangled; any other name as it is.
pub fn demangle(name: &str) -> String {
    if name.len() > LONGEST || !name.starts_with("_Z") && !name.starts_with("_R") {
        return name.to_owned();
    }
    if let Ok(rust) = rustc_demangle::try_demangle(name) {
        let mut out = Bounded::default();
        if write!(out, "{rust:#}").is_ok() {
            return out.0;
        }
    }
    // The suffix of a clone (`.cold`, `.part.0`) is no part of the mangled name to all compilers.
    let mut out = Bounded::default();
    if let Ok(symbol) = cpp_demangle::Symbol::new(name)
        && symbol.structured_demangle(&mut out, &Default::default()).is_ok()
    {
        return out.0;
    }
    name.to_owned()
}

/// A name without template arguments and parameters: `std::vector<>::push_back`; of Rust's, those
/// in front of a path stay: `<Vec<> as Debug>::fmt`.
pub(super) fn shorten(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    let mut rest = name;
    // A qualified path of Rust begins with its type.
    if let Some(inner) = rest.strip_prefix('<')
        && let Some(end) = closing(inner, '<', '>')
    {
        let parts: Vec<String> = inner[..end].split(" as ").map(shorten).collect();
        out = format!("<{}>", parts.join(" as "));
        rest = &inner[end + 1..];
    }
    while let Some(c) = rest.chars().next() {
        let after = &rest[c.len_utf8()..];
        // The operators with these characters are names.
        if out.ends_with("operator") && "<>()-=".contains(c) {
            let n = rest.find(|c| !"<>()-=".contains(c)).unwrap_or(rest.len());
            let n = if c == '(' { 2.min(n) } else { rest[..n].find('(').unwrap_or(n) };
            out.push_str(&rest[..n]);
            rest = &rest[n..];
            continue;
        }
        match c {
            '<' => match closing(after, '<', '>') {
                Some(end) => {
                    out.push_str("<>");
                    rest = &after[end + 1..];
                }
                None => break,
            },
            // `(anonymous namespace)::f` and lambdas are names; what follows them is not lost.
            '(' if after.starts_with("anonymous namespace)") => {
                out.push('(');
                rest = after;
            }
            '(' => match closing(after, '(', ')') {
                Some(end) => rest = &after[end + 1..],
                None => break,
            },
            c => {
                out.push(c);
                rest = after;
            }
        }
    }
    let out = out.strip_suffix(" const").unwrap_or(&out).replace("::<>", "<>");
    if out.is_empty() { name.to_owned() } else { out }
}

/// Where the bracket ends that is open already.
fn closing(text: &str, open: char, close: char) -> Option<usize> {
    let mut depth = 1usize;
    let mut before = ' ';
    for (i, c) in text.char_indices() {
        // The arrow of a function's type closes nothing.
        if c == close && before != '-' {
            depth -= 1;
            if depth == 0 {
                return Some(i);
            }
        } else if c == open {
            depth += 1;
        }
        before = c;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_demangled() {
        let cases = [
            ("main", "main"),
            ("_start", "_start"),
            ("_ZN4core3fmt9Formatter3pad17h0123456789abcdefE", "core::fmt::Formatter::pad"),
            (
                "_ZNSt6vectorIiSaIiEE9push_backERKi",
                "std::vector<int, std::allocator<int> >::push_back(int const&)",
            ),
            ("_RNvC6_123foo3bar", "123foo::bar"),
            ("_Z", "_Z"),
            ("_Znwm", "operator new(unsigned long)"),
        ];
        for (mangled, plain) in cases {
            assert_eq!(demangle(mangled), plain);
        }
    }

    #[test]
    fn names_are_shortened() {
        for (name, short) in [
            ("main", "main"),
            (
                "std::vector<int, std::allocator<int> >::push_back(int const&)",
                "std::vector<>::push_back",
            ),
            ("ns::f(std::function<void (int)>, int) const", "ns::f"),
            ("(anonymous namespace)::g(int)", "(anonymous namespace)::g"),
            ("A::operator()(int) const", "A::operator()"),
            ("operator<<(std::ostream&, B const&)", "operator<<"),
            ("operator new(unsigned long)", "operator new"),
            ("f()::{lambda(int)#1}::operator()(int)", "f::{lambda#1}::operator()"),
            ("alloc::vec::Vec<T>::push", "alloc::vec::Vec<>::push"),
            ("core::iter::map::<u8, fn(u8) -> u8>", "core::iter::map<>"),
            (
                "<alloc::vec::Vec<u8> as core::fmt::Debug>::fmt",
                "<alloc::vec::Vec<> as core::fmt::Debug>::fmt",
            ),
            ("broken<", "broken"),
            ("(", "("),
            ("", ""),
        ] {
            assert_eq!(shorten(name), short, "{name}");
        }
    }

    #[test]
    fn endless_names_stay_as_they_are() {
        let bomb = format!("_Z1fI{}iE", "S_".repeat(200));
        demangle(&bomb);
        let mut doubling = String::from("_Z1f1A");
        for i in 0..60u32 {
            let s = char::from_digit(i % 36, 36).unwrap_or('0').to_ascii_uppercase();
            doubling.push_str(&format!("1BIS{s}_S{s}_E"));
        }
        assert!(demangle(&doubling).len() <= LONGEST);
        demangle(&"_Z".repeat(100_000));
    }
}
