//! The frames of threads' stacks that pointers stand in.

use crate::pass::Scanner;
use crate::threads::ThreadLook;
use crate::word::{Pointers, WORD};
use prof_graph::{Edges, NONE, Root, RootEdge, Table};
use prof_inject::RemoteMemory;
use prof_inject::process::elf;
use prof_inject::stopped::stack_frames::StackFrames;
use prof_inject::stopped::walk::Walker;
use prof_os::Pid;
use prof_os::maps;
use std::collections::HashMap;

/// Frames of all threads together, at most: some seconds of work.
const MOST: usize = 1 << 20;

/// The frames of threads, and how many threads have some that are not known.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    /// For each thread its frames.
    all: Vec<StackFrames>,
    /// Number of stacks that were not followed to their start.
    pub cut: u64,
}

impl Scanner {
    /// Follows the stacks of threads, by what was copied of each in the moment in which it was looked at.
    pub(crate) fn frames(&self, looks: &[ThreadLook]) -> Frames {
        let pid = self.reader.pid();
        let nothing = || Frames { all: Vec::new(), cut: looks.len() as u64 };
        let (Ok(mem), Ok(maps)) = (RemoteMemory::open(pid), maps::of(pid)) else {
            return nothing();
        };
        let mut walker = Walker::new(&mem, elf::modules(&mem, &maps), maps);
        let (mut found, mut room) = (Frames::default(), MOST);
        for look in looks {
            let room_now = if self.is_late() { 0 } else { room };
            let (at, bytes) = &look.stack;
            let frames = walker.stack_frames(&look.state.regs, (*at, bytes), room_now);
            room -= frames.count();
            found.cut += u64::from(!frames.is_whole());
            found.all.push(frames);
        }
        found
    }
}

/// Gives the pointers that stand in known frames to these, and adds those in registers.
pub(crate) fn assign(
    edges: &mut Edges,
    (table, mask): (&Table, u64),
    looks: &[ThreadLook],
    frames: &Frames,
) {
    let roots = (0..).zip(&edges.roots).map(|(i, root)| (root.clone(), i));
    let mut roots = Roots { numbers: roots.collect(), edges };
    let all: Vec<(&ThreadLook, Option<&StackFrames>)> =
        looks.iter().enumerate().map(|(i, look)| (look, frames.all.get(i))).collect();
    let mut stacks: Vec<_> = all
        .iter()
        .filter_map(|(look, of)| Some((look, (*of)?)))
        .filter(|s| s.1.count() > 0)
        .collect();
    stacks.sort_by_key(|(look, _)| look.stack.0);
    let pointers = Pointers { mask, unaligned: false };
    let mut own = std::mem::take(&mut roots.edges.of_roots);
    for e in own.iter_mut().filter(|e| e.at != 0) {
        let behind = stacks.partition_point(|(look, _)| look.stack.0 <= e.at);
        let Some((look, of)) = behind.checked_sub(1).map(|i| stacks[i]) else { continue };
        if let Some(number) = of.of_word(e.at) {
            e.root = roots.frame(look.state.tid, number, of);
        }
    }
    for (look, of) in all {
        let tid = look.state.tid;
        for word in look.state.bytes.as_chunks::<WORD>().0 {
            let word = usize::from_ne_bytes(*word) as u64;
            let Some(to) = pointers.find(table, word) else { continue };
            let number = of.and_then(|of| Some((of.of_register(word)?, of)));
            let root = match number {
                Some((number, of)) => roots.frame(tid, number, of),
                None => roots.number(Root::Registers(tid)),
            };
            own.push(RootEdge { root, to, at: 0 });
        }
    }
    edges.of_roots = own;
}

/// The roots, which become more.
struct Roots<'a> {
    numbers: HashMap<Root, u32>,
    edges: &'a mut Edges,
}

impl Roots<'_> {
    fn number(&mut self, root: Root) -> u32 {
        let roots = &mut self.edges.roots;
        *self.numbers.entry(root).or_insert_with_key(|root| {
            roots.push(root.clone());
            (roots.len() - 1) as u32
        })
    }

    /// Returns the number of a frame of a thread's stack.
    fn frame(&mut self, thread: Pid, number: u32, of: &StackFrames) -> u32 {
        let stack = self.number(Root::Stack(thread));
        let Some(f) = of.get(number) else { return stack };
        let frame = self.number(Root::Frame { thread, number, pc: f.pc, exact: f.exact });
        let above = &mut self.edges.above;
        above.resize(above.len().max(frame as usize + 1), NONE);
        above[frame as usize] = stack;
        frame
    }
}
