//! The parameters of a request.

use crate::reply::Failure;
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use prof_analyze::query::{self, Filter};

/// Greatest number of parameters.
const MOST: usize = 256;

/// The parameters of a request, in their order. Routes take those that they know; what remains is unknown.
#[derive(Clone, Debug, Default)]
pub struct Params {
    pairs: Vec<(String, String)>,
}

fn decode(text: &str) -> Result<String, Failure> {
    let spaced = text.replace('+', " ");
    let decoded = percent_decode_str(&spaced).decode_utf8();
    decoded.map(|t| t.into_owned()).map_err(|_| Failure::bad("the query is no UTF-8"))
}

impl Params {
    /// Parses the query of a request.
    pub(crate) fn parse(query: &str) -> Result<Self, Failure> {
        let mut pairs = Vec::new();
        for part in query.split('&').filter(|p| !p.is_empty()) {
            if pairs.len() == MOST {
                return Err(Failure::bad(format!("more than {MOST} parameters")));
            }
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            pairs.push((decode(name)?, decode(value)?));
        }
        Ok(Self { pairs })
    }

    /// Adds a parameter.
    pub(crate) fn push(&mut self, name: &str, value: &str) {
        self.pairs.push((name.to_owned(), value.to_owned()));
    }

    /// Takes a parameter.
    ///
    /// # Errors
    /// If it is given twice.
    pub(crate) fn take(&mut self, name: &str) -> Result<Option<String>, Failure> {
        let mut found = self.take_all(name);
        let value = found.pop();
        if found.is_empty() { Ok(value) } else { Err(Failure::of(name, "given more than once")) }
    }

    /// Takes a parameter that may be given several times.
    pub(crate) fn take_all(&mut self, name: &str) -> Vec<String> {
        let mut found = Vec::new();
        self.pairs.retain_mut(|(n, v)| {
            let is = n == name;
            if is {
                found.push(std::mem::take(v));
            }
            !is
        });
        found
    }

    /// Takes a number.
    pub(crate) fn number(&mut self, name: &str, most: u64) -> Result<Option<u64>, Failure> {
        let Some(text) = self.take(name)? else { return Ok(None) };
        let n: u64 =
            text.parse().map_err(|_| Failure::of(name, format!("{text:?} is no number")))?;
        if n > most { Err(Failure::of(name, format!("at most {most}"))) } else { Ok(Some(n)) }
    }

    /// Takes a switch.
    pub(crate) fn switch(&mut self, name: &str) -> Result<Option<bool>, Failure> {
        Ok(match self.take(name)?.as_deref() {
            None => None,
            Some("" | "1" | "true" | "yes") => Some(true),
            Some("0" | "false" | "no") => Some(false),
            Some(other) => {
                return Err(Failure::of(name, format!("{other:?} is neither true nor false")));
            }
        })
    }

    /// Takes one of several words.
    pub(crate) fn one_of<T: Copy>(
        &mut self,
        name: &str,
        words: &[(&str, T)],
    ) -> Result<Option<T>, Failure> {
        let Some(text) = self.take(name)? else { return Ok(None) };
        let found = words.iter().find(|w| w.0 == text).map(|w| w.1);
        let all = || words.iter().map(|w| w.0).collect::<Vec<_>>().join(", ");
        found.map(Some).ok_or_else(|| Failure::of(name, format!("{text:?}: give one of {}", all())))
    }

    /// Takes the parameters whose names are wanted.
    pub(crate) fn take_fields(
        &mut self,
        is_wanted: impl Fn(&str) -> bool,
    ) -> Vec<(String, String)> {
        let (fields, rest) =
            std::mem::take(&mut self.pairs).into_iter().partition(|(name, _)| is_wanted(name));
        self.pairs = rest;
        fields
    }

    /// Takes the fields of a filter.
    ///
    /// # Errors
    /// If the value of one is wrong, or recordings don't have what it asks for.
    pub(crate) fn filter(&mut self) -> Result<Filter, Failure> {
        let mut filter = Filter::default();
        let fields = self.take_fields(|name| query::find(name).is_some());
        for (name, value) in fields {
            filter
                .set(&name, &value)
                .map_err(|e| Failure { name: Some(name), ..Failure::bad(e.to_string()) })?;
        }
        Ok(filter)
    }

    /// Checks that no parameter remains.
    ///
    /// # Errors
    /// If one does: its name.
    #[cfg(test)]
    pub(crate) fn end(&self) -> Result<(), Failure> {
        match self.pairs.first() {
            None => Ok(()),
            Some((name, _)) => Err(Failure::of(name, "there is no such parameter here")),
        }
    }

    /// Returns the parameters whose names are wanted, as in the query of a request.
    pub(crate) fn encoded(&self, is_wanted: impl Fn(&str) -> bool) -> impl Iterator<Item = String> {
        let code = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
        let wanted = self.pairs.iter().filter(move |(name, _)| is_wanted(name));
        wanted.map(move |(name, value)| format!("{}={}", code(name), code(value)))
    }

    /// Returns whether a parameter that remains has this value.
    pub(crate) fn has(&self, name: &str, value: &str) -> bool {
        self.pairs.iter().any(|(n, v)| n == name && v == value)
    }

    /// Returns the names of the parameters that remain.
    pub(crate) fn rest(&self) -> impl Iterator<Item = &str> {
        self.pairs.iter().map(|p| &*p.0)
    }

    /// Returns a text that is equal for equal parameters.
    pub(crate) fn key(&self) -> String {
        let mut pairs: Vec<_> = self.pairs.iter().map(|(n, v)| format!("{n:?}={v:?}")).collect();
        pairs.sort();
        pairs.join("&")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_decoded_and_taken_once() {
        let mut p = Params::parse("a=1&b=x%20y+z&a=2&c&min-size=1KiB&size_max=9").expect("good");
        assert!(p.take("a").is_err());
        assert_eq!(p.take("b").expect("once").as_deref(), Some("x y z"));
        assert_eq!(p.switch("c").expect("a switch"), Some(true));
        let filter = p.filter().expect("a filter");
        assert_eq!(filter.given().len(), 2);
        assert!(p.end().is_ok());
        let p = Params::parse("colour=red").expect("good");
        assert_eq!(p.end().expect_err("unknown").name.as_deref(), Some("colour"));
        assert!(Params::parse("a=%ff").is_err());
        assert!(Params::parse(&"a&".repeat(300)).is_err());
        let mut p = Params::parse("readable=yes").expect("good");
        assert!(p.filter().expect_err("refused").why.contains("property of mappings"));
    }

    #[test]
    fn the_order_of_parameters_does_not_matter_for_the_cache() {
        let key = |q: &str| Params::parse(q).expect("good").key();
        assert_eq!(key("a=1&b=2"), key("b=2&a=1"));
        assert_ne!(key("a=1&b=2"), key("a=1%26b=2"));
    }
}
