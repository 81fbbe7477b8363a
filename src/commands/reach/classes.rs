//! Looks into unreachable blocks: names their C++ classes, and shows their first bytes.

use super::before::BEFORE;
use crate::classes;
use prof_analyze::objects::ObjectData;
use prof_analyze::symbols::class_name;
use prof_os::Pid;
use prof_os::memory::Reader;
use prof_scan::{Block, Classes};

/// Bytes of a block's content that are shown, and characters that make it text.
const CONTENT: usize = 32;
const TEXT: usize = 4;

/// Looks into the blocks of a process.
pub(super) struct Looker {
    reader: Option<Reader>,
    classes: Option<Classes>,
}

impl Looker {
    /// Opens the memory of process `pid`. `content`: what blocks from before the attach begin with may be shown.
    pub(super) fn new(pid: Pid, content: bool) -> Self {
        let reader = Some(pid).filter(|_| content).and_then(|pid| Reader::open(pid).ok());
        Self { reader, classes: Classes::open(pid) }
    }

    /// Returns the class of the object that a block begins with.
    pub(super) fn class(&mut self, block: &Block) -> Option<String> {
        self.classes.as_mut()?.of_block(block.address).map(class_name)
    }

    /// Returns the classes of some blocks, those of most bytes first.
    pub(super) fn classes<'b>(
        &mut self,
        blocks: impl Iterator<Item = &'b Block>,
    ) -> Vec<ObjectData> {
        let blocks = blocks.map(|b| (b.address, b.size));
        self.classes.as_mut().map_or_else(Vec::new, |c| classes::of(c, blocks))
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
