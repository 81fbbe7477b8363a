//! What unreachable blocks are: their C++ classes, and how they begin.

use super::before::BEFORE;
use super::report::Sum;
use prof_analyze::holds::demangled;
use prof_os::Pid;
use prof_os::memory::Reader;
use prof_scan::{Block, Classes};
use serde::Serialize;
use std::collections::HashMap;

/// Bytes of a block's content that are shown, and characters that make it text.
const CONTENT: usize = 32;
const TEXT: usize = 4;
/// Greatest number of blocks that a report looks at for their classes, each by a system call.
const MOST: u64 = 1 << 20;

/// The blocks that begin with an object of a C++ class.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct ClassData {
    /// Name of the class.
    pub class: String,
    #[serde(flatten)]
    pub sum: Sum,
}

/// Looks into the blocks of a process.
pub(super) struct Looker {
    reader: Option<Reader>,
    classes: Option<Classes>,
    /// Number of blocks whose classes may still be looked at.
    rest: u64,
}

impl Looker {
    /// Opens the memory of process `pid`. `content`: what blocks from before the attach begin with may be shown.
    pub(super) fn new(pid: Pid, content: bool) -> Self {
        let reader = Some(pid).filter(|_| content).and_then(|pid| Reader::open(pid).ok());
        Self { reader, classes: Classes::open(pid), rest: MOST }
    }

    /// Returns the class of the object that a block begins with.
    pub(super) fn class(&mut self, block: &Block) -> Option<String> {
        self.classes.as_mut()?.of_block(block.address).map(demangled)
    }

    /// Returns the classes of some blocks, those of most bytes first, and how many of the blocks were looked at.
    pub(super) fn classes<'b>(
        &mut self,
        blocks: impl Iterator<Item = &'b Block>,
    ) -> (Vec<ClassData>, u64) {
        let Some(classes) = &mut self.classes else { return (Vec::new(), 0) };
        let (mut sums, mut looked) = (HashMap::<String, Sum>::new(), 0);
        for b in blocks.take(self.rest as usize) {
            looked += 1;
            let Some(class) = classes.of_block(b.address) else { continue };
            match sums.get_mut(class) {
                Some(sum) => sum.add(b.size),
                None => sums.entry(class.to_owned()).or_default().add(b.size),
            }
        }
        self.rest -= looked;
        let named = |(class, sum): (String, Sum)| ClassData { class: demangled(&class), sum };
        let mut all: Vec<_> = sums.into_iter().map(named).collect();
        all.sort_by(|a, b| (b.sum.bytes, &a.class).cmp(&(a.sum.bytes, &b.class)));
        (all, looked)
    }

    /// Returns how a block from before the attach begins, if that may be shown: as text if it is that, else in hexadecimal.
    pub(super) fn content(&self, b: &Block) -> Option<String> {
        let reader = self.reader.as_ref().filter(|_| b.group == BEFORE)?;
        let mut bytes = [0; CONTENT];
        let want = &mut bytes[..(b.size as usize).min(CONTENT)];
        let n = reader.read(b.address, want);
        let bytes = &bytes[..n];
        let text = bytes.split(|c| *c == 0).next().unwrap_or_default();
        let is_text = text.len() >= TEXT && text.iter().all(|c| (b' '..=b'~').contains(c));
        match is_text {
            true => Some(format!("{:?}", String::from_utf8_lossy(text))),
            false => {
                let words = bytes.chunks(4).map(|w| w.iter().map(|b| format!("{b:02x}")).collect());
                Some(words.collect::<Vec<String>>().join(" ")).filter(|s| !s.is_empty())
            }
        }
    }
}
