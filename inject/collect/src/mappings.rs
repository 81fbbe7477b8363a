//! Follows the target's mappings from one look to the next, and writes only what has changed.

use crate::calls::device;
use prof_os::maps::Map;
use prof_trace::records::{MAPPINGS_ANEW, MappingLine, MappingUse, Mappings, USAGE_ANEW, perms};
use prof_trace::ticks::Ticks;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Greatest number of names that are remembered. With more the list begins anew, so that a target that gives its
/// mappings ever new names does not make the collector grow.
const MOST_NAMES: usize = 1 << 18;
/// Shortest and longest interval between two looks at the list of mappings.
const GAP: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));
/// A look at the list takes at most one of this many parts of the time.
pub(crate) const PART: u32 = 250;

/// The use of an address range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Used {
    pub start: u64,
    pub end: u64,
    pub of: MappingUse,
}

/// The mappings as they were written last.
#[derive(Debug)]
pub(crate) struct Mapped {
    lines: Vec<MappingLine>,
    names: HashMap<Vec<u8>, u64>,
    used: Vec<Used>,
    /// Starts of used ranges that were not in the list when their use was written, in the order of addresses. A reader may
    /// have dropped their use, so it is written again.
    unlisted: Vec<u64>,
    ours: Vec<(u64, u64)>,
    stacks: Vec<(u64, u64, u64)>,
    /// Whether nothing has been written yet.
    new: bool,
    gap: Duration,
}

impl Mapped {
    /// Creates a list that has not been written.
    pub(crate) fn new() -> Self {
        Self {
            lines: Vec::new(),
            names: HashMap::new(),
            used: Vec::new(),
            unlisted: Vec::new(),
            ours: Vec::new(),
            stacks: Vec::new(),
            new: true,
            gap: GAP.0,
        }
    }

    /// Returns whether the next look at the list is due, given when the last one ended and how long it took: soon after
    /// a change, and later and later while nothing changes.
    pub(crate) fn is_due(&self, last: Instant, took: Duration) -> bool {
        last.elapsed() >= self.gap.max(took * PART)
    }

    /// Compares a list of mappings with the last one. Returns the changes, if there are any.
    pub(crate) fn look(
        &mut self,
        all: &[Map],
        ours: &[(u64, u64)],
        begun: Ticks,
        ticks: Ticks,
    ) -> Option<Mappings> {
        let mut out = Mappings { begun, ticks, ..Mappings::default() };
        if self.new || self.names.len() > MOST_NAMES {
            out.flags = MAPPINGS_ANEW;
            self.names.clear();
            self.lines.clear();
            self.ours.clear();
        }
        let mut now = Vec::with_capacity(all.len());
        let (mut last, mut gone, mut old) = (0, 0, self.lines.iter().peekable());
        let mut leave = |start: u64, out: &mut Mappings| {
            out.gone.push(start.wrapping_sub(gone));
            gone = start;
        };
        for m in all {
            let line = line(m, &mut self.names, &mut out.names);
            while let Some(o) = old.next_if(|o| o.start < line.start) {
                leave(o.start, &mut out);
            }
            match old.next_if(|o| o.start == line.start) {
                Some(o) if *o == line => {}
                o => {
                    o.iter().for_each(|o| leave(o.start, &mut out));
                    out.put(&line, &mut last);
                }
            }
            now.push(line);
        }
        old.for_each(|o| leave(o.start, &mut out));
        self.lines = now;
        if self.ours != ours {
            out.ours = ours.iter().flat_map(|o| [o.0, o.1]).collect();
            self.ours = ours.to_vec();
        }
        let changed = !(out.new.is_empty() && out.gone.is_empty());
        self.gap = if changed { GAP.0 } else { (self.gap * 2).min(GAP.1) };
        let write = changed || self.new || !out.ours.is_empty();
        self.new = false;
        write.then_some(out)
    }

    /// Compares the use of memory, counted at `ticks`, with what was written last; both lists are in the order of
    /// addresses. Returns the changes.
    pub(crate) fn count(
        &mut self,
        used: Vec<Used>,
        stacks: Vec<(u64, u64, u64)>,
        begun: Ticks,
        ticks: Ticks,
    ) -> Mappings {
        let mut out =
            Mappings { begun, ticks, usage_ticks: ticks.max(Ticks(1)), ..Mappings::default() };
        if self.used.is_empty() {
            out.flags = USAGE_ANEW;
        }
        let (mut last, mut old) = (0, self.used.iter().peekable());
        let none = MappingUse::default();
        for u in used.iter().filter(|u| u.of != none) {
            while old.next_if(|o| o.end <= u.start).is_some() {}
            let same = old.peek().is_some_and(|o| *o == u);
            if !same || self.unlisted.binary_search(&u.start).is_ok() {
                out.put_usage(u.start, u.end, &u.of, &mut last);
            }
        }
        // A range that is not used any more is written once, with zeroes.
        let (mut zeroes, mut at) = (Mappings::default(), used.iter().peekable());
        let mut last_zero = 0;
        for o in &self.used {
            while at.next_if(|u| u.end <= o.start).is_some() {}
            let now = at.peek().filter(|u| u.start < o.end);
            if o.of != none && now.is_some_and(|u| u.of == none) {
                zeroes.put_usage(o.start, o.end, &none, &mut last_zero);
            }
        }
        if !zeroes.usage.is_empty() {
            // The first difference counts from the last range before.
            zeroes.usage[0] = zeroes.usage[0].wrapping_sub(last);
            out.usage.append(&mut zeroes.usage);
        }
        let unlisted = used.iter().filter(|u| u.of != none && !self.is_listed(u));
        self.unlisted = unlisted.map(|u| u.start).collect();
        self.used = used;
        if self.stacks != stacks {
            out.stacks = stacks.iter().flat_map(|s| [s.0, s.1, s.2]).collect();
            self.stacks = stacks;
        }
        out
    }

    /// Returns whether the last list has a mapping in a range. One that was made since is known only from its use.
    fn is_listed(&self, u: &Used) -> bool {
        let i = self.lines.partition_point(|l| l.end <= u.start);
        self.lines.get(i).is_some_and(|l| l.start < u.end)
    }
}

/// Converts a mapping, and gives its name a number.
fn line(m: &Map, names: &mut HashMap<Vec<u8>, u64>, new: &mut Vec<String>) -> MappingLine {
    let bits = [
        (m.read, perms::READ),
        (m.write, perms::WRITE),
        (m.exec, perms::EXECUTE),
        (m.shared, perms::SHARED),
    ];
    let name = match names.get(&m.name) {
        _ if m.name.is_empty() => 0,
        Some(n) => *n,
        None => {
            let n = names.len() as u64 + 1;
            names.insert(m.name.clone(), n);
            new.push(m.text().into_owned());
            n
        }
    };
    MappingLine {
        start: m.start.0,
        end: m.end.0,
        perms: bits.iter().filter(|b| b.0).fold(0, |all, b| all | b.1),
        offset: m.offset,
        device: device(m),
        inode: m.inode,
        name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prof_os::maps::parse;

    const FIRST: &str = "\
1000-3000 r-xp 00001000 fe:01 1234 /opt/x
5000-9000 rw-p 00000000 00:00 0 [heap]
a000-b000 rw-s 00000000 00:01 7 /dev/zero (deleted)
";
    const SECOND: &str = "\
1000-3000 r-xp 00001000 fe:01 1234 /opt/x
5000-a000 rw-p 00000000 00:00 0 [heap]
f000-10000 rw-p 00000000 00:00 0 [anon:a]
";

    #[test]
    fn only_changes_are_written() {
        let mut m = Mapped::new();
        let first = m.look(&parse(FIRST.as_bytes()), &[(1, 2)], Ticks(10), Ticks(20)).expect("all");
        assert_eq!((first.flags, first.begun, first.ticks), (MAPPINGS_ANEW, Ticks(10), Ticks(20)));
        assert_eq!(first.names, ["/opt/x", "[heap]", "/dev/zero (deleted)"]);
        let lines: Vec<_> = first.lines().collect();
        assert_eq!(lines.len(), 3);
        let zero = lines[2];
        assert_eq!((zero.perms, zero.device, zero.inode, zero.name), (11, 1, 7, 3));
        assert_eq!((lines[0].perms, lines[0].device, lines[0].offset), (5, 0xfe << 32 | 1, 0x1000));
        assert_eq!(first.ours, [1, 2]);
        assert_eq!(m.look(&parse(FIRST.as_bytes()), &[(1, 2)], Ticks(30), Ticks(40)), None);
        let second =
            m.look(&parse(SECOND.as_bytes()), &[(1, 2)], Ticks(50), Ticks(60)).expect("changes");
        assert_eq!((second.flags, second.ours.len()), (0, 0));
        assert_eq!(second.gone_starts().collect::<Vec<_>>(), [0x5000, 0xa000]);
        let new: Vec<_> = second.lines().map(|l| (l.start, l.end, l.name)).collect();
        assert_eq!(new, [(0x5000, 0xa000, 2), (0xf000, 0x1_0000, 4)]);
        assert_eq!(second.names, ["[anon:a]"]);
    }

    #[test]
    fn looks_are_rare_while_nothing_changes_and_where_they_are_dear() {
        let mut m = Mapped::new();
        let all = parse(FIRST.as_bytes());
        m.look(&all, &[], Ticks(0), Ticks(0));
        let ago = |ms| Instant::now() - Duration::from_millis(ms);
        assert!(m.is_due(ago(110), Duration::ZERO));
        assert!(!m.is_due(ago(110), Duration::from_millis(1)));
        for _ in 0..5 {
            m.look(&all, &[], Ticks(0), Ticks(0));
        }
        assert!(!m.is_due(ago(900), Duration::ZERO));
        assert!(m.is_due(ago(1000), Duration::ZERO));
        m.look(&parse(SECOND.as_bytes()), &[], Ticks(0), Ticks(0));
        assert!(m.is_due(ago(110), Duration::ZERO));
    }

    #[test]
    fn use_is_written_when_it_changes_and_when_it_ends() {
        let used = |start, rss| {
            let of = MappingUse { rss, ..MappingUse::default() };
            Used { start, end: start + 0x1000, of }
        };
        let mut m = Mapped::new();
        let all = parse(b"1000-6000 rw-p 00000000 00:00 0 \n");
        m.look(&all, &[], Ticks(0), Ticks(0));
        let first = m.count(
            vec![used(0x1000, 5), used(0x3000, 0), used(0x5000, 7)],
            vec![(1, 2, 3)],
            Ticks(1),
            Ticks(2),
        );
        assert_eq!((first.flags, first.usage_ticks), (USAGE_ANEW, Ticks(2)));
        let of = |m: &Mappings| m.uses().map(|u| (u.0, u.2.rss)).collect::<Vec<_>>();
        assert_eq!(of(&first), [(0x1000, 5), (0x5000, 7)]);
        assert_eq!(first.stacks, [1, 2, 3]);
        let second = m.count(
            vec![used(0x1000, 5), used(0x3000, 1), used(0x5000, 0)],
            vec![(1, 2, 3)],
            Ticks(3),
            Ticks(4),
        );
        assert_eq!((second.flags, second.stacks.len()), (0, 0));
        assert_eq!(of(&second), [(0x3000, 1), (0x5000, 0)]);
        // A mapping that is gone needs no zero: the list says that it is gone.
        let third = m.count(vec![used(0x1000, 5)], vec![], Ticks(5), Ticks(6));
        assert_eq!(of(&third), []);
    }

    #[test]
    fn use_of_a_mapping_that_is_not_listed_yet_is_written_again() {
        let of = MappingUse { rss: 5, ..MappingUse::default() };
        let used = || vec![Used { start: 0x8000, end: 0x9000, of }];
        let mut m = Mapped::new();
        m.look(&parse(FIRST.as_bytes()), &[], Ticks(1), Ticks(1));
        m.look(&parse(b"1000-3000 r-xp 00001000 fe:01 1234 /opt/x\n"), &[], Ticks(2), Ticks(2));
        let count = |m: &mut Mapped| m.count(used(), vec![], Ticks(3), Ticks(4)).uses().count();
        assert_eq!((count(&mut m), count(&mut m)), (1, 1));
        m.look(&parse(FIRST.as_bytes()), &[], Ticks(5), Ticks(6));
        assert_eq!((count(&mut m), count(&mut m)), (1, 0));
    }
}
