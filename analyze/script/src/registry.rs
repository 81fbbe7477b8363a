//! The table of names: every function is registered together with its description, so that the reference, the
//! completion and the engine can't differ.

use rhai::{Engine, RhaiNativeFunc};

/// A name that scripts can use, with its description.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Name {
    /// The type that it is a method of; empty for a global function.
    pub of: &'static str,
    /// The name.
    pub name: String,
    /// Arguments and result: `(size: Integer) -> AllocationList`.
    pub signature: &'static str,
    /// A sentence that says what it does.
    pub doc: String,
    /// A script that shows its use; it runs on any recording.
    pub example: String,
    /// A difference from bytehound, or the reason why the name is kept; empty: none.
    pub note: &'static str,
}

impl Name {
    /// Returns the name with the type before it, and its signature.
    pub fn title(&self) -> String {
        let Self { of, name, signature, .. } = self;
        if of.is_empty() { format!("{name}{signature}") } else { format!("{of}.{name}{signature}") }
    }
}

/// Registers functions with an engine, and collects their descriptions.
pub(crate) struct Registry {
    pub engine: Engine,
    pub names: Vec<Name>,
    of: &'static str,
}

impl Registry {
    pub(crate) fn new(engine: Engine) -> Self {
        Self { engine, names: Vec::new(), of: "" }
    }

    /// Sets the type whose methods are registered next; empty: global functions.
    pub(crate) fn of(&mut self, of: &'static str) -> &mut Self {
        self.of = of;
        self
    }

    /// Registers a function with its description.
    pub(crate) fn def<A: 'static, const N: usize, const X: bool, R, const F: bool>(
        &mut self,
        name: &str,
        signature: &'static str,
        doc: impl Into<String>,
        example: impl Into<String>,
        function: impl RhaiNativeFunc<A, N, X, R, F> + 'static,
    ) -> &mut Self
    where
        R: Clone + 'static,
    {
        self.describe(name, signature, doc, example);
        self.engine.register_fn(name, function);
        self
    }

    /// Describes a name that the engine has in another way, such as an operator.
    pub(crate) fn describe(
        &mut self,
        name: &str,
        signature: &'static str,
        doc: impl Into<String>,
        example: impl Into<String>,
    ) -> &mut Self {
        self.names.push(Name {
            of: self.of,
            name: name.to_owned(),
            signature,
            doc: doc.into(),
            example: example.into(),
            note: "",
        });
        self
    }

    /// Registers a further function of the name that was described last: one with other types of arguments.
    pub(crate) fn also<A: 'static, const N: usize, const X: bool, R, const F: bool>(
        &mut self,
        function: impl RhaiNativeFunc<A, N, X, R, F> + 'static,
    ) -> &mut Self
    where
        R: Clone + 'static,
    {
        if let Some(last) = self.names.last() {
            let name = last.name.clone();
            self.engine.register_fn(name, function);
        }
        self
    }

    /// Adds a note to the name that was described last.
    pub(crate) fn note(&mut self, note: &'static str) -> &mut Self {
        if let Some(last) = self.names.last_mut() {
            last.note = note;
        }
        self
    }
}
