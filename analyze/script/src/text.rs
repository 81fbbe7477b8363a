//! The language's functions on texts that can make more than any limit lets through, within limits.

use crate::engine::{LONGEST_TEXT, TEXTS};
use crate::error::{Fault, fault};
use crate::memory::fits;
use crate::print::to_text;
use crate::recording::Shared;
use rhai::{Array, Dynamic, Engine, ImmutableString, Map};
use std::rc::Rc;

impl Shared {
    /// Checks that the text of a value is not longer than a script may make it.
    pub(crate) fn check_text(&self, value: &Dynamic) -> Result<(), Fault> {
        let mut most = self.longest;
        if fits(value, &mut most) { Ok(()) } else { Err(self.too_long()) }
    }

    /// Checks that a text which many small values are made of is not too long for that.
    pub(crate) fn check_source(&self, text: &str) -> Result<(), Fault> {
        if self.longest == usize::MAX || text.len() <= LONGEST_TEXT {
            return Ok(());
        }
        Err(fault(format!("the text is longer than {} KiB", LONGEST_TEXT >> 10)))
    }

    pub(crate) fn too_long(&self) -> Fault {
        fault(format!("the text is longer than {} MiB", self.longest >> 20))
    }
}

/// Replaces a text in another one, as the language's function does.
fn replace(shared: &Shared, text: &mut ImmutableString, find: &str, by: &str) -> Result<(), Fault> {
    let found = if by.len() > find.len() { text.matches(find).count() } else { 0 };
    let more = found.saturating_mul(by.len().saturating_sub(find.len()));
    if text.len().saturating_add(more) > shared.longest {
        return Err(shared.too_long());
    }
    *text = text.replace(find, by).into();
    Ok(())
}

/// Registers the functions in place of those of the language.
pub(crate) fn register(engine: &mut Engine, shared: &Rc<Shared>) {
    for name in ["print", "debug"] {
        let (of_arrays, of_maps) = (shared.clone(), shared.clone());
        engine
            .register_fn(name, move |array: Array| shown(&of_arrays, &Dynamic::from(array)))
            .register_fn(name, move |map: Map| shown(&of_maps, &Dynamic::from(map)));
    }
    for name in ["to_string", "to_debug"] {
        let (of_arrays, of_maps) = (shared.clone(), shared.clone());
        engine
            .register_fn(name, move |array: Array| converted(&of_arrays, &Dynamic::from(array)))
            .register_fn(name, move |map: Map| converted(&of_maps, &Dynamic::from(map)));
    }
    let own = shared.clone();
    engine.register_fn("to_json", move |map: Map| {
        let value = Dynamic::from(map);
        own.check_text(&value)?;
        serde_json::to_string(&value).map_err(|e| fault(format!("to_json: {e}")))
    });
    register_parts(engine, shared);
    let own = [(); 4].map(|()| shared.clone());
    let [s0, s1, s2, s3] = own;
    let char = |c: char| c.to_string();
    engine
        .register_fn("replace", move |text: &mut ImmutableString, find: &str, by: &str| {
            replace(&s0, text, find, by)
        })
        .register_fn("replace", move |text: &mut ImmutableString, find: &str, by: char| {
            replace(&s1, text, find, &char(by))
        })
        .register_fn("replace", move |text: &mut ImmutableString, find: char, by: &str| {
            replace(&s2, text, &char(find), by)
        })
        .register_fn("replace", move |text: &mut ImmutableString, find: char, by: char| {
            replace(&s3, text, &char(find), &char(by))
        });
}

/// Registers the functions that take a text apart: each part takes more memory than its letters.
fn register_parts(engine: &mut Engine, shared: &Rc<Shared>) {
    type Text = ImmutableString;
    let own = shared.clone();
    engine.register_fn("to_chars", move |text: &mut Text| -> Result<Array, Fault> {
        own.check_source(text)?;
        Ok(text.chars().map(Dynamic::from).collect())
    });
    let own = shared.clone();
    engine.register_fn("split", move |text: &mut Text| -> Result<Array, Fault> {
        own.check_source(text)?;
        let parts: Array = text.split_whitespace().map(Into::into).collect();
        Ok(if text.is_empty() { vec![text.clone().into()] } else { parts })
    });
    for (name, back) in [("split", false), ("split_rev", true)] {
        let parts = move |shared: &Shared, text: &Text, by: &str, most: i64| {
            shared.check_source(text)?;
            let most = usize::try_from(most).unwrap_or(0);
            Ok(match (most, back) {
                _ if text.is_empty() => vec![text.clone().into()],
                (0 | 1, _) => vec![text.clone().into()],
                (_, false) => text.splitn(most, by).map(Into::into).collect(),
                (_, true) => text.rsplitn(most, by).map(Into::into).collect(),
            })
        };
        let [s0, s1, s2, s3] = [(); 4].map(|()| shared.clone());
        type Parts = Result<Array, Fault>;
        engine
            .register_fn(name, move |t: &mut Text, by: &str| -> Parts {
                parts(&s0, t, by, i64::MAX)
            })
            .register_fn(name, move |t: &mut Text, by: char| -> Parts {
                parts(&s1, t, by.encode_utf8(&mut [0; 4]), i64::MAX)
            })
            .register_fn(name, move |t: &mut Text, by: &str, most: i64| -> Parts {
                parts(&s2, t, by, most)
            })
            .register_fn(name, move |t: &mut Text, by: char, most: i64| -> Parts {
                parts(&s3, t, by.encode_utf8(&mut [0; 4]), most)
            });
    }
}

fn shown(shared: &Shared, value: &Dynamic) -> Result<String, Fault> {
    shared.check_text(value)?;
    Ok(to_text(value))
}

/// Returns the text of a value that becomes part of another text. After an error the language would make the whole
/// text itself: so one that is too long becomes another that is too long as well, which the language refuses.
fn converted(shared: &Shared, value: &Dynamic) -> String {
    match shown(shared, value) {
        Ok(text) => text,
        Err(_) => " ".repeat(REFUSED),
    }
}

/// Length of a text that the language refuses.
const REFUSED: usize = 2 * TEXTS;
