//! Writes folded stacks (`outer;inner cost`), and flame graphs made of them.

use super::profile::{Stack, base, label};
use super::{Cost, ExportError, Profile, Source, one_line};
use crate::symbols::Frame;
use std::collections::BTreeMap;
use std::io::{self, Write};

/// Returns the name of a frame without `;`, which separates frames.
fn name(f: &Frame) -> String {
    let label = label(f).replace(';', ":");
    match &f.module {
        Some(m) if f.function.is_some() => {
            format!("{label} [{}]", one_line(base(m)).replace(';', ":"))
        }
        _ => label,
    }
}

fn folded(profile: &Profile, stack: &Stack) -> String {
    let mut names: Vec<String> = profile.frames(stack).rev().map(name).collect();
    if stack.truncated {
        names.insert(0, "(cut short)".into());
    }
    if names.is_empty() {
        names.push("(no stack)".into());
    }
    names.join(";")
}

/// Returns the lines in the order of their text, each with its cost. Stacks with the same text become one line.
fn lines(profile: &Profile, cost: Cost) -> BTreeMap<String, u64> {
    let mut lines = BTreeMap::new();
    for s in &profile.stacks {
        let n = s.cost(cost);
        if n > 0 {
            let sum: &mut u64 = lines.entry(folded(profile, s)).or_default();
            *sum = sum.saturating_add(n);
        }
    }
    lines
}

pub(super) fn write(profile: &Profile, cost: Cost, out: &mut dyn Write) -> io::Result<()> {
    lines(profile, cost).iter().try_for_each(|(stack, n)| writeln!(out, "{stack} {n}"))
}

pub(super) fn flamegraph(source: &Source<'_>, out: &mut dyn Write) -> Result<(), ExportError> {
    let cost = source.cost;
    let lines = lines(&source.profile()?, cost);
    let lines: Vec<String> = lines.iter().map(|(stack, n)| format!("{stack} {n}")).collect();
    let target = &source.index.analysis().meta().target;
    let mut options = inferno::flamegraph::Options::default();
    options.title = format!("{}: {} {}", target.comm, cost.unit(), cost.name());
    options.count_name = cost.unit().to_owned();
    options.colors =
        inferno::flamegraph::color::Palette::Basic(inferno::flamegraph::color::BasicPalette::Mem);
    if lines.is_empty() {
        options.title = format!("{}: no {}", target.comm, cost.name());
        let none = ["(nothing) 1"];
        return Ok(inferno::flamegraph::from_lines(&mut options, none, out)?);
    }
    Ok(inferno::flamegraph::from_lines(&mut options, lines.iter().map(String::as_str), out)?)
}
