//! Stand-in for the collector's output: keeps what `drain` and `tree` write.

use crate::pack::Packer;
use std::collections::BTreeMap;
use trace::event::{Codec, Event};
use trace::records::{NodeRun, Pcs, kind};

/// The recording so far.
#[derive(Debug, Default)]
pub(crate) struct Output {
    /// Time and stack node of the events of each thread, in the order in which they were written.
    pub events: BTreeMap<u32, Vec<(u64, u32)>>,
    /// Parent and code address id, by id.
    pub nodes: BTreeMap<u64, (u64, u64)>,
    /// Address and module, by id.
    pub pcs: BTreeMap<u64, (u64, u64)>,
}

impl Output {
    pub(crate) fn put_events(&mut self, serial: u32, start: &Codec, count: u32, bytes: &[u8]) {
        let (mut codec, mut at) = (*start, 0);
        for _ in 0..count {
            let (event, n) = codec.get(&bytes[at..]).expect("an event");
            self.events.entry(serial).or_default().push((event.time().0, event.node()));
            at += n;
        }
        assert_eq!(at, bytes.len());
    }

    pub(crate) fn takes_decoded(&self) -> bool {
        false
    }

    pub(crate) fn put_decoded(&mut self, _: u32, _: Vec<Event>, _: usize) {
        unreachable!("the models take encoded events");
    }

    /// Takes a chunk; each node and code address may come only once.
    pub(crate) fn put(&mut self, k: u16, payload: &[u8]) {
        let (to, triples) = match k {
            kind::NODE_RUN => {
                let run = NodeRun::decode(payload).expect("a run");
                (&mut self.nodes, run.nodes().expect("nodes").triples)
            }
            kind::PCS => (&mut self.pcs, Pcs::decode(payload).expect("addresses").triples),
            other => panic!("chunk kind {other}"),
        };
        for [id, a, b] in triples.as_chunks::<3>().0 {
            assert_eq!(to.insert(*id, (*a, *b)), None);
        }
    }

    /// Returns the code address id of a stack of one frame; 0: no stack.
    pub(crate) fn code(&self, node: u32) -> u32 {
        if node == 0 {
            return 0;
        }
        let (parent, code) = self.nodes[&u64::from(node)];
        assert!(parent == 0 && self.pcs.contains_key(&code));
        code as u32
    }

    /// The modelled threads make no calls that change mappings.
    pub(crate) fn put_calls(&mut self, _: u32, parts: impl Iterator<Item = trace::call::Part>) {
        assert_eq!(parts.count(), 0);
    }

    pub(crate) fn set_hurry(&mut self, _: bool) {}

    /// Returns false: packing concerns the collector alone.
    pub(crate) fn packs(&self) -> bool {
        false
    }

    pub(crate) fn packs_small(&self) -> bool {
        false
    }

    pub(crate) fn packer(&mut self, _: usize) -> &mut Packer {
        unreachable!("it does not pack")
    }

    /// Returns true, so that segments are returned within a pass, too.
    pub(crate) fn is_full(&self) -> bool {
        true
    }

    pub(crate) fn flush(&mut self) {}
}
