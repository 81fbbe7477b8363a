//! Finds the moments that marks name.

use super::Meta;
use crate::style::printable;
use prof_trace::records::Mark;
use prof_trace::ticks::Ticks;
use prof_trace::values::text;

impl Meta {
    /// Returns the ticks of a mark, by its name, or by its number as `#3`. Of several of the same name it is the last.
    ///
    /// # Errors
    /// A message that names the marks that there are.
    pub fn mark(&self, name: &str) -> Result<Ticks, String> {
        const LISTED: usize = 12;
        let number = name.strip_prefix('#').and_then(|n| n.parse::<usize>().ok());
        let by_number = number.and_then(|n| self.marks.get(n.checked_sub(1)?));
        let by_name = || self.marks.iter().rev().find(|m| !name.is_empty() && m.name == name);
        if let Some(m) = by_number.or_else(by_name) {
            return Ok(m.ticks);
        }
        if self.marks.is_empty() {
            return Err("the recording has no marks; `prof mark PID NAME` sets one".into());
        }
        let text = |(i, m): (usize, &Mark)| {
            format!(
                "#{} {} at {}",
                i + 1,
                printable(&m.name),
                text::duration(self.clock.ns(m.ticks))
            )
        };
        let all: Vec<_> = self.marks.iter().enumerate().map(text).collect();
        let from = all.len().saturating_sub(LISTED);
        let more = if from > 0 { format!("{from} earlier ones, ") } else { String::new() };
        Err(format!("no mark is called {name:?}; there are {more}{}", all[from..].join(", ")))
    }

    /// Returns the first and the last tick at which the mark of a number was the latest one. The first mark is 1; 0 is the
    /// time before it. Where a mark follows within the same tick, the first tick is greater than the last.
    ///
    /// # Errors
    /// As [`Meta::mark`], if there are not so many marks.
    pub fn after_mark(&self, number: u64) -> Result<(Ticks, Ticks), String> {
        let from = match number {
            0 => Ticks::ZERO,
            _ => self.mark(&format!("#{number}"))?,
        };
        let next = usize::try_from(number).ok().and_then(|n| self.marks.get(n));
        Ok(match next.map(|m| m.ticks.0.checked_sub(1)) {
            None => (from, Ticks::MAX),
            Some(Some(last)) => (from, Ticks(last)),
            Some(None) => (Ticks::MAX, Ticks::ZERO),
        })
    }

    /// Returns the ticks of two marks that are given as `A,B`.
    ///
    /// # Errors
    /// As [`Meta::mark`]; or if B is before A.
    pub fn marks_of(&self, pair: &str) -> Result<(Ticks, Ticks), String> {
        let Some((a, b)) = pair.split_once(',') else {
            return Err(format!("{pair:?} is not of the form A,B"));
        };
        let (from, to) = (self.mark(a.trim())?, self.mark(b.trim())?);
        if to < from {
            return Err(format!("{} is before {}", b.trim(), a.trim()));
        }
        Ok((from, to))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_found_by_name_and_number() {
        let marks = [(5, "one"), (7, ""), (9, "two"), (12, "one")];
        let marks = marks.map(|(ticks, name)| Mark { ticks: Ticks(ticks), name: name.into() });
        let mut m = Meta::default();
        m.marks = marks.to_vec();
        assert_eq!(m.mark("one"), Ok(Ticks(12)), "the last of that name");
        assert_eq!((m.mark("#1"), m.mark("#2")), (Ok(Ticks(5)), Ok(Ticks(7))));
        assert_eq!(m.marks_of("#1, two"), Ok((Ticks(5), Ticks(9))));
        assert_eq!(m.after_mark(0), Ok((Ticks(0), Ticks(4))));
        assert_eq!(m.after_mark(3), Ok((Ticks(9), Ticks(11))));
        assert_eq!(m.after_mark(4), Ok((Ticks(12), Ticks::MAX)));
        assert!(m.after_mark(5).is_err_and(|e| e.contains("#4 one")));
        assert!(m.marks_of("two,#1").is_err_and(|e| e.contains("before")));
        for none in ["", "#0", "#5", "three", "#"] {
            let e = m.mark(none).expect_err("no mark");
            assert!(e.contains("#3 two at") && !e.contains('\n'), "{e}");
        }
        assert_eq!(Meta::default().after_mark(0), Ok((Ticks(0), Ticks::MAX)));
        let e = Meta::default().mark("#1").expect_err("no marks");
        assert!(e.contains("prof mark"), "{e}");
    }
}
