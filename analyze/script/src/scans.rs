//! Scans of a recording: who held the live blocks at a moment, and how much would go with whom.
//!
//! Objects have the fields of `prof holds --format json`, with sums as two numbers.

use crate::api::{Data, int};
use crate::block::Allocation;
use crate::duration::Duration;
use crate::error::{Fault, Stopped, end, fault, of_query, of_scan, type_name};
use crate::list::AllocationList;
use crate::loaded::Loaded;
use crate::objects::object;
use crate::recording::{Recording, Shared};
use crate::registry::Registry;
use prof_analyze::Job;
use prof_analyze::holds::{
    self, Comparison, Course, Holder, HoldsData, HoldsError, HoldsOptions, Sum, Wanted,
};
use prof_analyze::index::Column;
use prof_analyze::load::ScanAt;
use prof_analyze::query::{Filter, Query};
use prof_analyze::report::Style;
use prof_trace::ticks::Ticks;
use rhai::{Array, Dynamic, Map};
use std::rc::Rc;
use std::sync::Arc;

/// A scan of a recording, which is read when something is asked of it.
#[derive(Clone)]
pub(crate) struct Scan {
    pub(crate) shared: Rc<Shared>,
    pub(crate) of: Arc<Recording>,
    /// Index of the scan among those of the recording.
    index: usize,
}

fn of_holds(e: HoldsError) -> Fault {
    match e {
        HoldsError::Cancelled => stopped(),
        e => fault(e.to_string()),
    }
}

fn stopped() -> Fault {
    end(Stopped("the script was stopped".into()))
}

/// Returns an error if the script was stopped: what was computed meanwhile is no result then.
pub(crate) fn unless_stopped<T>(value: T) -> Result<T, Fault> {
    if Job::is_current_cancelled() { Err(stopped()) } else { Ok(value) }
}

fn put_sum(to: &mut Map, name: &str, blocks: &str, sum: Sum) {
    to.insert(name.into(), int(sum.bytes).into());
    to.insert(blocks.into(), int(sum.blocks).into());
}

/// Returns the number of a field of an object.
fn field(object: &Dynamic, name: &str) -> Option<u32> {
    let map = object.read_lock::<Map>()?;
    map.get(name)?.as_int().ok().and_then(|n| u32::try_from(n).ok())
}

impl Loaded {
    /// Returns what is said of a node of the tree.
    fn node(&self, index: u32) -> Result<Dynamic, Fault> {
        let n = &self.holders.held.nodes[index as usize];
        let mut map = match n.holder {
            Holder::Root(number) => match self.holders.root(number) {
                Some(root) => object(root)?.try_cast::<Map>().unwrap_or_default(),
                None => Map::new(),
            },
            Holder::Stack(stack) => {
                let mut map = self.stack(stack);
                self.put_class(&mut map, n.class);
                put_sum(&mut map, "own", "own_blocks", n.own);
                map
            }
            Holder::All => Map::new(),
        };
        put_sum(&mut map, "retained", "retained_blocks", n.retained);
        map.insert("node".into(), i64::from(index).into());
        Ok(Dynamic::from(map))
    }

    fn nodes(&self, of: &Recording, nodes: &[u32]) -> Result<Array, Fault> {
        let stacks =
            nodes.iter().filter_map(|i| match self.holders.held.nodes[*i as usize].holder {
                Holder::Stack(stack) => Some(stack),
                _ => None,
            });
        self.names.borrow_mut().look_up_in(of.analysis(), stacks);
        unless_stopped(nodes.iter().map(|i| self.node(*i)).collect::<Result<_, _>>()?)
    }

    /// Returns a stack with the function that asked for its blocks, which was looked up.
    fn stack(&self, stack: u32) -> Map {
        let mut map = Map::new();
        map.insert("stack".into(), i64::from(stack).into());
        map.insert("from".into(), self.names.borrow().get(stack).label().into());
        map
    }

    fn put_class(&self, to: &mut Map, class: Option<(u64, u64)>) {
        let named = class.and_then(|(table, n)| Some((self.holders.class(table)?, n)));
        let (name, n) = named.map_or((Dynamic::UNIT, 0), |(name, n)| (name.into(), n));
        to.insert("class".into(), name);
        to.insert("class_blocks".into(), int(n).into());
    }

    fn report(&self, of: &Recording, options: &HoldsOptions<'_>) -> Result<HoldsData, Fault> {
        let names = &mut self.names.borrow_mut();
        unless_stopped(HoldsData::new(&self.holders, of.analysis(), names, options))
    }
}

/// Returns the options of a report with so many roots and stacks, as those of the command line.
fn options(top: usize, paths: &[Wanted]) -> HoldsOptions<'_> {
    let lists = top > 0;
    HoldsOptions { roots: lists, stacks: lists, top, depth: 4, paths, style: Style::default() }
}

impl Scan {
    fn at(&self) -> &ScanAt {
        &self.of.analysis().meta().scans[self.index]
    }

    /// Returns the name that users see.
    pub(crate) fn described(&self) -> String {
        format!("Scan ({})", holds::described(self.of.analysis(), self.index))
    }

    /// Reads the scan, unless it is kept.
    pub(crate) fn load(&self) -> Result<Rc<Loaded>, Fault> {
        let read = || holds::read(self.of.analysis(), self.index).map_err(of_holds);
        self.shared.scan(&self.of, self.index, self.at().weight(), read)
    }

    fn live(&self) -> Result<Sum, Fault> {
        Ok(self.load()?.holders.heap.live())
    }

    fn figures(&self) -> Result<Dynamic, Fault> {
        let report = self.load()?.report(&self.of, &options(0, &[]))?;
        let mut map = object(&report)?.try_cast::<Map>().unwrap_or_default();
        for name in ["top_roots", "shared", "top_stacks", "paths"] {
            map.remove(name);
        }
        Ok(Dynamic::from(map))
    }

    fn roots(&self) -> Result<Array, Fault> {
        let of = self.load()?;
        let nodes: Vec<u32> = of.holders.root_nodes().collect();
        of.nodes(&self.of, &nodes)
    }

    fn held_by_several(&self) -> Result<Array, Fault> {
        let of = self.load()?;
        of.nodes(&self.of, &of.holders.shared_nodes())
    }

    fn held_by(&self, holder: &Dynamic) -> Result<Array, Fault> {
        let of = self.load()?;
        let node = field(holder, "node").filter(|n| (*n as usize) < of.holders.held.nodes.len());
        let node = node.ok_or_else(|| {
            let kind = type_name(holder);
            fault(format!("held_by takes an object of roots(), held_by_several() or held_by() of this scan, and not {kind}"))
        })?;
        of.nodes(&self.of, of.holders.tree.below(node))
    }

    fn stacks(&self) -> Result<Array, Fault> {
        let of = self.load()?;
        let all = unless_stopped(of.holders.stacks(usize::MAX))?;
        of.names.borrow_mut().look_up_in(self.of.analysis(), all.iter().map(|s| s.stack));
        let object = |s: &holds::StackSums| {
            let mut map = of.stack(s.stack);
            of.put_class(&mut map, s.class);
            put_sum(&mut map, "own", "own_blocks", s.own);
            put_sum(&mut map, "retained", "retained_blocks", s.retained);
            map.insert("at_least".into(), s.at_least.into());
            Dynamic::from(map)
        };
        unless_stopped(all.iter().map(object).collect())
    }

    /// Returns a shortest chain of pointers to a block or to a stack's blocks.
    fn path(&self, to: &Dynamic) -> Result<Dynamic, Fault> {
        let wanted = wanted(to).ok_or_else(|| {
            fault(format!(
                "path takes the address of a block as text (\"0x55d0c3a2\"), an allocation, the number of a stack, or an \
                 object that has one, and not {}",
                type_name(to)
            ))
        })?;
        let of = self.load()?;
        if !wanted.is_in(&of.holders.heap) {
            return Err(fault("path: the scan has no such block"));
        }
        let report = of.report(&self.of, &options(0, &[wanted]))?;
        report.paths.first().map_or(Ok(Dynamic::UNIT), object)
    }

    /// Returns the blocks of the recording whose number in the scan is wanted. Those from before the attach are in none.
    fn list(
        &self,
        of: &Loaded,
        keeps: impl Fn(usize) -> bool + Sync,
    ) -> Result<AllocationList, Fault> {
        let (index, groups) = (self.of.index(), self.of.analysis().groups());
        let (heap, ticks) = (&of.holders.heap, of.holders.ticks);
        let query = Query::new(index, &Filter::default()).map_err(of_query)?;
        let columns = [Column::Begin, Column::End, Column::Addr, Column::Group];
        let rows = query.rows_that(columns, |[begin, end, address, group]| {
            let node = groups.get(group as usize).map(|g| g.node);
            begin <= ticks.0
                && ticks < Ticks(end)
                && heap
                    .starting_at(address)
                    .is_some_and(|(block, stack)| Some(stack) == node && keeps(block as usize))
        });
        AllocationList::all(&self.shared, &self.of).of_set(rows.map_err(of_scan)?)
    }

    fn allocations(&self) -> Result<AllocationList, Fault> {
        self.list(&*self.load()?, |_| true)
    }

    fn unreachable(&self) -> Result<AllocationList, Fault> {
        let of = self.load()?;
        let reached = of.holders.heap.reached(None, &Job::is_current_cancelled);
        let (reached, _) = reached.ok_or_else(stopped)?;
        self.list(&of, |block| !reached.has(block))
    }

    /// Returns the blocks that would be unreachable without a root, or without all blocks of a stack.
    fn retained_by(&self, holder: &Dynamic) -> Result<AllocationList, Fault> {
        let of = self.load()?;
        let node = field(holder, "node").and_then(|n| of.holders.held.nodes.get(n as usize));
        let stack = field(holder, "stack").or_else(|| u32::try_from(holder.as_int().ok()?).ok());
        let holder = match (node.map(|n| n.holder), stack) {
            (Some(root @ Holder::Root(_)), _) => root,
            (_, Some(stack)) => Holder::Stack(stack),
            _ => {
                let kind = type_name(holder);
                return Err(fault(format!(
                    "retained_by takes an object of roots() or stacks(), or the number of a stack, and not {kind}"
                )));
            }
        };
        let heap = &of.holders.heap;
        let reached =
            |without| heap.reached(without, &Job::is_current_cancelled).ok_or_else(stopped);
        let ((all, _), (rest, _)) = (reached(None)?, reached(Some(holder))?);
        self.list(&of, |block| all.has(block) && !rest.has(block))
    }

    /// Returns the roots that retain more or less than in an earlier scan.
    fn since(&self, earlier: &Self) -> Result<Array, Fault> {
        if !Arc::ptr_eq(&self.of, &earlier.of) {
            return Err(fault("since: the two scans are of different recordings"));
        }
        let (old, new) = (earlier.load()?, self.load()?);
        let both = (&old.holders, &new.holders);
        let names = &mut new.names.borrow_mut();
        let found = unless_stopped(Comparison::new(both, self.of.analysis(), names, usize::MAX))?;
        let stack = |s: &holds::StackChange| {
            let mut map = Map::new();
            map.insert("stack".into(), i64::from(s.stack).into());
            map.insert("from".into(), s.from.clone().into());
            put_course(&mut map, &s.own);
            Dynamic::from(map)
        };
        let root = |r: &holds::RootChange| {
            let mut map = Map::new();
            map.insert("kind".into(), r.kind.word().into());
            map.insert("name".into(), r.name.clone().into());
            map.insert("was".into(), r.was.into());
            map.insert("is".into(), r.is.into());
            put_course(&mut map, &r.retained);
            map.insert("stacks".into(), r.stacks.iter().map(stack).collect::<Array>().into());
            Dynamic::from(map)
        };
        Ok(found.roots.iter().map(root).collect())
    }

    pub(crate) fn whole(&self, top: i64) -> Result<HoldsData, Fault> {
        let top = match usize::try_from(top) {
            Ok(0) => usize::MAX,
            Ok(top) => top,
            Err(_) => return Err(fault("the number of roots and stacks is negative; 0 shows all")),
        };
        self.load()?.report(&self.of, &options(top, &[]))
    }
}

fn put_course(to: &mut Map, c: &Course) {
    let sum = |s: holds::SumData| Sum { bytes: s.bytes, blocks: s.blocks };
    put_sum(to, "before", "before_blocks", sum(c.before));
    put_sum(to, "after", "after_blocks", sum(c.after));
    let (bytes, blocks) = c.change();
    let short = |n: i128| i64::try_from(n).unwrap_or(if n < 0 { i64::MIN } else { i64::MAX });
    to.insert("change".into(), short(bytes).into());
    to.insert("change_blocks".into(), short(blocks).into());
}

/// Returns what a chain shall lead to.
fn wanted(to: &Dynamic) -> Option<Wanted> {
    if let Some(block) = to.read_lock::<Allocation>() {
        return Some(Wanted::Block(block.row.address));
    }
    if let Ok(text) = to.clone().into_string() {
        return match text.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16).ok().map(Wanted::Block),
            None => text.parse().ok().map(Wanted::Stack),
        };
    }
    let stack = to.as_int().ok().and_then(|n| u32::try_from(n).ok());
    stack.or_else(|| field(to, "stack")).map(Wanted::Stack)
}

/// Returns all scans of a recording.
fn all(d: &Data) -> Array {
    let n = d.of.analysis().meta().scans.len();
    let scan = |index| Scan { shared: d.shared.clone(), of: d.of.clone(), index };
    (0..n).map(|index| Dynamic::from(scan(index))).collect()
}

/// Returns the scan of a recording that is meant.
fn one(d: &Data, which: &Dynamic) -> Result<Scan, Fault> {
    let text = match which.as_int() {
        Ok(n) => n.to_string(),
        Err(_) => which.clone().into_string().map_err(|kind| {
            fault(format!("scan takes the number or the name of a scan, and not {kind}"))
        })?,
    };
    let index = holds::find(d.of.analysis(), &text).map_err(of_holds)?;
    Ok(Scan { shared: d.shared.clone(), of: d.of.clone(), index })
}

/// Returns code that asks something of the last scan, if there is one.
pub(crate) fn with(code: &str) -> String {
    format!("if scans().len() > 0 {{\n    let s = scan(\"last\");\n    {code}\n}}")
}

fn register_data(r: &mut Registry, shared: &Rc<Shared>) {
    let data = |s: &Rc<Shared>| s.recording().map(|of| Data { shared: s.clone(), of });
    let (s0, s1) = (shared.clone(), shared.clone());
    r.of("")
        .def(
            "scans",
            "() -> [Scan]",
            "Returns the scans of the recording, which `prof holds PID --save` puts there, as data().scans().",
            "println(scans().len());",
            move || data(&s0).map(|d| all(&d)),
        )
        .note("New in prof.")
        .def(
            "scan",
            "(which: Integer|String) -> Scan",
            "Returns a scan of the recording by its number, from 1 on, its name, or \"last\", as data().scan(which).",
            with("println(s);"),
            move |which: Dynamic| data(&s1).and_then(|d| one(&d, &which)),
        )
        .note("New in prof.");
    r.of("Data")
        .def(
            "scans",
            "() -> [Scan]",
            "Returns the scans of the recording, which `prof holds PID --save` puts there.",
            "println(data().scans().len());",
            |d: &mut Data| all(d),
        )
        .note("New in prof.")
        .def(
            "scan",
            "(which: Integer|String) -> Scan",
            "Returns a scan of the recording by its number, from 1 on, its name, or \"last\".",
            "if data().scans().len() > 0 { println(data().scan(1)); }",
            |d: &mut Data, which: Dynamic| one(d, &which),
        )
        .note("New in prof.");
}

/// Registers what is asked of a scan.
fn register_answers(r: &mut Registry) {
    r.of("Scan")
        .def(
            "figures",
            "() -> Object",
            "Returns the figures at the head of `prof holds --format json`: live, unreachable, roots, scan.",
            with("println(s.figures().unreachable.bytes);"),
            |s: &mut Scan| s.figures(),
        )
        .note("New in prof.")
        .def(
            "roots",
            "() -> [Object]",
            "Returns what the program reaches by itself, with what would be unreachable without it; most bytes first.",
            with("table(s.roots(), [\"retained\", \"retained_blocks\", \"kind\", \"name\"]);"),
            |s: &mut Scan| s.roots(),
        )
        .note("New in prof.")
        .def(
            "held_by",
            "(holder: Object) -> [Object]",
            "Returns what hangs on a root, or on blocks that hang on one, by stack; most bytes first.",
            with("for x in s.held_by(s.roots()[0]) { println(`${x.from}: ${bytes(x.retained)}`); }"),
            |s: &mut Scan, holder: Dynamic| s.held_by(&holder),
        )
        .note("New in prof.")
        .def(
            "held_by_several",
            "() -> [Object]",
            "Returns what more than one root leads to, by stack; most bytes first.",
            with("println(s.held_by_several().len());"),
            |s: &mut Scan| s.held_by_several(),
        )
        .note("New in prof.")
        .def(
            "stacks",
            "() -> [Object]",
            "Returns the stacks of all blocks that a root leads to, with what would go with all blocks of each.",
            with("table(s.stacks(), [\"retained\", \"own\", \"own_blocks\", \"class\", \"from\"]);"),
            |s: &mut Scan| s.stacks(),
        )
        .note("New in prof.")
        .def(
            "path",
            "(to: String|Integer|Allocation|Object) -> Object",
            "Returns a shortest chain of pointers from a root to a block, or to a block of a stack.",
            with("println(s.path(s.stacks()[0]).blocks.len());"),
            |s: &mut Scan, to: Dynamic| s.path(&to),
        )
        .note("New in prof.")
        .def(
            "since",
            "(earlier: Scan) -> [Object]",
            "Returns the roots that retain more or less than in another scan, with the stacks that changed most.",
            with("println(s.since(scan(1)).len());"),
            |s: &mut Scan, earlier: Scan| s.since(&earlier),
        )
        .note("New in prof.");
}

fn register_scan(r: &mut Registry) {
    r.engine.register_type_with_name::<Scan>("Scan");
    r.of("Scan")
        .def(
            "number",
            "() -> Integer",
            "Returns the number of the scan in its recording, from 1 on.",
            with("println(s.number());"),
            |s: &mut Scan| int(s.index as u64 + 1),
        )
        .note("New in prof.")
        .def(
            "name",
            "() -> String",
            "Returns the name that was given to the scan, or an empty text.",
            with("println(`\"${s.name()}\"`);"),
            |s: &mut Scan| s.at().name.clone(),
        )
        .note("New in prof.")
        .def(
            "at",
            "() -> Duration",
            "Returns when the scan was made.",
            with("println(s.at());"),
            |s: &mut Scan| Duration::of_ns(s.of.analysis().meta().clock.ns(s.at().ticks)),
        )
        .note("New in prof.")
        .def(
            "len",
            "() -> Integer",
            "Returns the number of blocks that were live.",
            with("println(s.len());"),
            |s: &mut Scan| s.live().map(|l| int(l.blocks)),
        )
        .note("New in prof.")
        .def(
            "size",
            "() -> Integer",
            "Returns the bytes of the blocks that were live.",
            with("println(s.size());"),
            |s: &mut Scan| s.live().map(|l| int(l.bytes)),
        )
        .note("New in prof.")
        .def(
            "allocations",
            "() -> AllocationList",
            "Returns the blocks of the scan that the recording tells of: all but those from before the attach.",
            with("println(s.allocations().len());"),
            |s: &mut Scan| s.allocations(),
        )
        .note("New in prof.")
        .def(
            "unreachable",
            "() -> AllocationList",
            "Returns the blocks that no root led to.",
            with("println(s.unreachable().size());"),
            |s: &mut Scan| s.unreachable(),
        )
        .note("New in prof.")
        .def(
            "retained_by",
            "(holder: Object|Integer) -> AllocationList",
            "Returns the blocks that would be unreachable without a root, or without all blocks of a stack.",
            with("println(s.retained_by(s.stacks()[0]).len());"),
            |s: &mut Scan, holder: Dynamic| s.retained_by(&holder),
        )
        .note("New in prof.")
        .def(
            "report",
            "(top: Integer) -> String",
            "Returns the text of `prof holds`; the number of roots and of stacks can be given (10; 0: all).",
            with("println(s.report(3));"),
            |s: &mut Scan| report(s, 10),
        )
        .note("New in prof.")
        .also(report);
}

fn report(s: &mut Scan, top: i64) -> Result<String, Fault> {
    Ok(s.whole(top)?.text(Style::of_script()).trim_end().to_owned())
}

/// Registers scans.
pub(crate) fn register(r: &mut Registry, shared: &Rc<Shared>) {
    register_data(r, shared);
    register_scan(r);
    register_answers(r);
}
