//! Durations, and moments as durations since the start of a recording.

use crate::error::{Fault, fault};
use crate::recording::Shared;
use crate::registry::Registry;
use std::rc::Rc;

/// Note for scripts written for bytehound that call `s` with a fraction.
const SECONDS: &str =
    "s(0.5) is half a second; bytehound's was 500,000 seconds, as it multiplied by a million";

/// A duration in nanoseconds; it may be negative.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Duration(pub i64);

impl Duration {
    /// Returns a duration that is not negative.
    pub(crate) fn of_ns(ns: u64) -> Self {
        Self(i64::try_from(ns).unwrap_or(i64::MAX))
    }

    /// Returns the nanoseconds, 0 for a negative duration.
    pub(crate) fn ns(self) -> u64 {
        u64::try_from(self.0).unwrap_or(0)
    }

    fn of_float(ns: f64) -> Result<Self, Fault> {
        if !ns.is_finite() || ns.abs() >= i64::MAX as f64 {
            return Err(fault("the duration is too long, or no number"));
        }
        Ok(Self(ns.round() as i64))
    }
}

impl Duration {
    /// Returns the text of a moment in a sentence, in which nothing would be a gap.
    pub(crate) fn spelled(self) -> String {
        let text = self.to_string();
        if text.is_empty() { "0us".into() } else { text }
    }
}

impl std::fmt::Display for Duration {
    /// Writes days, hours, minutes, seconds, milliseconds and microseconds, those that are 0 left out.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut rest = self.0.unsigned_abs() / 1000;
        let mut before = if self.0 < 0 && rest > 0 { "-" } else { "" };
        for (unit, us) in UNITS {
            if rest >= us {
                write!(f, "{before}{}{unit}", rest / us)?;
                rest %= us;
                before = " ";
            }
        }
        Ok(())
    }
}

const UNITS: [(&str, u64); 6] = [
    ("d", 86_400_000_000),
    ("h", 3_600_000_000),
    ("m", 60_000_000),
    ("s", 1_000_000),
    ("ms", 1000),
    ("us", 1),
];

/// A duration that may be missing: the end of a block that is never freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moment(pub Option<Duration>);

impl std::fmt::Display for Moment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(d) => write!(f, "Some({d})"),
            None => f.write_str("None"),
        }
    }
}

/// Registers the functions that make durations, and the type.
pub(crate) fn register(r: &mut Registry, shared: &Rc<Shared>) {
    r.engine.register_type_with_name::<Duration>("Duration");
    r.engine.register_type_with_name::<Moment>("Option<Duration>");
    r.of("");
    let units: [(&str, &str, f64); 6] = [
        ("h", "hours", 3600e9),
        ("m", "minutes", 60e9),
        ("s", "seconds", 1e9),
        ("ms", "milliseconds", 1e6),
        ("us", "microseconds", 1e3),
        ("ns", "nanoseconds", 1.0),
    ];
    for (name, unit, factor) in units {
        let whole = move |n: i64| {
            let ns = n.checked_mul(factor as i64).ok_or_else(|| fault("the duration is too long"));
            ns.map(Duration)
        };
        let told = (name == "s").then(|| shared.clone());
        r.def(
            name,
            "(n: Integer|Float) -> Duration",
            format!("Returns a duration of so many {unit}."),
            format!("println({name}(1500) + {name}(0.5));"),
            whole,
        )
        .also(move |n: f64| {
            if let Some(shared) = &told {
                shared.tell(SECONDS);
            }
            Duration::of_float(n * factor)
        });
        match name {
            "s" => _ = r.note("In bytehound `s(0.5)` was 500,000 seconds."),
            "ns" => _ = r.note("New in prof."),
            _ => {}
        }
    }
    register_type(r);
    register_moment(r);
}

fn register_type(r: &mut Registry) {
    let sum = |a: Duration, b: Duration| {
        a.0.checked_add(b.0).map(Duration).ok_or_else(|| fault("the duration is too long"))
    };
    let difference = |a: Duration, b: Duration| {
        a.0.checked_sub(b.0).map(Duration).ok_or_else(|| fault("the duration is too long"))
    };
    let times = |a: Duration, n: i64| {
        a.0.checked_mul(n).map(Duration).ok_or_else(|| fault("the duration is too long"))
    };
    let part = |a: Duration, n: f64| Duration::of_float(a.0 as f64 * n);
    r.of("Duration")
        .def("+", "(Duration) -> Duration", "Adds two durations.", "println(s(1) + ms(5));", sum)
        .def(
            "-",
            "(Duration) -> Duration",
            "Subtracts a duration from another.",
            "println(s(2) - ms(5));",
            difference,
        )
        .def(
            "*",
            "(Integer|Float) -> Duration",
            "Multiplies a duration by a number, which may stand on either side.",
            "println(s(2) * 3 + 0.5 * s(1));",
            times,
        )
        .also(move |n: i64, a: Duration| times(a, n))
        .also(part)
        .also(move |n: f64, a: Duration| part(a, n))
        .def(
            "/",
            "(Integer|Float|Duration) -> Duration|Float",
            "Divides a duration by a number, or by another duration.",
            "println(s(3) / 2); println(s(3) / s(2));",
            move |a: Duration, n: i64| part(a, 1.0 / n as f64),
        )
        .note("New in prof.")
        .also(move |a: Duration, n: f64| part(a, 1.0 / n))
        .also(|a: Duration, b: Duration| a.0 as f64 / b.0 as f64);
    let compare = "Compares two durations.";
    let example = "println(s(1) < ms(1500) && s(60) == m(1));";
    let signature = "(Duration) -> Boolean";
    r.def("==", signature, compare, example, |a: Duration, b: Duration| a == b)
        .def("!=", signature, compare, example, |a: Duration, b: Duration| a != b)
        .def("<", signature, compare, example, |a: Duration, b: Duration| a < b)
        .def("<=", signature, compare, example, |a: Duration, b: Duration| a <= b)
        .def(">", signature, compare, example, |a: Duration, b: Duration| a > b)
        .def(">=", signature, compare, example, |a: Duration, b: Duration| a >= b)
        .def(
            "to_float",
            "() -> Float",
            "Returns the duration in seconds.",
            "println(ms(1500).to_float());",
            |a: &mut Duration| a.0 as f64 / 1e9,
        )
        .def(
            "to_string",
            "() -> String",
            "Returns the duration as text, as println prints it.",
            "println(\"[\" + ms(1500).to_string() + \"]\");",
            |a: &mut Duration| a.to_string(),
        );
    r.engine.register_fn("to_debug", |a: &mut Duration| a.to_string());
    refuse_numbers(&mut r.engine);
}

/// Makes comparisons of durations with numbers an error: the language says that values of different types are neither
/// less nor greater, so that a condition without its unit would never hold.
fn refuse_numbers(engine: &mut rhai::Engine) {
    let refused = |op: &str, n: String| {
        Err::<bool, Fault>(fault(format!(
            "{op} compares a duration with the number {n}: give the number a unit, as in s({n}) or ms({n})"
        )))
    };
    for op in ["<", "<=", ">", ">="] {
        engine
            .register_fn(op, move |_: Duration, n: i64| refused(op, n.to_string()))
            .register_fn(op, move |n: i64, _: Duration| refused(op, n.to_string()))
            .register_fn(op, move |_: Duration, n: f64| refused(op, n.to_string()))
            .register_fn(op, move |n: f64, _: Duration| refused(op, n.to_string()));
    }
}

/// Compares what may be missing with a duration, on either side.
fn compare_moments(engine: &mut rhai::Engine) {
    type Compare = fn(&Duration, &Duration) -> bool;
    let all: [(&str, Compare); 4] =
        [("<", Duration::lt), ("<=", Duration::le), (">", Duration::gt), (">=", Duration::ge)];
    for (op, compare) in all {
        let there = move |m: Moment| {
            m.0.ok_or_else(|| {
                fault(format!(
                    "{op}: there is no duration (None) to compare; ask is_some() first, or take unwrap_or(…)"
                ))
            })
        };
        engine
            .register_fn(op, move |a: Moment, b: Duration| Ok::<_, Fault>(compare(&there(a)?, &b)))
            .register_fn(op, move |a: Duration, b: Moment| Ok::<_, Fault>(compare(&a, &there(b)?)))
            .register_fn(op, move |a: Moment, b: Moment| {
                Ok::<_, Fault>(compare(&there(a)?, &there(b)?))
            });
    }
    for (op, equal) in [("==", true), ("!=", false)] {
        engine
            .register_fn(op, move |a: Moment, b: Duration| (a.0 == Some(b)) == equal)
            .register_fn(op, move |a: Duration, b: Moment| (b.0 == Some(a)) == equal)
            .register_fn(op, move |a: Moment, b: Moment| (a.0 == b.0) == equal)
            .register_fn(op, move |a: Moment, (): ()| a.0.is_none() == equal)
            .register_fn(op, move |(): (), a: Moment| a.0.is_none() == equal);
    }
}

fn register_moment(r: &mut Registry) {
    const END: &str = "let end = allocations()[0].deallocated_at();\n";
    r.of("Option<Duration>")
        .def(
            "is_some",
            "() -> Boolean",
            "Returns whether there is a duration.",
            format!("{END}println(end.is_some());"),
            |m: &mut Moment| m.0.is_some(),
        )
        .def(
            "is_none",
            "() -> Boolean",
            "Returns whether there is none.",
            format!("{END}println(end.is_none());"),
            |m: &mut Moment| m.0.is_none(),
        )
        .def(
            "unwrap",
            "() -> Duration",
            "Returns the duration; it is an error if there is none.",
            format!("{END}if end.is_some() {{ println(end.unwrap()); }}"),
            |m: &mut Moment| m.0.ok_or_else(|| fault("unwrap: there is no duration (None)")),
        )
        .def(
            "unwrap_or",
            "(Duration) -> Duration",
            "Returns the duration, or another if there is none.",
            format!("{END}println(end.unwrap_or(data().runtime()));"),
            |m: &mut Moment, other: Duration| m.0.unwrap_or(other),
        );
    r.engine
        .register_fn("to_string", |m: &mut Moment| m.to_string())
        .register_fn("to_debug", |m: &mut Moment| m.to_string());
    compare_moments(&mut r.engine);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_print_as_bytehound_prints_them() {
        for (ns, text) in [
            (0, ""),
            (999, ""),
            (62_661_000, "62ms 661us"),
            (10_065_367_000, "10s 65ms 367us"),
            (93_784_005_006_000, "1d 2h 3m 4s 5ms 6us"),
            (-1_500_000_000, "-1s 500ms"),
        ] {
            assert_eq!(Duration(ns).to_string(), text);
        }
        assert_eq!(Moment(Some(Duration(62_799_000))).to_string(), "Some(62ms 799us)");
        assert_eq!(Moment(None).to_string(), "None");
    }
}
