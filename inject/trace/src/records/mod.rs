//! Chunks of a recording, as values.

#[macro_use]
mod define; // first: the modules below use its macro

mod added;
mod allocators;
mod calls;
mod census;
mod events;
mod fold;
mod hooks;
pub mod kind;
mod mappings;
mod memory;
mod scan;
mod scan_frames;
mod stacks;
mod steps;
mod target;

pub use crate::call::CallKind;
pub use added::*;
pub use allocators::*;
pub use calls::*;
pub use census::*;
pub use events::*;
pub use fold::*;
pub use hooks::*;
pub use mappings::*;
pub use memory::*;
pub use scan::*;
pub use scan_frames::*;
pub use stacks::*;
pub use steps::*;
pub use target::*;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::Capture;
    use crate::ticks::Ticks;
    use std::vec;

    #[test]
    fn what_an_earlier_prof_says_of_memory_is_read() {
        let new = Memory { ticks: Ticks(5), rss: 7, heaps: vec![1, 2, 3], ..Memory::default() };
        let bytes = new.encode();
        // The encoding ends with lists and an integer, a byte each, that older versions lack.
        for less in 1..=5 {
            assert_eq!(Memory::decode(&bytes[..bytes.len() - less]), Some(new.clone()));
        }
        assert_eq!(Memory::decode(&bytes), Some(new));
    }

    #[test]
    fn a_command_is_its_arguments_without_what_titles_leave() {
        let mut t = Target { exe: "/bin/x".into(), ..Default::default() };
        assert_eq!(t.command(), "/bin/x");
        t.cmdline = vec!["nginx: worker process   ".into(), "".into()];
        assert_eq!(t.command(), "nginx: worker process");
        t.cmdline = vec!["x".into(), " y".into()];
        assert_eq!(t.command(), "x  y");
    }

    #[test]
    fn records_come_back_and_bad_ones_do_not() {
        let t = Target {
            pid: 7,
            exe: "/bin/x".into(),
            cmdline: vec!["x".into(), "".into()],
            wall_ns: u64::MAX,
            ..Default::default()
        };
        let bytes = t.encode();
        assert_eq!(Target::decode(&bytes), Some(t));
        // The last seven fields, one byte each here, may be missing.
        let old = bytes.len() - 7;
        for cut in 0..old {
            assert_eq!(Target::decode(&bytes[..cut]), None);
        }
        let from_old = Target::decode(&bytes[..old]).expect("an old target");
        assert_eq!(from_old.capture(), Capture::default());
        let sampled = Target { sample_bytes: 1 << 19, max_size: u64::MAX, ..from_old };
        let bytes = sampled.encode();
        assert_eq!(Target::decode(&bytes), Some(sampled));
        assert_eq!(Target::decode(&bytes[..bytes.len() - 4]), None);
        let h = Hooks {
            hooked: vec![Hook { index: 1, function: "malloc".into(), ..Default::default() }],
            not_hooked: vec![NotHooked { reason: "too short".into(), ..Default::default() }],
        };
        assert_eq!(Hooks::decode(&h.encode()), Some(h));
        assert_eq!(Hooks::decode(&[0xff, 0xff, 0xff, 0xff, 0x0f]), None);
        assert_eq!(Nodes::decode(&[0xff, 0xff, 0xff, 0xff, 0x0f]), None);
        let n = Nodes { triples: vec![1, 0, 3, 2, 1, 4] };
        assert_eq!(Nodes::decode(&n.encode()), Some(n));
        let mut run = NodeRun::default();
        assert_eq!(run.nodes(), Some(Nodes::default()));
        let triples = [7, 0, 3, 8, 7, u32::MAX, 9, 0, 1, 10, 1, 300];
        triples.as_chunks::<3>().0.iter().for_each(|t| run.push(t[0], t[1], t[2]));
        let nodes = NodeRun::decode(&run.encode()).and_then(|r| r.nodes()).expect("nodes");
        assert_eq!(nodes.triples, triples.map(u64::from));
        let bad = |first, pairs: &[u8]| NodeRun { first, pairs: pairs.into() }.nodes();
        assert_eq!((bad(1, &[2, 1]), bad(1, &[0])), (None, None), "a parent below 0, half a pair");
        assert_eq!(bad(u32::MAX, &[1, 1, 1, 1]), None, "an id that is too high");
    }
}
