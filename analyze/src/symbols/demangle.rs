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
