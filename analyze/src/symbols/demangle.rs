//! Demangles and shortens names.

use super::scope;
use crate::style::printable;
use std::fmt::{self, Write};

/// Limit on the length of names, before and after demangling: names beyond it stay as they are.
const LONGEST: usize = 32 << 10;

/// A string of limited length: some mangled names double with every few characters.
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

/// Demangles the name of a C++ or Rust function; returns any other name as it is.
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
    if let Some(plain) = cxx(name) {
        return plain;
    }
    let older = scope::with_casts(name);
    let plain = older.iter().find_map(|n| cxx(n)).map(|n| scope::members(&n));
    plain.unwrap_or_else(|| name.to_owned())
}

/// Returns the name of a C++ class as people write it, of one that the Itanium C++ ABI mangles.
#[must_use]
pub fn class_name(mangled: &str) -> String {
    let text = demangle(&format!("_ZTS{mangled}"));
    printable(text.strip_prefix("typeinfo name for ").unwrap_or(mangled))
}

/// Demangles the name of a C++ function.
fn cxx(name: &str) -> Option<String> {
    // Some compilers append the suffix of a clone (`.cold`, `.part.0`) outside of the mangled name.
    let symbol = cpp_demangle::Symbol::new(name).ok()?;
    let mut out = Bounded::default();
    symbol.structured_demangle(&mut out, &Default::default()).is_ok().then_some(out.0)
}

/// Returns a name without template arguments and parameters: `std::vector<>::push_back`. The type in front of a path of
/// Rust stays: `<Vec<> as Debug>::fmt`.
pub(crate) fn shorten(name: &str) -> String {
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
        // Operators with these characters are part of the name.
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
            // `(anonymous namespace)::f` and lambdas are names: keep what follows the parenthesis.
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

/// Returns the position of the bracket that closes one opened before the text.
pub(super) fn closing(text: &str, open: char, close: char) -> Option<usize> {
    let mut depth = 1usize;
    let mut before = ' ';
    for (i, c) in text.char_indices() {
        // The arrow of a function type closes nothing.
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
    fn members_in_expressions_are_demangled_as_older_compilers_mangle_them() {
        let swap = "_ZSt4swapIP4MineENSt9enable_ifIXsrSt6__and_IJSt6__not_ISt15__is_tuple_likeIT_EESt21is_move_\
                    constructibleIS6_ESt18is_move_assignableIS6_EEE5valueEvE4typeERS6_SG_";
        let shared = "_ZSt11make_sharedI4MineJEESt10shared_ptrINSt9enable_ifIXntsrSt8is_arrayIT_E5valueES4_E4type\
                      EEDpOT0_";
        let own = "_Z10multiple_pILj1EljEN10if_nonpolyIT1_bXsr15poly_int_traitsIS1_E7is_polyEE4typeERK12poly_int_\
                   podIXT_ET0_ES1_";
        assert_eq!(
            demangle(swap),
            "std::enable_if<std::__and_<std::__not_<std::__is_tuple_like<Mine*> >, \
             std::is_move_constructible<Mine*>, std::is_move_assignable<Mine*> >::value, void>::type \
             std::swap<Mine*>(Mine*&, Mine*&)"
        );
        let shared = demangle(shared);
        assert!(shared.contains("std::is_array<Mine>::value"), "{shared}");
        assert!(shared.contains("std::make_shared<Mine"), "{shared}");
        assert_eq!(
            demangle(own),
            "if_nonpoly<unsigned int, bool, poly_int_traits<unsigned int>::is_poly>::type \
             multiple_p<(unsigned int)1, long, unsigned int>(poly_int_pod<(unsigned int)1, long> const&, \
             unsigned int)"
        );
        // An identifier may contain the same letters, and a name that is not mangled stays.
        for name in
            ["_ZN6srcsrT4user5srStaEX", "_Zsr", "_ZsrSt9999999999999999999999x", "_ZSt4swapXsr"]
        {
            assert_eq!(demangle(name), name);
        }
    }

    /// Reads all names that this machine's libraries export, except those of vector variants, which are not valid
    /// mangled names.
    #[test]
    fn no_name_of_this_machines_libraries_stays_mangled() {
        let mut names = std::collections::BTreeSet::new();
        let folders =
            ["/usr/lib", "/lib"].map(|d| format!("{d}/{}-linux-gnu", std::env::consts::ARCH));
        for folder in folders {
            for file in std::fs::read_dir(folder).into_iter().flatten().flatten() {
                let name = file.file_name().to_string_lossy().into_owned();
                let small = file.path().metadata().is_ok_and(|m| m.is_file() && m.len() < 64 << 20);
                if !name.contains(".so") || !small {
                    continue;
                }
                let Ok(bytes) = std::fs::read(file.path()) else { continue };
                let Ok(elf) = goblin::elf::Elf::parse(&bytes) else { continue };
                let of = elf.dynsyms.iter().filter_map(|s| elf.dynstrtab.get_at(s.st_name));
                names.extend(of.filter(|n| n.starts_with("_Z")).map(str::to_owned));
            }
        }
        let vector = |n: &str| n.starts_with("_ZGV") && n.contains("v_") || n.contains("vv");
        let left: Vec<_> = names.iter().filter(|n| demangle(n) == **n && !vector(n)).collect();
        println!("{} names", names.len());
        assert!(left.is_empty(), "{left:#?}");
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
