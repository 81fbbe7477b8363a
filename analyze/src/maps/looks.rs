//! Puts the collector's looks at the mappings into the model.
//!
//! A look shows what the kernel has, not how it came about. Where it differs from the model, the model is corrected: a
//! new address range is a mapping that was seen, not caught; one that the kernel has merged with a mapping beside it is
//! that mapping, grown, as nobody can tell it from one that `mremap` or `brk` has made longer.

use super::calls::{self, PageSizes, What};
use super::past::Past;
use super::table::{Live, Of, Table, When};
use super::totals::{Course, Totals};
use super::usage_history;
use super::{Kind, Map, Maps, Perms, Usage};
use crate::load::CallReader;
use prof_trace::records::{
    MAPPINGS_ANEW, MappingLine, MappingUse, Mappings, USAGE_ANEW, perms as bits,
};
use prof_trace::ticks::Ticks;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Reads the looks in the order of the recording.
pub(super) struct Looks<'a> {
    table: Table,
    /// Mappings that have ended.
    past: Past<Map>,
    names: Vec<Arc<str>>,
    /// The kernel's list, by start, and when its last reading began.
    lines: BTreeMap<u64, MappingLine>,
    listed: Ticks,
    /// The use of address ranges, by start.
    used: BTreeMap<u64, (u64, MappingUse)>,
    /// Used address ranges that were not in the list when their use was counted.
    early: Vec<(u64, u64)>,
    ours: Vec<(u64, u64)>,
    /// prof's ranges as the chunk before the last list had them: a detach takes them from the list in the same look
    /// in which they end.
    ours_before: Vec<(u64, u64)>,
    stacks: Vec<(u64, u64, u64)>,
    /// The stacks before the look that is taken.
    stacks_before: Vec<(u64, u64, u64)>,
    course: Course,
    looks: u64,
    /// Use has been counted.
    counted: bool,
    /// Sums of the last moment.
    total: Totals,
    /// Bytes of all lines but prof's own.
    space: u64,
    /// Recorded calls that have not been applied.
    events: CallReader<'a>,
    page: PageSizes,
    /// Ranges that calls have changed since the last look at them.
    open: Vec<(u64, u64)>,
    /// Number of calls since ranges were joined.
    unjoined: usize,
    /// Files that code is mapped of: device and inode.
    code: BTreeSet<(u64, u64)>,
    /// Time in ticks for which a look may not show yet what a recorded call does.
    slack: u64,
}

fn perms(of: u64) -> Perms {
    let has = |bit: u64| of & bit != 0;
    Perms {
        read: has(bits::READ),
        write: has(bits::WRITE),
        execute: has(bits::EXECUTE),
        shared: has(bits::SHARED),
    }
}

/// Returns whether two mappings are of one file, and at the same place of it, given the properties at one address.
fn is_same(a: &Of, b: &Of) -> bool {
    let file = a.device == b.device && a.inode == b.inode;
    file && (a.inode == 0 || a.offset == b.offset) && a.perms.shared == b.perms.shared
}

/// Returns the name without the kernel's mark of a file that was deleted.
fn plain(name: &str) -> &str {
    name.strip_suffix(" (deleted)").unwrap_or(name)
}

impl<'a> Looks<'a> {
    /// Creates the model, given the recorded calls, the sizes of pages, and for how many ticks a look may not show yet
    /// what a call does.
    pub(super) fn new(events: CallReader<'a>, page: PageSizes, slack: u64) -> Self {
        Self {
            table: Table::default(),
            past: Past::default(),
            names: vec!["".into()],
            lines: BTreeMap::new(),
            listed: Ticks::ZERO,
            used: BTreeMap::new(),
            early: Vec::new(),
            ours: Vec::new(),
            ours_before: Vec::new(),
            stacks: Vec::new(),
            stacks_before: Vec::new(),
            course: Course::default(),
            looks: 0,
            counted: false,
            total: Totals::default(),
            space: 0,
            events,
            page,
            open: Vec::new(),
            unjoined: 0,
            code: BTreeSet::new(),
            slack,
        }
    }

    /// Applies the recorded calls up to a moment. Returns the ranges that those changed that came not before `since`.
    fn apply(&mut self, since: Ticks, until: Ticks) -> Vec<(u64, u64)> {
        let mut late = Vec::new();
        while let Some(e) = self.events.next_until(until) {
            let Some(e) = calls::changes(&e, self.page) else { continue };
            let when = When { ticks: e.source.ticks, source: Some(e.source) };
            let ranges = self.change(&e.what, when);
            self.put_away();
            let to = if e.source.ticks >= since { &mut late } else { &mut self.open };
            to.extend(ranges);
            self.unjoined += 1;
            if self.unjoined >= MANY_RANGES {
                self.unjoined = 0;
                join(&mut late);
                join(&mut self.open);
            }
        }
        late
    }

    /// Puts away the mappings that have ended.
    fn put_away(&mut self) {
        let Self { table, past, ours, ours_before, stacks, stacks_before, .. } = self;
        table.take_ended(|mut m| {
            classify(&mut m, [ours, ours_before], [stacks, stacks_before]);
            past.push(&m);
        });
    }

    /// Applies a change. Returns the ranges that it is about.
    fn change(&mut self, what: &What, when: When) -> Vec<(u64, u64)> {
        match what {
            What::Map { range, of } => {
                self.table.map(range.0, range.1, of.clone(), when);
                vec![*range]
            }
            What::Unmap { range } => {
                self.table.unmap(range.0, range.1, when);
                vec![*range]
            }
            What::Detach { start } => self.table.detach(*start, when),
            What::Remap { old, new } => {
                self.table.remap(*old, *new, when);
                vec![*old, *new]
            }
            What::Copy { old, new } => {
                self.table.copy(old.0, *new, when);
                vec![*old, *new]
            }
            What::Protect { range, read, write, execute } => {
                self.table.protect(range.0, range.1, (*read, *write, *execute), when);
                vec![*range]
            }
            What::Grow { range, of } => {
                let before = self.table.live.range(..range.0).next_back();
                let before = before.filter(|(_, l)| l.end == range.0 && l.of.name == of.name);
                match before.map(|(s, l)| (*s, l.of.clone())) {
                    Some((s, b)) => self.table.grow(s, range.0, range.1, b, when),
                    None => _ = self.table.map(range.0, range.1, of.clone(), when),
                }
                vec![*range]
            }
            What::Name { range, name } => {
                self.table.split(range.0, range.1, when);
                for at in self.table.within(range.0, range.1) {
                    self.table.rename(at, name);
                }
                vec![*range]
            }
        }
    }

    /// Takes a chunk.
    pub(super) fn take(&mut self, m: &Mappings) {
        if m.flags & MAPPINGS_ANEW != 0 {
            self.names.truncate(1);
        }
        self.names.extend(m.names.iter().map(|n| Arc::from(n.as_str())));
        if !m.ours.is_empty() {
            let pairs = m.ours.as_chunks::<2>().0.iter();
            self.ours_before = std::mem::take(&mut self.ours);
            self.ours = pairs.filter(|p| p[0] < p[1]).map(|p| (p[0], p[1])).collect();
        }
        if !m.stacks.is_empty() {
            let all = m.stacks.as_chunks::<3>().0.iter();
            self.stacks_before = std::mem::take(&mut self.stacks);
            self.stacks = all.filter(|s| s[0] < s[1]).map(|s| (s[0], s[1], s[2])).collect();
            self.stacks.sort_unstable();
        }
        if m.flags & MAPPINGS_ANEW != 0 || !m.new.is_empty() || !m.gone.is_empty() {
            self.list(m);
        }
        if m.usage_ticks != Ticks::ZERO {
            self.count(m);
        }
    }

    /// Takes the changes of the list.
    fn list(&mut self, m: &Mappings) {
        let first = self.looks == 0;
        self.looks += 1;
        let late = self.apply(m.begun.saturating_sub(self.slack), m.ticks);
        let mut changed = std::mem::take(&mut self.open);
        if m.flags & MAPPINGS_ANEW != 0 {
            changed.extend(self.lines.values().map(|l| (l.start, l.end)));
            self.lines.clear();
            self.space = 0;
        }
        for start in m.gone_starts() {
            let Some(l) = self.lines.remove(&start) else { continue };
            self.space = self.space.saturating_sub(self.space_of(&l));
            changed.push((l.start, l.end));
        }
        for l in m.lines() {
            // The list of a damaged recording may have overlaps.
            let before = self.lines.range(..l.end).next_back();
            if before.is_none_or(|(_, b)| b.end <= l.start) {
                changed.push((l.start, l.end));
                self.space = self.space.saturating_add(self.space_of(&l));
                if l.inode != 0 && l.perms & bits::EXECUTE != 0 {
                    self.code.insert((l.device, l.inode));
                }
                self.lines.insert(l.start, l);
            }
        }
        changed.sort_unstable();
        let when = When { ticks: m.ticks, source: None };
        let mut at = 0;
        for (start, end) in changed {
            // Ranges that calls have changed meanwhile are compared with the next look.
            for (from, to) in without((start.max(at), end), &late) {
                self.correct(from, to, when);
            }
            at = at.max(end);
        }
        self.open = late;
        self.listed = m.begun;
        self.note_early(m.ticks);
        self.put_away();
        if first {
            let seen = self.table.maps.iter_mut().filter(|m| !m.is_caught());
            seen.for_each(|m| m.before = true);
        }
        self.total = Totals { ticks: m.ticks, address_space: self.space, ..self.total };
        self.course.push(self.total);
    }

    fn space_of(&self, l: &MappingLine) -> u64 {
        if self.is_ours(l.start, l.end) { 0 } else { l.end - l.start }
    }

    /// Returns the properties of a line at an address.
    fn of(&self, l: &MappingLine, at: u64) -> Of {
        let name = self.names.get(l.name as usize).unwrap_or(&self.names[0]).clone();
        let offset = if l.inode == 0 { 0 } else { l.offset.wrapping_add(at - l.start) };
        Of { perms: perms(l.perms), offset, device: l.device, inode: l.inode, name }
    }

    /// Makes the model agree with the list between two addresses.
    fn correct(&mut self, start: u64, end: u64, when: When) {
        let mut at = start;
        while at < end {
            let line = self.lines.range(..=at).next_back().map(|(_, l)| *l);
            let line = line.filter(|l| l.end > at);
            let next_line = self.lines.range(at + 1..).next().map_or(u64::MAX, |(s, _)| *s);
            let live = self.table.live.range(..=at).next_back();
            let live = live.filter(|(_, l)| l.end > at).map(|(s, l)| (*s, l.clone()));
            let next_live = self.table.live.range(at + 1..).next().map_or(u64::MAX, |(s, _)| *s);
            let to = line.map_or(next_line, |l| l.end).min(end);
            let to = live.as_ref().map_or(next_live, |(_, l)| l.end).min(to);
            match (line, live) {
                (None, None) => {}
                (None, Some(_)) => self.table.unmap(at, to, when),
                (Some(l), None) => self.add(&l, at, to, when),
                (Some(l), Some((s, live))) => self.compare(&l, at, to, s, &live, when),
            }
            at = to.max(at + 1);
        }
    }

    /// Adds an address range of a line in which the model has nothing.
    fn add(&mut self, l: &MappingLine, at: u64, to: u64, when: When) {
        let of = self.of(l, at);
        // The kernel has merged it with what is beside it in the same line.
        let before = self.table.live.range(..at).next_back();
        let before = before.filter(|(_, b)| b.end == at && at > l.start);
        let before = before.map(|(s, b)| (*s, b.of.clone()));
        if let Some((s, b)) = before {
            let here = b.later(at - s);
            if is_same(&here, &of) && here.perms == of.perms {
                return self.table.grow(s, at, to, Of { name: of.name, ..b }, when);
            }
        }
        let after = self.table.live.get(&to).filter(|_| to < l.end).map(|a| a.of.clone());
        if after.is_some_and(|a| is_same(&a, &self.of(l, to)) && a.perms == of.perms) {
            return self.table.grow(to, at, to, of, when);
        }
        self.table.map(at, to, of, when);
    }

    /// Compares a range of a line with the region at `s` that the model has there.
    fn compare(&mut self, l: &MappingLine, at: u64, to: u64, s: u64, live: &Live, when: When) {
        let (now, was) = (self.of(l, at), live.of.later(at - s));
        let renamed = now.name != was.name;
        // Memory of one name that begins to be of another is another mapping, unless a name is given or taken away.
        let other = renamed && now.inode == 0 && !is_alike(&now.name, &was.name);
        // A recorded call does not always say which file it maps.
        let caught = self.table.maps[live.map as usize].is_caught();
        if caught && was.inode == 0 && was.name.is_empty() && now.inode != 0 {
            return self.table.identify(s, &now, at - s);
        }
        if !is_same(&now, &was) || other {
            self.table.map(at, to, now, when);
            return;
        }
        if now.perms != was.perms {
            let p = now.perms;
            self.table.protect(at, to, (p.read, p.write, p.execute), when);
        }
        if renamed {
            let name = now.name.clone();
            for at in self.table.within(at, to) {
                self.table.rename(at, &name);
            }
        }
    }

    /// Notes the use of mappings that was counted before the list showed them.
    fn note_early(&mut self, ticks: Ticks) {
        let mut changed = BTreeSet::new();
        for (start, end) in std::mem::take(&mut self.early) {
            self.touch(start, end, &mut changed);
        }
        for id in changed {
            self.note(id, ticks);
        }
    }

    /// Takes the changes of use.
    fn count(&mut self, m: &Mappings) {
        // The sums begin when use is known: until then nothing seems to be resident.
        if !std::mem::replace(&mut self.counted, true) {
            self.course.forget();
        }
        let mut changed: BTreeSet<u32> = BTreeSet::new();
        if m.flags & USAGE_ANEW != 0 {
            self.used.clear();
            changed.extend(self.table.live.values().map(|l| l.map));
        }
        // A list that was read later knows better which mappings there are; else those that it lacks have begun since.
        let is_listed_later = self.listed > m.usage_ticks;
        if !is_listed_later {
            self.drop_unlisted();
        }
        // Ranges that are not used any more come first: others may have taken their place.
        let none = MappingUse::default();
        let (empty, full): (Vec<_>, Vec<_>) = m.uses().partition(|u| u.2 == none);
        for (start, end, of) in empty.into_iter().chain(full) {
            let over: Vec<u64> = {
                let first = self.used.range(..start).next_back().filter(|(_, u)| u.0 > start);
                first.into_iter().chain(self.used.range(start..end)).map(|(s, _)| *s).collect()
            };
            for s in over {
                if let Some((e, _)) = self.used.remove(&s) {
                    self.touch(s, e, &mut changed);
                }
            }
            if of != none {
                self.used.insert(start, (end, of));
            }
            self.touch(start, end, &mut changed);
        }
        if is_listed_later {
            self.drop_unlisted();
        }
        let early = self.used.iter().filter(|(s, (e, _))| !is_listed(&self.lines, **s, *e));
        self.early = early.map(|(s, (e, _))| (*s, *e)).collect();
        for id in changed {
            self.note(id, m.usage_ticks);
        }
        self.total(m.usage_ticks);
    }

    /// Drops the use of ranges that the list does not have.
    fn drop_unlisted(&mut self) {
        let lines = &self.lines;
        self.used.retain(|s, (e, _)| is_listed(lines, *s, *e));
    }

    fn touch(&self, start: u64, end: u64, to: &mut BTreeSet<u32>) {
        to.extend(self.table.within(start, end).iter().map(|at| self.table.live[at].map));
    }

    /// Notes the use of a mapping, if it differs from what was noted last.
    fn note(&mut self, id: u32, ticks: Ticks) {
        let mut now = Usage { ticks, ..Usage::default() };
        for at in self.table.parts(id) {
            let end = self.table.live[at].end;
            now.address_space = now.address_space.saturating_add(end - at);
            let first = self.used.range(..at).next_back().filter(|(_, u)| u.0 > *at);
            for (s, (e, of)) in first.into_iter().chain(self.used.range(at..&end)) {
                let part = (*e).min(end) - (*s).max(*at);
                now.add(of, part, e - s);
            }
        }
        let live = self.table.live.len();
        let m = &mut self.table.maps[id as usize];
        let last = m.last_usage();
        if (Usage { ticks: last.ticks, ..now }) != last {
            m.peak_rss = m.peak_rss.max(now.rss);
            usage_history::push(&mut m.usage, now, live);
        }
    }

    fn is_ours(&self, start: u64, end: u64) -> bool {
        self.ours.iter().any(|o| o.0 < end && start < o.1)
    }

    /// Notes the sums of a moment.
    fn total(&mut self, ticks: Ticks) {
        let space = self.space;
        let mut t = Totals { ticks, counted: ticks, address_space: space, ..Totals::default() };
        for (s, (e, of)) in self.used.iter().filter(|(s, (e, _))| !self.is_ours(**s, *e)) {
            let live = self.table.within(*s, *e).first().map(|at| &self.table.live[at]);
            let kind = live.map_or(Kind::Anonymous, |l| self.kind(*s, *e, l));
            t.add(kind, of);
        }
        self.total = t;
        self.course.push(t);
    }

    /// Returns the kind of a region.
    fn kind(&self, start: u64, end: u64, l: &Live) -> Kind {
        match self.table.maps[l.map as usize].kind {
            Kind::Anonymous if self.stack(start, end).is_some() => Kind::Stack,
            Kind::File if self.is_data(&l.of) => Kind::Data,
            kind => kind,
        }
    }

    /// Returns whether a mapping of a file is private, and of a file that code is mapped of.
    fn is_data(&self, of: &Of) -> bool {
        !of.perms.shared && self.code.contains(&(of.device, of.inode))
    }

    /// Returns the id of the thread whose stack begins in a range.
    fn stack(&self, start: u64, end: u64) -> Option<u64> {
        Some(stack_in(&self.stacks, start, end)?.0)
    }

    /// Returns the mappings.
    pub(super) fn finish(mut self) -> Maps {
        self.apply(Ticks::MAX, Ticks::MAX);
        let Self { mut table, past, ours, stacks, code, course, looks, .. } = self;
        let (count, past_regions) = (table.count(), std::mem::take(&mut table.past));
        let mut live = table.into_live();
        live.sort_unstable_by_key(|m| m.id);
        for m in &mut live {
            classify(m, [&ours, &[]], [&stacks, &[]]);
            divide(m, &code);
        }
        Maps { live, past, past_regions, count, code, totals: course.finish(), looks }
    }
}

/// Returns whether a list, by start, has a mapping in a range.
fn is_listed(lines: &BTreeMap<u64, MappingLine>, start: u64, end: u64) -> bool {
    lines.range(..end).next_back().is_some_and(|(_, l)| l.end > start)
}

/// Number of calls after which ranges that adjoin are joined.
const MANY_RANGES: usize = 1 << 16;

/// Joins ranges that overlap or adjoin each other.
fn join(ranges: &mut Vec<(u64, u64)>) {
    ranges.sort_unstable();
    let mut joined: Vec<(u64, u64)> = Vec::new();
    for r in ranges.drain(..) {
        match joined.last_mut().filter(|l| l.1 >= r.0) {
            Some(last) => last.1 = last.1.max(r.1),
            None => joined.push(r),
        }
    }
    *ranges = joined;
}

/// Returns the id of the thread whose stack lies in a range, and how many others do: since Linux 6.13 and glibc 2.42 the
/// guards between stacks are no mappings, so that the kernel joins them.
fn stack_in(stacks: &[(u64, u64, u64)], start: u64, end: u64) -> Option<(u64, usize)> {
    let within = stacks.get(stacks.partition_point(|s| s.1 <= start)..)?;
    let others = within.partition_point(|s| s.0 < end).checked_sub(1)?;
    Some((within[0].2, others))
}

/// Says whether a mapping is prof's own, or a thread's stack.
fn classify(m: &mut Map, ours: [&[(u64, u64)]; 2], stacks: [&[(u64, u64, u64)]; 2]) {
    let last = m.regions.last();
    let (start, end) = last.map_or((0, 0), |r| (r.address, r.address.saturating_add(r.size)));
    if ours.iter().copied().flatten().any(|o| o.0 < end && start < o.1) {
        (m.ours, m.kind) = (true, Kind::Prof);
    }
    let thread = stacks.iter().find_map(|s| stack_in(s, start, end));
    let Some((tid, others)) = thread else { return };
    if m.kind == Kind::Anonymous {
        (m.kind, m.thread) = (Kind::Stack, Some(tid));
    }
    if m.name.is_empty() {
        let more = if others > 0 { format!(" and {others} more") } else { String::new() };
        m.name = format!("[stack:{tid}{more}]").into();
    }
}

/// Says whether a mapping of a file is data of a program or library: files of which code is mapped are known only at the
/// end.
pub(super) fn divide(m: &mut Map, code: &BTreeSet<(u64, u64)>) {
    let of_code = m.regions.first().is_some_and(|r| {
        r.inode != 0 && code.contains(&(u64::from(r.major) << 32 | u64::from(r.minor), r.inode))
    });
    if m.kind == Kind::File && of_code && !m.perms.shared {
        m.kind = Kind::Data;
    }
}

/// Returns the parts of a range that are in none of the others.
fn without(range: (u64, u64), others: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let mut left = vec![range];
    for o in others.iter().filter(|o| o.0 < range.1 && range.0 < o.1) {
        let cut = |r: (u64, u64)| [(r.0, r.1.min(o.0)), (r.0.max(o.1), r.1)];
        left = left.into_iter().flat_map(cut).filter(|r| r.0 < r.1).collect();
    }
    left
}

/// Returns whether two names can be of one mapping: a file that has been deleted, or memory that was given a name.
fn is_alike(a: &str, b: &str) -> bool {
    let anonymous = |n: &str| n.is_empty() || n.starts_with("[anon");
    plain(a) == plain(b) || (anonymous(a) && anonymous(b))
}
