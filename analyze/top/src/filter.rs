//! The filter that is typed: a regular expression, or a plain text while it is none.

use prof_analyze::live::{Book, StackFrames};
use regex::{Regex, RegexBuilder};

/// A filter on names.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    text: String,
    regex: Option<Regex>,
    /// Whether a frame's names match, by its id, as far as frames were looked at.
    frames: Vec<bool>,
}

impl Filter {
    /// Creates a filter. Without capital letters in it, case does not matter.
    pub fn new(text: &str) -> Self {
        let lower = !text.contains(char::is_uppercase);
        let build = |text: &str| RegexBuilder::new(text).case_insensitive(lower).build().ok();
        let regex = build(text).or_else(|| build(&regex::escape(text)));
        Self { text: text.to_owned(), regex, frames: Vec::new() }
    }

    /// Returns the text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns whether it lets everything pass.
    pub fn is_all(&self) -> bool {
        self.text.is_empty()
    }

    /// Returns whether the text is taken as it is, as it is no regular expression.
    pub fn is_plain(&self) -> bool {
        Regex::new(&self.text).is_err()
    }

    /// Returns whether a name matches.
    pub fn has(&self, name: &str) -> bool {
        self.is_all() || self.regex.as_ref().is_none_or(|r| r.is_match(name))
    }

    /// Looks at the frames that are new in the book.
    pub fn learn(&mut self, book: &Book) {
        if self.is_all() {
            return;
        }
        let all = book.frames();
        for (id, frame) in all.iter().enumerate().skip(self.frames.len()) {
            let file = frame.file.as_deref().unwrap_or("");
            let id = id as u32;
            let names = [book.text(book.function(id)), book.text(book.module(id)), file];
            let matches = names.iter().any(|n| self.has(n));
            self.frames.push(matches);
        }
    }

    /// Returns whether a function, file or module of a stack matches. [`Self::learn`] has seen its frames.
    pub fn has_stack(&self, stack: &StackFrames) -> bool {
        let has = |id: &u32| self.frames.get(*id as usize).copied().unwrap_or(false);
        self.is_all() || stack.frames.iter().any(has)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_that_is_no_expression_is_looked_for_as_it_is() {
        assert!(Filter::new("").has("anything") && Filter::new("").is_all());
        let f = Filter::new("dict.*add");
        assert!(f.has("dictObjAdd") && !f.has("addDict") && !f.is_plain());
        assert!(!Filter::new("Dict").has("dict") && Filter::new("Dict").has("aDict"));
        let f = Filter::new("operator(");
        assert!(f.is_plain() && f.has("x::Operator()(int)") && !f.has("operator"));
    }
}
