//! Stacks that nobody wants to see: lists of regular expressions, and suppressions as
//! LeakSanitizer has them.

use crate::symbols::Frame;
use regex::{RegexSet, RegexSetBuilder};

/// Larger sets of expressions are refused.
const SET_SIZE: usize = 16 << 20;

/// A line of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// As it was written.
    pub text: String,
    /// Which list it is from.
    pub from: String,
}

/// Rules, any of which leaves a stack out if it matches the function, the source file or the module
/// of one of its frames.
#[derive(Clone, Debug, Default)]
pub struct Suppressions {
    rules: Vec<Rule>,
    patterns: Vec<String>,
    set: Option<RegexSet>,
}

/// Lines that say something, with their numbers.
fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let all = text.lines().enumerate().map(|(i, l)| (i + 1, l.trim()));
    all.filter(|(_, l)| !l.is_empty() && !l.starts_with('#'))
}

/// The regular expression of a pattern of LeakSanitizer: a part of the text, where `*` stands for
/// anything, `^` in front for its beginning and `$` for its end.
fn of_template(pattern: &str) -> String {
    let (front, rest) = match pattern.strip_prefix('^') {
        Some(rest) => ("^", rest),
        None => ("", pattern),
    };
    // Nothing behind `$` counts.
    let (rest, back) = match rest.split_once('$') {
        Some((rest, _)) => (rest, "$"),
        None => (rest, ""),
    };
    let parts: Vec<String> = rest.split('*').map(regex::escape).collect();
    format!("(?s){front}{}{back}", parts.join(".*"))
}

/// The pattern of a line of LeakSanitizer's.
fn template(line: &str) -> Result<&str, String> {
    match line.split_once(':') {
        Some(("leak", pattern)) if !pattern.is_empty() => Ok(pattern),
        Some(("leak", _)) => Err("the pattern is missing".into()),
        Some((kind, _)) => Err(format!("{kind:?} is no kind of suppression here; only leak is")),
        None => Err(format!("{line:?} is no suppression; give lines such as leak:pattern")),
    }
}

impl Suppressions {
    /// Adds a list of regular expressions, one a line; empty lines and those that begin with `#` say
    /// nothing.
    ///
    /// # Errors
    /// What is wrong with a line.
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

    /// Adds a list of suppressions as LeakSanitizer has them: lines such as `leak:pattern`.
    ///
    /// # Errors
    /// What is wrong with a line.
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

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// The rules, in their order.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// The first rule that matches a frame.
    pub(super) fn rule_of(&self, frame: &Frame) -> Option<u32> {
        let set = self.set.as_ref()?;
        let texts = [frame.function.as_deref(), frame.file.as_deref(), frame.module.as_deref()];
        let first = |text: &str| set.matches(text).iter().next();
        texts.into_iter().flatten().filter_map(first).min().map(|i| i as u32)
    }
}

/// Whether a text is a list of LeakSanitizer's, and has a rule.
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
