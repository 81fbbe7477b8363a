//! The types of names in a script, read from the code before a place, as far as that tells.

use crate::registry::Name;

/// A type, as signatures write it, and the fields of its objects that are known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Type {
    /// `Scan`, `[Object]`.
    pub of: String,
    /// Fields of the object, or of those in the array.
    pub fields: Vec<String>,
}

impl Type {
    pub(crate) fn new(of: &str) -> Self {
        Self { of: of.to_owned(), fields: Vec::new() }
    }

    /// Returns the type of what an index or a loop gets.
    fn element(self) -> Option<Self> {
        let of = match self.of.as_str() {
            "AllocationList" => "Allocation",
            "AllocationGroupList" => "AllocationList",
            "MapList" => "Map",
            of => of.strip_prefix('[')?.strip_suffix(']')?,
        };
        Some(Self { of: of.to_owned(), fields: self.fields })
    }

    /// Returns the name that the type's methods are registered by.
    pub(crate) fn registered(&self) -> &str {
        if self.of.starts_with('[') { "Array" } else { &self.of }
    }

    /// Returns the result of a method of the language's own, of an array.
    fn of_array(self, method: &str) -> Option<Self> {
        match method {
            "filter" | "extract" | "drain" | "retain" | "split" => Some(self),
            "find" | "get" | "pop" | "shift" | "remove" => self.element(),
            _ => None,
        }
    }
}

/// A variable with its type, if that is known.
pub(crate) type Variable = (String, Option<Type>);

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

/// A statement that makes variables, whose value or block is still to come.
#[derive(Debug, PartialEq, Eq)]
enum Making {
    Let,
    For,
    Function,
}

/// The code within a bracket, up to where it has been read.
#[derive(Debug, Default)]
struct Within {
    /// The chain of calls at the end, its last word included.
    chain: Vec<Part>,
    /// The chain ends in a dot, or a dot stands before its last word.
    dot: bool,
    making: Option<Making>,
    /// The names that are made.
    made: Vec<String>,
    /// The value of what is made has begun.
    value: bool,
    /// Number of variables when the bracket was opened: others are gone when it is closed.
    outside: usize,
}

impl Within {
    fn begin(&mut self, making: Making) {
        *self = Self { making: Some(making), outside: self.outside, ..Self::default() };
    }

    fn clear(&mut self) {
        (self.chain, self.dot) = (Vec::new(), false);
    }

    /// Returns whether a name is that of a variable to be made.
    fn takes_names(&self) -> bool {
        self.making.is_some() && !self.value
    }
}

/// The names and variables that the code knows at one place.
pub(crate) struct Place<'a> {
    names: &'a [Name],
    /// The variables that the code makes, those in scope, the innermost last; before them those of the script so far.
    pub variables: Vec<Variable>,
    now: Within,
    outer: Vec<Within>,
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

impl<'a> Place<'a> {
    /// Reads code up to its end, of a script that has these variables; `None`: the end is in a text or in a comment.
    pub(crate) fn behind(code: &str, names: &'a [Name], variables: &[Variable]) -> Option<Self> {
        let now = Within { outside: variables.len(), ..Within::default() };
        let mut place = Self { names, variables: variables.to_vec(), now, outer: Vec::new() };
        let mut rest = code;
        while let Some(c) = rest.chars().next() {
            if let Some(behind) = skipped(rest) {
                if !rest.starts_with('/') {
                    place.now.clear();
                    place.now.chain.push(Part::Other);
                }
                rest = behind?;
            } else if is_word(c) {
                let (word, behind) =
                    rest.split_at(rest.find(|c| !is_word(c)).unwrap_or(rest.len()));
                place.word(word, behind.is_empty());
                rest = behind;
            } else if let Some(behind) = place.operator(rest) {
                rest = behind;
            } else {
                rest = &rest[c.len_utf8()..];
                let parameters = if c == '|' { place.parameters(rest) } else { None };
                match parameters {
                    Some(behind) => rest = behind,
                    None => place.symbol(c),
                }
            }
        }
        Some(place)
    }

    /// Returns whether a dot stands before the end, or before the word there.
    pub(crate) fn is_behind_dot(&self) -> bool {
        self.now.dot
    }

    /// Returns the type of what stands before the last dot; `has_word`: a word stands behind it.
    pub(crate) fn owner(&self, has_word: bool) -> Option<Type> {
        let parts = self.now.chain.len() - usize::from(has_word && !self.now.chain.is_empty());
        self.type_of(&self.now.chain[..parts])
    }

    fn word(&mut self, word: &str, is_last: bool) {
        let making = match word {
            _ if self.now.dot => None,
            "let" | "const" => Some(Making::Let),
            "for" => Some(Making::For),
            "fn" => Some(Making::Function),
            "in" if self.now.making == Some(Making::For) => {
                (self.now.value, self.now.chain) = (true, Vec::new());
                return;
            }
            _ => None,
        };
        if let Some(making) = making {
            return self.now.begin(making);
        }
        if self.now.takes_names() && !is_last {
            return self.now.made.push(word.to_owned());
        }
        if !self.now.dot {
            self.now.chain.clear();
        }
        let is_number = word.starts_with(|c: char| c.is_ascii_digit());
        let part = Part::Name(word.to_owned(), false);
        self.now.chain.push(if is_number { Part::Other } else { part });
        // The dot belongs to the word for as long as nothing follows.
        self.now.dot &= is_last;
    }

    /// Reads an operator of two characters that are no symbols on their own; returns the code behind it.
    fn operator<'b>(&mut self, rest: &'b str) -> Option<&'b str> {
        if let Some(behind) = rest.strip_prefix("?.") {
            self.now.dot = true;
            return Some(behind);
        }
        if rest.starts_with("?[") {
            return Some(&rest[1..]);
        }
        let behind = rest.strip_prefix("..").or_else(|| {
            // Without a value before it, it is a closure without parameters.
            rest.strip_prefix("||").filter(|_| !self.now.chain.is_empty())
        })?;
        self.now.clear();
        Some(behind)
    }

    fn symbol(&mut self, c: char) {
        match c {
            // The names of `for (x, i) in` and of a function's parameters.
            '(' | ')' | ',' if self.now.takes_names() => {}
            '.' => self.now.dot = true,
            '(' | '[' => {
                match (c, self.now.chain.last_mut()) {
                    ('(', Some(Part::Name(_, called))) if !*called => *called = true,
                    ('[', Some(_)) => self.now.chain.push(Part::Index),
                    _ => self.now.chain = vec![Part::Other],
                }
                self.now.dot = false;
                self.open();
            }
            '{' => {
                let made = std::mem::take(&mut self.now.made);
                let making = self.now.making.take();
                let element = match making {
                    Some(Making::For) => self.type_of(&self.now.chain).and_then(Type::element),
                    _ => None,
                };
                self.now.clear();
                match making {
                    Some(Making::Let) => {
                        // A block or an object is a value whose type is not known.
                        (self.now.making, self.now.made) = (Some(Making::Let), made);
                        self.now.chain.push(Part::Other);
                        self.open();
                    }
                    _ => {
                        self.open();
                        // Of `for (x, i) in`, the first is the element, and of a function's names the first is its own.
                        let mut types = Some(element).into_iter();
                        let skip = usize::from(making == Some(Making::Function));
                        let own = made.into_iter().skip(skip);
                        self.variables.extend(own.map(|name| (name, types.next().flatten())));
                    }
                }
            }
            ')' | ']' | '}' => {
                self.variables.truncate(self.now.outside);
                self.now = self.outer.pop().unwrap_or_default();
                if c == '}' && self.now.making.is_none() {
                    self.now.clear();
                }
            }
            ';' => {
                let made = std::mem::take(&mut self.now.made);
                if self.now.making == Some(Making::Let) {
                    let of = self.type_of(&self.now.chain);
                    self.variables.extend(made.into_iter().map(|name| (name, of.clone())));
                }
                self.now = Within { outside: self.now.outside, ..Within::default() };
            }
            c if c.is_whitespace() => {}
            c => {
                self.now.value |= c == '=' && self.now.making == Some(Making::Let);
                self.now.clear();
            }
        }
    }

    fn open(&mut self) {
        let inner = Within { outside: self.variables.len(), ..Within::default() };
        self.outer.push(std::mem::replace(&mut self.now, inner));
    }

    /// Reads the parameters of a closure, if one begins behind a line: `|x, i|`. Returns the code behind them.
    fn parameters<'b>(&mut self, rest: &'b str) -> Option<&'b str> {
        if !self.now.chain.is_empty() {
            return None;
        }
        let (inner, behind) = rest.split_once('|')?;
        let of = |n: &str| n.chars().all(is_word);
        let all: Vec<&str> = inner.split(',').map(str::trim).collect();
        if !all.iter().all(|n| of(n)) {
            return None;
        }
        // The function that takes the closure is a method of what the closure gets.
        let taker = self.outer.last().map(|o| &o.chain[..]).unwrap_or_default();
        let mut element = match taker {
            [of @ .., Part::Name(_, true)] => self.type_of(of).and_then(Type::element),
            _ => None,
        };
        self.variables.extend(all.into_iter().map(|n| (n.to_owned(), element.take())));
        Some(behind)
    }

    fn type_of(&self, chain: &[Part]) -> Option<Type> {
        let mut of: Option<Type> = None;
        for (i, part) in chain.iter().enumerate() {
            of = match part {
                Part::Name(name, true) => {
                    let owner = if i == 0 { None } else { Some(of?) };
                    let registered = owner.as_ref().map_or("", Type::registered);
                    match self.names.iter().find(|n| n.of == registered && n.name == *name) {
                        Some(name) => result(name),
                        None => owner.filter(|o| o.registered() == "Array")?.of_array(name),
                    }
                }
                Part::Name(name, false) if i == 0 => {
                    self.variables.iter().rfind(|v| v.0 == *name)?.1.clone()
                }
                Part::Index => of?.element(),
                _ => None,
            };
        }
        of
    }
}

/// Returns the type that a function returns, if it is one.
fn result(name: &Name) -> Option<Type> {
    let (_, result) = name.signature.split_once("->")?;
    Some(result.trim()).filter(|r| !r.contains('|')).map(Type::new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn type_at(code: &str) -> String {
        let names = crate::names();
        let groups = ("groups".to_owned(), Some(Type::new("AllocationGroupList")));
        let place = Place::behind(code, &names, &[groups]).expect("code");
        place.owner(false).map_or("?".into(), |t| t.of)
    }

    #[test]
    fn variables_have_the_type_of_what_they_are_made_of() {
        for (code, of) in [
            ("for s in scans() { s.", "Scan"),
            ("for s in data().scans() {\n    // of\n    println(s.", "Scan"),
            ("for (s, i) in scans() { s.", "Scan"),
            ("for (s, i) in scans() { i.", "?"),
            ("for g in groups { for a in g { a.", "Allocation"),
            ("for g in groups { for a in g { } g.", "AllocationList"),
            ("let s = scan(\"a;b\"); s.", "Scan"),
            ("let s = scan(1).since(scan(2)); s.", "[Object]"),
            ("let all = [scan(1)]; all.", "?"),
            ("for r in scan(1).roots() { r.", "Object"),
            ("scan(1).roots().filter(|r| r.", "Object"),
            ("scans().filter(|s, i| s.len() > 5)[0].", "Scan"),
            ("scans().filter(|s| s.len() > 5 || s.", "Scan"),
            ("scans().find(|s| { let n = s.at(); n.", "Duration"),
            ("recordings().map(|d| d.maps()).", "?"),
            ("let early = allocations().only_leaked() + groups[0]; early.", "AllocationList"),
            ("let x = maps(); for x in scans() { } x.", "MapList"),
            ("let x = maps(); for x in scans() { x.", "Scan"),
            ("let x = maps(); { let x = groups; } x.", "MapList"),
            ("let x = if true { maps() } else { scans() }; x.", "?"),
            ("let x = #{ a: maps(), b: 1 }; x.", "?"),
            ("const LIMIT = s(5); LIMIT.", "Duration"),
            ("fn each(groups, n) { groups.", "?"),
            ("fn each(groups) { let n = 1; } groups.", "AllocationGroupList"),
            ("let f = |groups| groups.", "?"),
            ("for i in 0..groups.len() { groups[i].", "AllocationList"),
            ("for i in 0..groups.", "AllocationGroupList"),
            ("groups?[0]?.group_by_backtrace()?.", "AllocationGroupList"),
            ("if groups.len() > 0 || maps().", "MapList"),
            ("let x = 0.5; x.", "?"),
            ("allocations()[0].deallocated_at().", "Option<Duration>"),
        ] {
            assert_eq!(type_at(code), of, "{code}");
        }
        for code in ["\"a", "/* ", "let x = `a ${b"] {
            assert!(Place::behind(code, &[], &[]).is_none(), "{code}");
        }
    }

    #[test]
    fn any_beginning_of_code_can_be_read() {
        let code = "fn f(a) { for (x, i) in a { let y = x[i]?.b.filter(|z| z > 0..2 || `ü`); } } #{ 'c': (( ]} }";
        let names = crate::names();
        for end in (0..=code.len()).filter(|end| code.is_char_boundary(*end)) {
            let place = Place::behind(&code[..end], &names, &[]);
            let _ = place.map(|p| (p.owner(true), p.owner(false), p.is_behind_dot()));
        }
    }
}
