//! Names of stacks of a recording that grows, each looked up once.

use crate::analysis::Follower;
use crate::askers::Askers;
use crate::heap::Watch;
use crate::report::{AskedData, FrameData, asked_by, asked_line, frame_lines, frames_of};
use crate::style::{Style, printable};
use crate::symbols::{SymbolOptions, Symbolizer};
use crate::{Analysis, Error};
use std::collections::HashMap;
use std::sync::Arc;

/// A stack with names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamedStack {
    /// The frames, innermost first.
    pub frames: Vec<FrameData>,
    /// The frame that asked for the memory.
    pub asked: Option<AskedData>,
    /// Whether the outer frames are missing.
    pub cut: bool,
    /// Text that is shown in place of frames; empty: none.
    pub note: &'static str,
}

impl NamedStack {
    /// Returns the frame that asked for the memory and all frames, a line each.
    pub fn text(&self, style: Style) -> String {
        if !self.note.is_empty() {
            return format!("  {}\n", self.note);
        }
        let mut out = String::new();
        // Writing to a string can't fail.
        let _ = asked_line(self.asked.as_ref(), style, &mut out);
        let _ = frame_lines(&self.frames, self.cut, style, &mut out);
        out
    }

    /// Returns the frame that asked for the memory in one line: function, file and line.
    pub fn label(&self) -> String {
        let mut out = String::new();
        // Writing to a string can't fail.
        let _ = asked_line(self.asked.as_ref(), Style::default(), &mut out);
        match (out.trim_end(), self.frames.first()) {
            ("", Some(f)) => {
                let name = f.function.as_deref().or(f.offset.as_deref()).unwrap_or(&f.address);
                format!("{} ({})", printable(name), printable(f.module.as_deref().unwrap_or("?")))
            }
            ("", None) if !self.note.is_empty() => self.note.to_owned(),
            ("", None) => "(no stack)".to_owned(),
            (text, _) => text.to_owned(),
        }
    }
}

/// The stacks that were asked for so far, by node.
#[derive(Default)]
pub struct Names {
    options: SymbolOptions,
    stacks: HashMap<u32, Arc<NamedStack>>,
    /// The wrappers of allocators, and the number of stacks when they were looked for.
    askers: Option<(Askers, usize)>,
}

impl Names {
    /// Creates an empty table; the options say where symbols are looked for.
    pub fn new(options: SymbolOptions) -> Self {
        Self { options, ..Self::default() }
    }

    /// Looks up those stacks that are not known yet. Symbols are read again only if there are any.
    ///
    /// # Errors
    /// If the recording can't be opened.
    pub fn look_up<W: Watch>(
        &mut self,
        follower: &Follower<W>,
        nodes: impl IntoIterator<Item = u32>,
    ) -> Result<(), Error> {
        let missing = self.missing(nodes);
        if !missing.is_empty() {
            let analysis = self.analysis(follower)?;
            self.name(&analysis, &missing);
        }
        Ok(())
    }

    /// Looks up those stacks of an analysis that are not known yet.
    pub fn look_up_in(&mut self, analysis: &Analysis, nodes: impl IntoIterator<Item = u32>) {
        let missing = self.missing(nodes);
        if !missing.is_empty() {
            self.name(analysis, &missing);
        }
    }

    /// Forgets all stacks: another file has the recording's place.
    pub fn forget(&mut self) {
        self.stacks.clear();
        self.askers = None;
    }

    fn missing(&self, nodes: impl IntoIterator<Item = u32>) -> Vec<u32> {
        let mut missing: Vec<u32> =
            nodes.into_iter().filter(|n| !self.stacks.contains_key(n)).collect();
        missing.sort_unstable();
        missing.dedup();
        missing
    }

    /// Returns what was read so far as an analysis that looks up symbols where this table does.
    ///
    /// # Errors
    /// If the recording can't be opened.
    pub fn analysis<W: Watch>(&self, follower: &Follower<W>) -> Result<Analysis, Error> {
        let mut analysis = follower.analysis()?;
        analysis.set_symbol_options(self.options.clone());
        Ok(analysis)
    }

    fn name(&mut self, analysis: &Analysis, nodes: &[u32]) {
        let mut symbols = Symbolizer::new(analysis);
        let groups = analysis.groups().len();
        // A wrapper shows by the number of its callers, which becomes clear as the recording grows.
        let askers = match self.askers.take() {
            Some((askers, then)) if groups < then * 2 => (askers, then),
            _ => (Askers::new(analysis, &mut symbols), groups),
        };
        for node in nodes {
            let frames = frames_of(analysis, *node, &mut symbols);
            let asked = asked_by(&frames, &askers.0);
            let cut = analysis.meta().is_cut(*node);
            self.stacks.insert(*node, Arc::new(NamedStack { frames, asked, cut, note: "" }));
        }
        self.askers = Some(askers);
    }

    /// Gives a number that no stack of the recording has to blocks without one, with what is said of them.
    pub fn put_note(&mut self, node: u32, note: &'static str) {
        self.stacks.insert(node, Arc::new(NamedStack { note, ..NamedStack::default() }));
    }

    /// Returns a stack that was looked up.
    pub fn get(&self, node: u32) -> Arc<NamedStack> {
        self.stacks.get(&node).cloned().unwrap_or_default()
    }
}
