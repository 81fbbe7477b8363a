//! Lists of mappings, and single ones.

use crate::backtrace::Backtrace;
use crate::duration::{Duration, Moment};
use crate::error::{Fault, fault};
use crate::only::Filtered;
use crate::recording::{Recording, Shared};
use prof_analyze::maps::{self, MapFilter};
use prof_analyze::rewrite::is_joined;
use std::rc::Rc;
use std::sync::Arc;

/// A list of mappings, in the order in which they were made or seen first.
#[derive(Clone)]
pub(crate) struct MapList {
    pub(crate) of: Arc<Recording>,
    /// Numbers of the mappings, ascending.
    pub(crate) ids: Rc<Vec<u32>>,
}

/// A mapping.
#[derive(Clone)]
pub(crate) struct Map {
    pub(crate) of: Arc<Recording>,
    pub(crate) id: u32,
}

impl MapList {
    pub(crate) fn all(shared: &Rc<Shared>, of: &Arc<Recording>) -> Result<Self, Fault> {
        let maps = of.maps()?;
        if !maps.is_recorded() {
            let why = match is_joined(&of.analysis().path()) {
                true => "it is of several processes; `prof script --pid PID` takes one",
                false => maps::why_unrecorded(of.analysis().meta()),
            };
            shared
                .tell(&format!("the recording does not tell of mappings ({why}): maps() is empty"));
        }
        let ids = (0..maps.count()).collect();
        Ok(Self { of: of.clone(), ids: Rc::new(ids) })
    }

    fn with(&self, ids: Vec<u32>) -> Self {
        Self { ids: Rc::new(ids), ..self.clone() }
    }

    fn has(&self, id: u32) -> bool {
        self.ids.binary_search(&id).is_ok()
    }

    fn same(&self, other: &Self) -> Result<(), Fault> {
        if Arc::ptr_eq(&self.of, &other.of) {
            return Ok(());
        }
        Err(fault(
            "the two lists are of different recordings, so that they have no mappings in common",
        ))
    }

    pub(crate) fn plus(&self, other: &Self) -> Result<Self, Fault> {
        self.same(other)?;
        let mut ids: Vec<u32> = self.ids.iter().chain(other.ids.iter()).copied().collect();
        ids.sort_unstable();
        ids.dedup();
        Ok(self.with(ids))
    }

    pub(crate) fn minus(&self, other: &Self) -> Result<Self, Fault> {
        self.same(other)?;
        Ok(self.with(self.ids.iter().copied().filter(|id| !other.has(*id)).collect()))
    }

    pub(crate) fn and(&self, other: &Self) -> Result<Self, Fault> {
        self.same(other)?;
        Ok(self.with(self.ids.iter().copied().filter(|id| other.has(*id)).collect()))
    }

    pub(crate) fn at(&self, index: i64) -> Result<Map, Fault> {
        let found = usize::try_from(index).ok().and_then(|i| self.ids.get(i));
        let id = found.ok_or_else(|| {
            let len = self.ids.len();
            fault(format!("index {index} is out of range: the list has {len} mappings"))
        })?;
        Ok(Map { of: self.of.clone(), id: *id })
    }

    /// Returns the mappings of the list.
    pub(crate) fn maps(&self) -> Result<Vec<maps::Map>, Fault> {
        Ok(self.of.maps()?.some(&self.ids))
    }

    /// Returns the nodes of the stacks that made them.
    pub(crate) fn stacks(&self) -> Result<Vec<u32>, Fault> {
        Ok(self.maps()?.iter().filter_map(|m| m.source).map(|s| s.node).collect())
    }
}

impl Filtered for MapList {
    fn only(&self, field: &str, text: &str) -> Result<Self, Fault> {
        let mut filter = MapFilter::default();
        filter.set(field, text).map_err(|e| fault(e.to_string()))?;
        filter.check(self.of.analysis().meta()).map_err(fault)?;
        let found = filter.select(self.of.analysis(), self.of.maps()?);
        let mut ids: Vec<u32> = found.into_iter().filter(|id| self.has(*id)).collect();
        ids.sort_unstable();
        Ok(self.with(ids))
    }

    fn without(&self, other: &Self) -> Result<Self, Fault> {
        self.minus(other)
    }

    fn nothing(&self) -> Result<Self, Fault> {
        Ok(self.with(Vec::new()))
    }

    fn runtime_ns(&self) -> u64 {
        self.of.runtime_ns()
    }
}

impl Map {
    fn get(&self) -> Result<maps::Map, Fault> {
        self.of.maps()?.get(self.id).ok_or_else(|| fault("there is no such mapping"))
    }

    /// Returns a property of the mapping.
    pub(crate) fn read<T>(&self, of: impl FnOnce(&maps::Map) -> T) -> Result<T, Fault> {
        self.get().map(|m| of(&m))
    }

    pub(crate) fn backtrace(&self) -> Result<Backtrace, Fault> {
        let node = self.get()?.source.map_or(0, |s| s.node);
        Ok(Backtrace::new(&self.of, node))
    }

    pub(crate) fn allocated_at(&self) -> Result<Duration, Fault> {
        let begun = self.get()?.begun;
        Ok(Duration::of_ns(self.of.analysis().meta().clock.ns(begun)))
    }

    pub(crate) fn deallocated_at(&self) -> Result<Moment, Fault> {
        let end = self.get()?.end;
        let clock = &self.of.analysis().meta().clock;
        Ok(Moment(end.map(|e| Duration::of_ns(clock.ns(e.ticks)))))
    }
}

impl IntoIterator for MapList {
    type Item = Result<Map, Fault>;
    type IntoIter = Box<dyn Iterator<Item = Self::Item>>;

    fn into_iter(self) -> Self::IntoIter {
        let (of, ids) = (self.of, self.ids);
        Box::new((0..ids.len()).map(move |i| Ok(Map { of: of.clone(), id: ids[i] })))
    }
}
