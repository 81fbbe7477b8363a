//! Parses limits on leaks for automatic checks, such as `growing > 1MiB/h`, and checks them.

use super::{Class, Leaks};
use prof_trace::values::parse;
use prof_trace::values::text::{bytes, count};

/// The figure that a limit applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    /// Growth in bytes per hour, in the weakest interval.
    PerHour,
    /// Bytes held.
    Bytes,
    /// Number of stacks.
    Stacks,
}

/// A limit: the class must not have more than this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    class: Class,
    what: What,
    most: u64,
}

/// Parses a limit: `growing > 1MiB/h` (growth of all stacks of that class), `static > 10MiB` (bytes they hold),
/// `growing` (any stack). Of `proved` there are bytes and stacks.
///
/// # Errors
/// A message that says what is wrong with the text.
pub fn parse_limit(text: &str) -> Result<Limit, String> {
    let wrong = || {
        let classes = Class::ALL.map(Class::name).join(", ");
        format!("{text:?} is no limit; give one such as 'growing > 1MiB/h', of {classes}")
    };
    let (class, rest) = text.split_once('>').map_or((text, None), |(c, r)| (c, Some(r)));
    let class = Class::ALL.into_iter().find(|c| c.name() == class.trim()).ok_or_else(wrong)?;
    let Some(rest) = rest else { return Ok(Limit { class, what: What::Stacks, most: 0 }) };
    let (number, what) = match rest.trim().strip_suffix("/h") {
        Some(n) => (n, What::PerHour),
        None => (rest, What::Bytes),
    };
    if class == Class::Proved && what == What::PerHour {
        return Err("what is proved has no growth: give bytes, as in 'proved > 1MiB'".into());
    }
    let most = parse::size(number).map_err(|_| wrong())?;
    Ok(Limit { class, what, most })
}

impl Limit {
    /// Returns the class that the limit is on.
    pub fn class(&self) -> Class {
        self.class
    }

    /// Returns a message if the verdicts exceed the limit, or if it is on what a scan was to prove and did not decide.
    pub fn exceeded(&self, leaks: &Leaks) -> Option<String> {
        if self.class == Class::Proved && leaks.scan_settled != Some(true) {
            return Some("proved: not decided".into());
        }
        let c = leaks.class(self.class)?;
        let has = match self.what {
            What::PerHour => c.growth_per_hour,
            What::Bytes => c.bytes,
            What::Stacks => c.stacks,
        };
        let name = self.class.name();
        let text = match self.what {
            What::PerHour => format!("{}/h, more than {}/h", bytes(has), bytes(self.most)),
            What::Bytes => format!("{}, more than {}", bytes(has), bytes(self.most)),
            What::Stacks => count(has, "stack", "stacks"),
        };
        (has > self.most).then(|| format!("{name}: {text}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_understood() {
        let l = parse_limit("growing > 1MiB/h").expect("good");
        assert_eq!(l, Limit { class: Class::Growing, what: What::PerHour, most: 1 << 20 });
        let l = parse_limit("static>10k").expect("good");
        assert_eq!(l, Limit { class: Class::Static, what: What::Bytes, most: 10 << 10 });
        assert_eq!(parse_limit("freed-at-the-end").map(|l| l.what), Ok(What::Stacks));
        for bad in
            ["", "> 5", "leaking > 5", "growing > fast", "growing > 1MiB/d", "proved > 1MiB/h"]
        {
            assert!(parse_limit(bad).is_err(), "{bad}");
        }
    }
}
