//! The functions that every script begins with, and the methods of lists, groups, blocks, mappings and stacks.

use crate::backtrace::Backtrace;
use crate::block::Allocation;
use crate::duration::Duration;
use crate::error::{Exit, Fault, end, fault};
use crate::group::AllocationGroupList;
use crate::host::dirname;
use crate::list::AllocationList;
use crate::maplist::{Map, MapList};
use crate::recording::{Recording, Shared};
use crate::registry::Registry;
use rhai::{Array, Dynamic};
use std::rc::Rc;
use std::sync::Arc;

/// A recording.
#[derive(Clone)]
pub(crate) struct Data {
    pub(crate) shared: Rc<Shared>,
    pub(crate) of: Arc<Recording>,
}

impl Data {
    pub(crate) fn allocations(&self) -> AllocationList {
        AllocationList::all(&self.shared, &self.of)
    }
}

/// Returns a number as an integer of the language.
pub(crate) fn int(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// Registers all of it.
pub(crate) fn register(r: &mut Registry, shared: &Rc<Shared>) {
    register_recordings(r, shared);
    register_data(r);
    register_system(r, shared);
    register_list(r);
    register_map_list(r);
    register_groups(r);
    register_block(r);
    register_map(r);
    register_backtrace(r);
}

fn register_recordings(r: &mut Registry, shared: &Rc<Shared>) {
    let data = |s: &Rc<Shared>| s.recording().map(|of| Data { shared: s.clone(), of });
    let own = [(); 5].map(|()| shared.clone());
    let [s0, s1, s2, s3, s4] = own;
    r.of("")
        .def(
            "allocations",
            "() -> AllocationList",
            "Returns all blocks of the recording, as data().allocations().",
            "println(allocations().len());",
            move || data(&s0).map(|d| d.allocations()),
        )
        .def(
            "maps",
            "() -> MapList",
            "Returns all mappings of the recording, as data().maps().",
            "println(maps().len());",
            move || s1.recording().and_then(|of| MapList::all(&s1, &of)),
        )
        .def(
            "data",
            "() -> Data",
            "Returns the recording, or the recording of that number if several were given; the first is 0.",
            "println(data().runtime());",
            move || data(&s2),
        )
        .also(move |n: i64| {
            let all = s3.data.borrow();
            let found = usize::try_from(n).ok().and_then(|n| all.get(n)).cloned();
            let given = all.len();
            let of = found.ok_or_else(|| fault(format!("data({n}): {given} recordings are loaded")))?;
            Ok::<_, Fault>(Data { shared: s3.clone(), of })
        })
        .def(
            "load",
            "(path: String) -> Data",
            "Opens a recording.",
            "if false { println(load(\"other.prof\").allocations().len()); }",
            move |path: &str| {
                let path = s4.host.borrow_mut().load(path).map_err(fault)?;
                let of = (s4.open)(&path).map_err(fault)?;
                Ok::<_, Fault>(Data { shared: s4.clone(), of })
            },
        );
    let own = shared.clone();
    r.def(
        "recordings",
        "() -> [Data]",
        "Returns all recordings that were given.",
        "for d in recordings() { println(d.runtime()); }",
        move || -> Array {
            let all = own.data.borrow().clone();
            all.into_iter().map(|of| Dynamic::from(Data { shared: own.clone(), of })).collect()
        },
    )
    .note("New in prof.");
}

fn register_data(r: &mut Registry) {
    r.engine.register_type_with_name::<Data>("Data");
    r.of("Data")
        .def(
            "allocations",
            "() -> AllocationList",
            "Returns all blocks of the recording.",
            "println(data().allocations().len());",
            |d: &mut Data| d.allocations(),
        )
        .def(
            "maps",
            "() -> MapList",
            "Returns all mappings of the recording.",
            "println(data().maps().len());",
            |d: &mut Data| MapList::all(&d.shared, &d.of),
        )
        .def(
            "runtime",
            "() -> Duration",
            "Returns how long the recording is.",
            "println(data().runtime() * 0.5);",
            |d: &mut Data| Duration::of_ns(d.of.runtime_ns()),
        )
        .def(
            "path",
            "() -> String",
            "Returns the path of the recording's file; of a family's recordings that of their folder.",
            "println(data().path().len() > 0);",
            |d: &mut Data| d.of.analysis().shown_path().to_string_lossy().into_owned(),
        )
        .note("New in prof.");
}

fn register_system(r: &mut Registry, shared: &Rc<Shared>) {
    let own = [(); 3].map(|()| shared.clone());
    let [s0, s1, s2] = own;
    r.of("");
    for (name, factor) in [("kb", 1000), ("mb", 1_000_000), ("gb", 1_000_000_000i64)] {
        r.def(
            name,
            "(n: Integer) -> Integer",
            format!("Returns the number times {factor}."),
            format!("println({name}(5));"),
            move |n: i64| n.checked_mul(factor).ok_or_else(|| fault("the number is too large")),
        );
    }
    for (name, shift) in [("kib", 10), ("mib", 20), ("gib", 30)] {
        r.def(
            name,
            "(n: Integer) -> Integer",
            format!("Returns the number times {}.", 1i64 << shift),
            format!("println({name}(5));"),
            move |n: i64| n.checked_mul(1 << shift).ok_or_else(|| fault("the number is too large")),
        )
        .note("New in prof.");
    }
    r.def(
        "argv",
        "() -> [String]",
        "Returns the arguments behind the script on the command line.",
        "println(argv());",
        move || -> Array { s0.argv.iter().map(|a| Dynamic::from(a.clone())).collect() },
    )
    .def(
        "chdir",
        "(path: String)",
        "Changes the current folder.",
        "chdir(\".\");",
        move |path: &str| s1.host.borrow_mut().chdir(path).map_err(fault),
    )
    .def(
        "mkdir_p",
        "(path: String)",
        "Makes a folder, and those above it that are missing.",
        "mkdir_p(\"pictures/leaks\");",
        move |path: &str| s2.host.borrow_mut().mkdir_p(path).map_err(fault),
    )
    .def(
        "dirname",
        "(path: String) -> String",
        "Returns the path without its last component.",
        "println(dirname(\"a/b/c.svg\"));",
        |path: &str| dirname(path),
    )
    .def(
        "exit",
        "(code: Integer)",
        "Ends the script, with this exit code or 0.",
        "if allocations().len() == 0 { exit(1); }",
        |code: i64| Err::<(), _>(end(Exit(code))),
    )
    .also(|| Err::<(), _>(end(Exit(0))));
}

fn register_list(r: &mut Registry) {
    type L = AllocationList;
    r.engine.register_type_with_name::<L>("AllocationList");
    const HALVES: &str = "let early = allocations().only_allocated_until_at_most(data().runtime() * 0.6);\n\
         let late = allocations().only_allocated_after_at_least(data().runtime() * 0.4);\n";
    r.of("AllocationList")
        .def(
            "+",
            "(AllocationList) -> AllocationList",
            "Returns the blocks that are in either list.",
            format!("{HALVES}println((early + late).len());"),
            L::plus,
        )
        .def(
            "-",
            "(AllocationList) -> AllocationList",
            "Returns the blocks of the first list that are not in the second.",
            format!("{HALVES}println((early - late).len());"),
            L::minus,
        )
        .def(
            "&",
            "(AllocationList) -> AllocationList",
            "Returns the blocks that are in both lists.",
            format!("{HALVES}println((early & late).len());"),
            L::and,
        )
        .def(
            "len",
            "() -> Integer",
            "Returns the number of blocks.",
            "println(allocations().len());",
            |l: &mut L| l.count().map(int),
        )
        .describe(
            "[]",
            "(index: Integer) -> Allocation",
            "Returns a block by its place in the order of time; the first is 0.",
            "println(allocations()[0].allocated_at());",
        )
        .def(
            "group_by_backtrace",
            "() -> AllocationGroupList",
            "Groups the blocks by their stack; the stack with the earliest block comes first.",
            "println(allocations().group_by_backtrace().len());",
            |l: &mut L| l.group_by_backtrace(),
        )
        .def(
            "size",
            "() -> Integer",
            "Returns the sum of the sizes of all blocks in bytes.",
            "println(allocations().size());",
            |l: &mut L| l.sums().map(|s| int(s.allocated_bytes)),
        )
        .note("New in prof.")
        .def(
            "leaked_size",
            "() -> Integer",
            "Returns the bytes of the blocks that never end.",
            "println(allocations().leaked_size());",
            |l: &mut L| l.sums().map(|s| int(s.live_bytes)),
        )
        .note("New in prof.");
    r.engine.register_indexer_get(|l: &mut L, index: i64| l.at(index));
    r.engine.register_iterator_result::<L, Allocation>();
}

fn register_map_list(r: &mut Registry) {
    r.engine.register_type_with_name::<MapList>("MapList");
    let (plus, minus, and) = (
        |a: MapList, b: MapList| a.plus(&b),
        |a: MapList, b: MapList| a.minus(&b),
        |a: MapList, b: MapList| a.and(&b),
    );
    const KINDS: &str = "let maps = maps();\n";
    r.of("MapList")
        .def(
            "+",
            "(MapList) -> MapList",
            "Returns the mappings that are in either list.",
            format!("{KINDS}println((maps.only_writable() + maps.only_executable()).len());"),
            plus,
        )
        .def(
            "-",
            "(MapList) -> MapList",
            "Returns the mappings of the first list that are not in the second.",
            format!("{KINDS}println((maps - maps.only_writable()).len());"),
            minus,
        )
        .def(
            "&",
            "(MapList) -> MapList",
            "Returns the mappings that are in both lists.",
            format!("{KINDS}println((maps.only_readable() & maps.only_writable()).len());"),
            and,
        )
        .def(
            "len",
            "() -> Integer",
            "Returns the number of mappings.",
            "println(maps().len());",
            |l: &mut MapList| int(l.ids.len() as u64),
        )
        .describe(
            "[]",
            "(index: Integer) -> Map",
            "Returns a mapping by its place in the order of time; the first is 0.",
            "if maps().len() > 0 { println(maps()[0].allocated_at()); }",
        );
    r.engine.register_indexer_get(|l: &mut MapList, index: i64| l.at(index));
    r.engine.register_iterator_result::<MapList, Map>();
}

fn register_groups(r: &mut Registry) {
    type G = AllocationGroupList;
    r.engine.register_type_with_name::<G>("AllocationGroupList");
    const GROUPS: &str = "let groups = allocations().group_by_backtrace()";
    let by = |name: &str| format!("{GROUPS}.{name}();\nprintln(groups[0].len());");
    r.of("AllocationGroupList")
        .def(
            "len",
            "() -> Integer",
            "Returns the number of groups.",
            format!("{GROUPS};\nprintln(groups.len());"),
            |g: &mut G| int(g.groups.len() as u64),
        )
        .describe(
            "[]",
            "(index: Integer) -> AllocationList",
            "Returns the blocks of a group; the first is 0. `for` goes through all groups.",
            format!("{GROUPS}.take(2);\nfor group in groups {{ println(group.len()); }}"),
        )
        .def(
            "only_all_leaked",
            "() -> AllocationGroupList",
            "Keeps those groups of which no block ever ends.",
            format!("{GROUPS}.only_all_leaked();\nprintln(groups.len());"),
            |g: &mut G| g.only(|one| one.live_count == one.count),
        )
        .def(
            "only_count_at_least",
            "(n: Integer) -> AllocationGroupList",
            "Keeps those groups that have at least so many blocks.",
            format!("{GROUPS}.only_count_at_least(2);\nprintln(groups.len());"),
            |g: &mut G, n: i64| g.only(|one| int(one.count) >= n),
        )
        .def(
            "take",
            "(n: Integer) -> AllocationGroupList",
            "Returns the first groups, at most so many.",
            format!("{GROUPS}.take(3);\nprintln(groups.len());"),
            |g: &mut G, n: i64| g.take(n),
        )
        .def(
            "ungroup",
            "() -> AllocationList",
            "Returns the blocks of all groups.",
            format!("{GROUPS}.take(3);\nprintln(groups.ungroup().len());"),
            |g: &mut G| g.ungroup(),
        );
    for (key, what) in [("size", "bytes"), ("count", "number of blocks")] {
        let of = move |one: &crate::group::One| if key == "size" { one.bytes } else { one.count };
        for (suffix, descending) in [("", true), ("_descending", true), ("_ascending", false)] {
            let name = format!("sort_by_{key}{suffix}");
            let order = if descending { "most" } else { "least" };
            let doc = format!("Sorts the groups by their {what}, those with the {order} first.");
            let sort = move |g: &mut G| g.sorted(of, descending);
            r.def(&name, "() -> AllocationGroupList", doc, by(&name), sort);
        }
    }
    r.def(
        "sort_by_leaked_size",
        "() -> AllocationGroupList",
        "Sorts the groups by the bytes that never end, those with the most first.",
        by("sort_by_leaked_size"),
        |g: &mut G| g.sorted(|one| one.live_bytes, true),
    )
    .note("New in prof.");
    r.engine.register_indexer_get(|g: &mut G, index: i64| g.at(index));
    r.engine.register_iterator_result::<G, AllocationList>();
}

fn register_block(r: &mut Registry) {
    type A = Allocation;
    r.engine.register_type_with_name::<A>("Allocation");
    let show = |what: &str| format!("println(allocations()[0].{what}());");
    let trace = "() -> Backtrace";
    r.of("Allocation")
        .def("backtrace", trace, "Returns the stack that made the block.", show("backtrace"), |a: &mut A| a.backtrace())
        .def(
            "allocated_at",
            "() -> Duration",
            "Returns when the block was made, since the start of the recording.",
            show("allocated_at"),
            |a: &mut A| a.allocated_at(),
        )
        .def(
            "deallocated_at",
            "() -> Option<Duration>",
            "Returns when the block ended, since the start of the recording; None if it never does.",
            show("deallocated_at"),
            |a: &mut A| a.deallocated_at(),
        )
        .def(
            "deallocation_backtrace",
            trace,
            "Returns the stack that ended the block, if it was recorded.",
            show("deallocation_backtrace"),
            |a: &mut A| a.deallocation_backtrace(),
        )
        .note("New in prof.")
        .def("size", "() -> Integer", "Returns the size that was asked for, in bytes.", show("size"), |a: &mut A| {
            int(a.row.size)
        })
        .note("New in prof.")
        .def("address", "() -> Integer", "Returns the address.", show("address"), |a: &mut A| {
            a.row.address.cast_signed()
        })
        .note("New in prof.")
        .def("thread_name", "() -> String", "Returns the thread that made it: its name, or its id.", show("thread_name"), |a: &mut A| {
            a.thread()
        })
        .note("New in prof.")
        .def(
            "lifetime",
            "() -> Duration",
            "Returns how long the block lived, up to the end of the recording.",
            show("lifetime"),
            |a: &mut A| Duration::of_ns(a.row.lifetime_ns),
        )
        .note("New in prof.");
}

fn register_map(r: &mut Registry) {
    r.engine.register_type_with_name::<Map>("Map");
    let show = |what: &str| format!("for map in maps() {{ println(map.{what}()); break; }}");
    r.of("Map")
        .def(
            "backtrace",
            "() -> Backtrace",
            "Returns the stack that made the mapping; it prints None if the call was not caught.",
            show("backtrace"),
            |m: &mut Map| m.backtrace(),
        )
        .def(
            "allocated_at",
            "() -> Duration",
            "Returns when the mapping was made or seen first, since the start of the recording.",
            show("allocated_at"),
            |m: &mut Map| m.allocated_at(),
        )
        .def(
            "deallocated_at",
            "() -> Option<Duration>",
            "Returns when the mapping ended, since the start of the recording; None if it never does.",
            show("deallocated_at"),
            |m: &mut Map| m.deallocated_at(),
        )
        .def("id", "() -> Integer", "Returns its number, as `prof maps` shows it.", show("id"), |m: &mut Map| {
            i64::from(m.id)
        })
        .note("New in prof.")
        .def("address", "() -> Integer", "Returns its first address.", show("address"), |m: &mut Map| {
            m.read(|m| m.address.cast_signed())
        })
        .note("New in prof.")
        .def("size", "() -> Integer", "Returns its address space in bytes.", show("size"), |m: &mut Map| {
            m.read(|m| int(m.size))
        })
        .note("New in prof.")
        .def("rss", "() -> Integer", "Returns the bytes that were resident when it was seen last.", show("rss"), |m: &mut Map| {
            m.read(|m| int(m.last_usage().rss))
        })
        .note("New in prof.")
        .def("peak_rss", "() -> Integer", "Returns the most bytes that were resident.", show("peak_rss"), |m: &mut Map| {
            m.read(|m| int(m.peak_rss))
        })
        .note("New in prof.")
        .def("name", "() -> String", "Returns the path of its file, or the kernel's name.", show("name"), |m: &mut Map| {
            m.read(|m| m.name.to_string())
        })
        .note("New in prof.")
        .def("kind", "() -> String", "Returns the kind of memory: heap, anonymous, stack, and so on.", show("kind"), |m: &mut Map| {
            m.read(|m| m.kind.name().to_owned())
        })
        .note("New in prof.");
}

fn register_backtrace(r: &mut Registry) {
    r.engine.register_type_with_name::<Backtrace>("Backtrace");
    r.of("Backtrace")
        .def(
            "strip",
            "() -> Backtrace",
            "Returns the stack without the frames by which Rust's runtime starts programs, and those below Vec::resize.",
            "println(allocations()[0].backtrace().strip());",
            |b: &mut Backtrace| b.strip(),
        )
        .def(
            "len",
            "() -> Integer",
            "Returns the number of frames.",
            "println(allocations()[0].backtrace().len());",
            |b: &mut Backtrace| int(b.frames().len() as u64),
        )
        .note("New in prof.")
        .def(
            "id",
            "() -> Integer",
            "Returns the number of the stack, as --stacks takes it.",
            "println(allocations()[0].backtrace().id() > 0);",
            |b: &mut Backtrace| i64::from(b.node),
        )
        .note("New in prof.")
        .def(
            "is_none",
            "() -> Boolean",
            "Returns whether the stack is not known.",
            "println(allocations()[0].backtrace().is_none());",
            |b: &mut Backtrace| b.node == 0,
        )
        .note("New in prof.");
    r.engine.register_fn("to_string", |b: &mut Backtrace| b.to_string());
}
