//! Which frame of a thread's stack a word belongs to.
//!
//! The words between the stack pointers of a function and of its caller are the function's own, but for the registers that
//! it has saved there: what these hold is a variable of one of its callers. It is that of the innermost caller that has
//! saved the register itself, as only who saves one may use it.

use crate::stopped::memory::WORD;
use crate::stopped::walk::Walker;
use prof_arch::generic::stopped::StoppedRegs;
use prof_arch::native::{FullRegs, UserRegs};
use prof_arch::unwind::RegisterSet;
use std::ops::Range;

/// Frames of one stack, at most.
const MOST: usize = 4096;

/// A frame of a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StackFrame {
    /// Address of the instruction at which the function goes on.
    pub pc: u64,
    /// Whether that instruction was interrupted. Otherwise it stands behind a call.
    pub exact: bool,
    /// The stack pointer.
    sp: u64,
    /// Whether the kernel has made the frame, to call a signal handler.
    is_signal: bool,
}

/// The frames of a thread's stack, the innermost first.
#[derive(Clone, Debug, Default)]
pub struct StackFrames {
    frames: Vec<StackFrame>,
    /// The memory that is known to belong to frames.
    known: Range<u64>,
    /// Whether the frames lead to the thread's start.
    is_whole: bool,
    /// Words with saved registers, in order, and the frames that these belong to; `None`: it is not known which.
    saved: Vec<(u64, Option<u32>)>,
    /// Values of the thread's preserved registers, and the frames that they belong to.
    registers: Vec<(u64, Option<u32>)>,
}

impl StackFrames {
    /// Returns a frame by its number: the innermost is 0.
    #[must_use]
    pub fn get(&self, number: u32) -> Option<&StackFrame> {
        self.frames.get(number as usize)
    }

    /// Returns the number of frames.
    #[must_use]
    pub fn count(&self) -> usize {
        self.frames.len()
    }

    /// Returns whether the frames lead to the thread's start.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// Returns the number of the frame that the word at an address belongs to; `None`: to none that is known.
    #[must_use]
    pub fn of_word(&self, address: u64) -> Option<u32> {
        if !self.known.contains(&address) {
            return None;
        }
        if let Ok(i) = self.saved.binary_search_by_key(&address, |s| s.0) {
            return self.saved[i].1;
        }
        let behind = self.frames.partition_point(|f| f.sp <= address);
        self.variables_in(behind.saturating_sub(1))
    }

    /// Returns the number of the frame that a register with this value belongs to; `None`: it is not known. Where a function
    /// has handed a pointer on, that is the caller that still has it.
    #[must_use]
    pub fn of_register(&self, value: u64) -> Option<u32> {
        let preserved = self.registers.iter().filter(|r| r.0 == value).map(|r| r.1);
        preserved.max().unwrap_or_else(|| self.variables_in(0))
    }

    /// Returns the number of the frame whose variables stand in the memory of a frame: the kernel saves the registers of the
    /// function that a signal has interrupted.
    fn variables_in(&self, frame: usize) -> Option<u32> {
        let last = self.frames.len().checked_sub(1)?;
        let of = if self.frames[frame.min(last)].is_signal { frame + 1 } else { frame };
        (of <= last).then_some(of as u32)
    }
}

/// Place of the value that a preserved register had in the frame that is looked at.
#[derive(Clone, Copy)]
enum Place {
    Register,
    Word(u64),
    Unknown,
}

/// Follows preserved registers from frame to frame.
struct Preserved {
    /// For each of [`RegisterSet::PRESERVED`] where its value is.
    places: Vec<Place>,
    /// The result: see [`StackFrames`].
    saved: Vec<(u64, Option<u32>)>,
    /// For each of [`RegisterSet::PRESERVED`] the frame whose value the thread has in it.
    registers: Vec<Option<u32>>,
}

impl Preserved {
    fn new() -> Self {
        let n = FullRegs::PRESERVED.len();
        Self { places: vec![Place::Register; n], saved: Vec::new(), registers: vec![None; n] }
    }

    /// Takes what a frame's function has saved: the registers, each with the address of the word.
    fn take(&mut self, frame: u32, saved: &[(u16, u64)]) {
        for (register, at) in saved {
            let Some(i) = FullRegs::PRESERVED.iter().position(|r| r == register) else { continue };
            match std::mem::replace(&mut self.places[i], Place::Word(*at)) {
                Place::Register => self.registers[i] = Some(frame),
                Place::Word(at) => self.saved.push((at, Some(frame))),
                Place::Unknown => {}
            }
        }
    }

    /// Ends the search for the owners of all values: it is not known what the next frame's function has saved.
    fn lose(&mut self) {
        for place in &mut self.places {
            if let Place::Word(at) = std::mem::replace(place, Place::Unknown) {
                self.saved.push((at, None));
            }
        }
    }
}

impl Walker<'_> {
    /// Returns the frames of a thread that had these registers when the copy of its stack was made: an address, and the bytes
    /// from there on, which begin in front of the stack pointer. The code and its tables are read from the process. At most
    /// `most` frames are looked at.
    #[must_use]
    pub fn stack_frames(
        &mut self,
        regs: &UserRegs,
        stack: (u64, &[u8]),
        most: usize,
    ) -> StackFrames {
        let (from, bytes) = stack;
        let end = from.saturating_add(bytes.len() as u64);
        let mut read = |at: u64| {
            let i = usize::try_from(at.checked_sub(from)?).ok()?;
            let word = bytes.get(i..)?.first_chunk::<WORD>()?;
            Some(usize::from_ne_bytes(*word) as u64)
        };
        let mut full = FullRegs::from(regs);
        let sp = |regs: &FullRegs| regs.get(FullRegs::SP).unwrap_or(0);
        self.begin(full.pc);
        let mut found = StackFrames { known: from..from, ..StackFrames::default() };
        if self.is_caller_uncertain() && !regs.is_in_call() {
            return found;
        }
        let (mut exact, mut preserved, mut saved) = (true, Preserved::new(), Vec::new());
        while found.frames.len() < most.min(MOST) {
            let at = sp(&full);
            let look = if exact { full.pc } else { full.pc.wrapping_sub(1) };
            if !(found.known.end..=end).contains(&at) || self.module_of(look).is_none() {
                break;
            }
            let (number, is_signal) = (found.frames.len() as u32, self.is_sigreturn(full.pc));
            found.frames.push(StackFrame { pc: full.pc, exact, sp: at, is_signal });
            if !is_signal {
                saved.clear();
                let mut take = |register, at| saved.push((register, at));
                if self.saved_registers(&full, look, &mut read, &mut take) {
                    preserved.take(number, &saved);
                } else {
                    preserved.lose();
                }
            }
            match self.step(&full, exact, &mut read) {
                Some(_) if self.is_beside_tables() => break,
                Some(Some((next, signal))) => {
                    // A handler may run on a stack of its own.
                    if sp(&next) < at || is_signal && sp(&next) > end {
                        break;
                    }
                    found.known.end = sp(&next).min(end);
                    (full, exact) = (next, signal);
                }
                Some(None) => {
                    found.is_whole = true;
                    break;
                }
                None => break,
            }
        }
        preserved.lose();
        found.saved = preserved.saved;
        found.saved.sort_unstable();
        let values = FullRegs::from(regs);
        let values = FullRegs::PRESERVED.iter().map(|r| values.get(*r).unwrap_or(0));
        found.registers = values.zip(preserved.registers).collect();
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames(sps: &[(u64, bool)]) -> Vec<StackFrame> {
        let frame = |(sp, is_signal): &(u64, bool)| StackFrame {
            pc: 0x1000,
            exact: false,
            sp: *sp,
            is_signal: *is_signal,
        };
        sps.iter().map(frame).collect()
    }

    #[test]
    fn words_belong_to_the_frame_that_they_stand_in_unless_it_has_saved_them() {
        let plain = [(0x100, false), (0x140, false), (0x180, false)];
        let f = StackFrames {
            frames: frames(&plain),
            known: 0xc0..0x1c0,
            saved: vec![(0x130, Some(2)), (0x138, None)],
            ..StackFrames::default()
        };
        // Below the stack pointer is what the innermost function may use without moving it.
        for (at, frame) in [
            (0xb8, None),
            (0xc0, Some(0)),
            (0x100, Some(0)),
            (0x128, Some(0)),
            (0x130, Some(2)),
            (0x138, None),
            (0x140, Some(1)),
            (0x1b8, Some(2)),
            (0x1c0, None),
        ] {
            assert_eq!(f.of_word(at), frame, "{at:#x}");
        }
        assert_eq!(StackFrames::default().of_word(0), None);
        assert_eq!(StackFrames::default().of_register(5), None);
        // The registers that the kernel has saved for a handler are variables of the function that was interrupted.
        let signal = [(0x100, false), (0x140, true), (0x180, false)];
        let f = StackFrames { frames: frames(&signal), ..f };
        assert_eq!((f.of_word(0x150), f.of_word(0x190)), (Some(2), Some(2)));
        let f = StackFrames { frames: frames(&signal[..2]), ..f };
        assert_eq!(f.of_word(0x150), None);
    }

    #[test]
    fn a_preserved_register_is_a_variable_of_the_innermost_caller_that_has_saved_it() {
        let [first, second] = [FullRegs::PRESERVED[0], FullRegs::PRESERVED[1]];
        let mut p = Preserved::new();
        // The innermost function has saved the first, its caller's caller both, and that one's caller the first again.
        p.take(0, &[(first, 0x108), (u16::MAX, 0x110)]);
        p.take(2, &[(first, 0x208), (second, 0x210)]);
        p.take(3, &[(first, 0x308)]);
        p.lose();
        p.take(4, &[(first, 0x408), (second, 0x410)]);
        p.saved.sort_unstable();
        assert_eq!(p.saved, [(0x108, Some(2)), (0x208, Some(3)), (0x210, None), (0x308, None)]);
        assert_eq!(p.registers[..3], [Some(0), Some(2), None]);
        // Of several that have a pointer, the outermost has it longest; other registers are the innermost function's.
        let f = StackFrames {
            frames: frames(&[(0x100, false), (0x140, false)]),
            registers: vec![(7, Some(0)), (7, Some(1)), (7, None), (8, None)],
            ..StackFrames::default()
        };
        assert_eq!([7, 8, 9].map(|value| f.of_register(value)), [Some(1), None, Some(0)]);
    }
}
