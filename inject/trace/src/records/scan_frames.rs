//! Frames of threads' stacks in a scan.

use super::scan::ScanRoots;
use std::string::String;
use std::vec::Vec;

/// Number of integers of a frame in [`ScanRoots::frames`].
const FRAME: usize = 8;

/// A frame of a thread's stack, which is a part of a root.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScanFrame {
    /// Number of the root that the stack is.
    pub root: u32,
    /// Number of the frame, counted from the innermost, which is 0.
    pub number: u32,
    /// Address of the instruction at which the function goes on.
    pub address: u64,
    /// Name for people.
    pub name: String,
    /// Name of the function.
    pub function: Option<String>,
    /// Program or library that the function is in.
    pub module: Option<String>,
    /// Source file of the instruction.
    pub file: Option<String>,
    /// Line in it; 0: it is not known.
    pub line: u32,
}

impl ScanRoots {
    /// Appends a frame.
    pub fn put_frame(&mut self, f: &ScanFrame) {
        let name = self.index(Some(&f.name));
        let (function, module) =
            (self.index(f.function.as_deref()), self.index(f.module.as_deref()));
        let (file, line) = (self.index(f.file.as_deref()), f.line.into());
        let (root, number) = (f.root.into(), f.number.into());
        self.frames.extend([root, number, f.address, name, function, module, file, line]);
    }

    /// Returns the frames; `None` if the lists do not belong together.
    pub fn all_frames(&self) -> Option<Vec<ScanFrame>> {
        let (frames, rest) = self.frames.as_chunks::<FRAME>();
        let frame = |f: &[u64; FRAME]| {
            Some(ScanFrame {
                root: u32::try_from(f[0]).ok()?,
                number: u32::try_from(f[1]).ok()?,
                address: f[2],
                name: self.text(f[3])?.unwrap_or_default(),
                function: self.text(f[4])?,
                module: self.text(f[5])?,
                file: self.text(f[6])?,
                line: u32::try_from(f[7]).ok()?,
            })
        };
        if !rest.is_empty() {
            return None;
        }
        frames.iter().map(frame).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::scan::{ScanPointer, ScanPointers, ScanRoot, root_kind};
    use super::*;
    use crate::ticks::Ticks;
    use crate::wire::Writer;
    use std::vec;

    #[test]
    fn frames_come_back_and_builds_that_do_not_know_them_read_the_rest() {
        let stack = ScanRoot { kind: root_kind::STACK, thread: Some(9), ..ScanRoot::default() };
        let frame = ScanFrame {
            root: 4,
            number: 3,
            address: 0x1234,
            name: "stack of thread 9, in f (frame 3)".into(),
            function: Some("f".into()),
            module: Some("/bin/x".into()),
            file: Some("x.c".into()),
            line: 7,
        };
        let mut r = ScanRoots { ticks: Ticks(5), ..ScanRoots::default() };
        r.put(&stack);
        // A build without frames writes these bytes.
        let mut w = Writer::default();
        w.int(5);
        for list in [&r.roots[..], &[], &[]] {
            w.int(list.len() as u64);
            list.iter().for_each(|n| _ = w.int(*n));
        }
        let old = ScanRoots::decode(&w.bytes).expect("roots");
        assert_eq!(old.all_frames(), Some(vec![]));
        let bare = ScanFrame { root: 4, ..ScanFrame::default() };
        r.put_frame(&frame);
        r.put_frame(&bare);
        let mut r = ScanRoots::decode(&r.encode()).expect("roots");
        assert_eq!((r.all(), r.all_frames()), (Some(vec![stack]), Some(vec![frame, bare])));
        r.frames.pop();
        assert_eq!(r.all_frames(), None);
        let of = |frame| ScanPointer { root: 4, to: 1, at: 8, frame };
        let pointers = [of(Some(0)), of(None), of(Some(7))];
        let mut p = ScanPointers::default();
        p.put(&pointers);
        let mut p = ScanPointers::decode(&p.encode()).expect("pointers");
        assert_eq!(p.all().as_deref(), Some(&pointers[..]));
        p.frames.pop();
        assert_eq!(p.all(), None);
        p.frames.clear();
        assert_eq!(p.all().map(|all| all.iter().all(|p| p.frame.is_none())), Some(true));
    }
}
