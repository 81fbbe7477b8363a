//! Rules that exclude stacks: lists of regular expressions, and suppressions in LeakSanitizer's format.

use crate::analysis::Rule;
use crate::symbols::Frame;
use regex::{RegexSet, RegexSetBuilder};

/// Limit on the compiled size of the set of expressions.
const SET_SIZE: usize = 16 << 20;

/// A set of rules. A rule excludes a stack if it matches the function, the source file or the module of one of its
/// frames.
#[derive(Clone, Debug, Default)]
pub struct Suppressions {
    rules: Vec<Rule>,
    patterns: Vec<String>,
    set: Option<RegexSet>,
}

/// Returns the lines that are neither empty nor comments, with their numbers.
fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let all = text.lines().enumerate().map(|(i, l)| (i + 1, l.trim()));
    all.filter(|(_, l)| !l.is_empty() && !l.starts_with('#'))
}

/// Converts a pattern of LeakSanitizer to a regular expression. The pattern matches a part of the text; `*` matches
/// anything, `^` in front the beginning and `$` the end.
fn of_template(pattern: &str) -> String {
    let (front, rest) = match pattern.strip_prefix('^') {
        Some(rest) => ("^", rest),
        None => ("", pattern),
    };
    // LeakSanitizer ignores everything behind `$`.
    let (rest, back) = match rest.split_once('$') {
        Some((rest, _)) => (rest, "$"),
        None => (rest, ""),
    };
    let parts: Vec<String> = rest.split('*').map(regex::escape).collect();
    format!("(?s){front}{}{back}", parts.join(".*"))
}

/// Returns the pattern of a line in LeakSanitizer's format.
fn template(line: &str) -> Result<&str, String> {
    match line.split_once(':') {
        Some(("leak", pattern)) if !pattern.is_empty() => Ok(pattern),
        Some(("leak", _)) => Err("the pattern is missing".into()),
        Some((kind, _)) => Err(format!("{kind:?} is no kind of suppression here; only leak is")),
        None => Err(format!("{line:?} is no suppression; give lines such as leak:pattern")),
    }
}

impl Suppressions {
    /// Adds a list of regular expressions, one per line; empty lines and those that begin with `#` are ignored.
    ///
    /// # Errors
    /// A message that says what is wrong with a line.
    pub fn add_expressions(&mut self, text: &str, from: &str) -> Result<(), String> {
        let mut patterns = Vec::new();
        for (n, line) in lines(text) {
            regex::Regex::new(line).map_err(|e| {
                let why = e.to_string();
                format!("{from}, line {n}: {}", why.lines().last().unwrap_or("no expression"))
            })?;
            patterns.push((line, line.to_owned()));
        }
        self.add(patterns, from)
    }

    /// Adds a list of suppressions in LeakSanitizer's format: lines such as `leak:pattern`.
    ///
    /// # Errors
    /// A message that says what is wrong with a line.
    pub fn add_templates(&mut self, text: &str, from: &str) -> Result<(), String> {
        let mut patterns = Vec::new();
        for (n, line) in lines(text) {
            let pattern = template(line).map_err(|why| format!("{from}, line {n}: {why}"))?;
            patterns.push((line, of_template(pattern)));
        }
        self.add(patterns, from)
    }

    fn add(&mut self, new: Vec<(&str, String)>, from: &str) -> Result<(), String> {
        for (text, pattern) in new {
            self.rules.push(Rule { text: text.to_owned(), from: from.to_owned() });
            self.patterns.push(pattern);
        }
        let set = RegexSetBuilder::new(&self.patterns).size_limit(SET_SIZE).build();
        self.set = Some(set.map_err(|_| format!("{from}: the expressions are too long"))?);
        Ok(())
    }

    /// Returns whether there are no rules.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Returns the rules in their order.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Returns the index of the first rule that matches a frame.
    pub(super) fn rule_of(&self, frame: &Frame) -> Option<u32> {
        self.matches([frame.function.as_deref(), frame.file.as_deref(), frame.module.as_deref()])
    }

    /// Returns the index of the first rule that matches one of these texts of a frame.
    pub(super) fn matches(&self, texts: [Option<&str>; 3]) -> Option<u32> {
        let set = self.set.as_ref()?;
        let first = |text: &str| set.matches(text).iter().next();
        texts.into_iter().flatten().filter_map(first).min().map(|i| i as u32)
    }
}

/// Returns whether a text is a list in LeakSanitizer's format with at least one rule.
pub(crate) fn is_list(text: &str) -> bool {
    let mut rules = 0;
    let good = lines(text).all(|(_, l)| {
        rules += 1;
        template(l).is_ok_and(|p| !p.contains(['%', ' ']))
    });
    good && rules > 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(s: &Suppressions, function: &str) -> Option<u32> {
        s.rule_of(&Frame { function: Some(function.into()), ..Frame::default() })
    }

    #[test]
    fn templates_match_as_leak_sanitizer_documents() {
        for (pattern, text, matched) in [
            ("foo", "a_foo_b", true),
            ("foo", "fo", false),
            ("^foo", "foobar", true),
            ("^foo", "a_foo", false),
            ("foo$", "a_foo", true),
            ("foo$", "foobar", false),
            ("^foo$", "foo", true),
            ("a*c", "xabbbcx", true),
            ("a*c", "xcbax", false),
            ("^a*c$", "abc", true),
            ("^a*c$", "abcd", false),
            ("*", "anything", true),
            ("a.b", "axb", false),
            ("a(b", "a(b)", true),
            ("ns::*::f", "ns::inner::f(int)", true),
        ] {
            let mut s = Suppressions::default();
            s.add_templates(&format!("leak:{pattern}"), "list").expect("a list");
            assert_eq!(matches(&s, text).is_some(), matched, "{pattern} in {text}");
        }
    }

    #[test]
    fn lists_are_read_line_by_line() {
        let mut s = Suppressions::default();
        s.add_templates("# comment\n\n  leak:one \nleak:libtwo.so\r\n", "a.supp").expect("a list");
        s.add_expressions("^three(_x)?$\n#four\n", "b.txt").expect("a list");
        assert_eq!(s.rules().len(), 3);
        assert_eq!(matches(&s, "no_one"), Some(0));
        assert_eq!((matches(&s, "three_x"), matches(&s, "threefold")), (Some(2), None));
        assert_eq!(matches(&s, "#four"), None);
        let frame = Frame { module: Some("/lib/libtwo.so.1".into()), ..Frame::default() };
        assert_eq!(s.rule_of(&frame), Some(1));
        let frame = Frame { file: Some("src/one.c".into()), ..Frame::default() };
        assert_eq!(s.rule_of(&frame), Some(0));
    }

    #[test]
    fn nonsense_is_named_with_its_line() {
        let mut s = Suppressions::default();
        let e = s.add_templates("leak:a\nrace:b\n", "x.supp").expect_err("another kind");
        assert!(e.starts_with("x.supp, line 2: ") && e.contains("race"), "{e}");
        let e = s.add_templates("just words", "x.supp").expect_err("no suppression");
        assert!(e.contains("leak:pattern"), "{e}");
        let e = s.add_expressions("a\n(\n", "y.txt").expect_err("no expression");
        assert!(e.starts_with("y.txt, line 2: ") && !e.contains('\n'), "{e}");
        assert!(s.is_empty());
        assert!(is_list("leak:a\n#x\nleak:b*c\n") && !is_list("#x\n"));
        assert!(!is_list("leak: %d bytes") && !is_list("leak:\nx"));
    }
}
