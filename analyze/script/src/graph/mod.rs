//! Graphs: stacked areas in which each series has only what none before it has.

mod draw;
mod png;
mod series;

use crate::duration::Duration;
use crate::error::{Fault, fault};
use crate::group::AllocationGroupList;
use crate::host::FileKind;
use crate::list::AllocationList;
use crate::maplist::MapList;
use crate::recording::Shared;
use crate::registry::Registry;
use csscolorparser::Color;
use std::rc::Rc;

/// The blocks or mappings of a series.
#[derive(Clone)]
#[allow(clippy::large_enum_variant)] // a graph has few
pub(crate) enum Of {
    Blocks(AllocationList),
    Maps(MapList),
}

/// A series before it is computed.
#[derive(Clone)]
pub(crate) struct Series {
    pub of: Of,
    /// The name that the script gave.
    pub label: Option<String>,
    /// A name for the legend, of a group of blocks: the function that asked for them.
    pub caption: Option<String>,
}

/// Figure that a graph shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Show {
    Memory,
    Live,
    New,
    Ended,
    Rss,
    AddressSpace,
}

/// A graph that is being described; each method returns a changed copy.
#[derive(Clone)]
pub(crate) struct Graph {
    pub(crate) series: Rc<Vec<Series>>,
    pub(crate) show: Option<Show>,
    pub(crate) trim: (bool, bool),
    pub(crate) start: Option<Duration>,
    pub(crate) end: Option<Duration>,
    pub(crate) only_non_empty: bool,
    pub(crate) legend: bool,
    pub(crate) axes: bool,
    pub(crate) grid: bool,
    pub(crate) gradient: Option<(Color, Color)>,
}

impl Graph {
    fn new() -> Self {
        Self {
            series: Rc::default(),
            show: None,
            trim: (false, false),
            start: None,
            end: None,
            only_non_empty: false,
            legend: true,
            axes: true,
            grid: true,
            gradient: None,
        }
    }

    fn with(&self, series: impl IntoIterator<Item = Series>) -> Result<Self, Fault> {
        let mut all = self.series.to_vec();
        for s in series {
            let same = all.first().is_none_or(|first| match (&first.of, &s.of) {
                (Of::Blocks(a), Of::Blocks(b)) => std::sync::Arc::ptr_eq(&a.of, &b.of),
                (Of::Maps(a), Of::Maps(b)) => std::sync::Arc::ptr_eq(&a.of, &b.of),
                _ => false,
            });
            if !same {
                return Err(fault(
                    "a graph shows either allocations or mappings, and of one recording: make a graph for each",
                ));
            }
            all.push(s);
        }
        Ok(Self { series: Rc::new(all), ..self.clone() })
    }

    fn add(&self, label: Option<&str>, of: Of) -> Result<Self, Fault> {
        self.with([Series { of, label: label.map(str::to_owned), caption: None }])
    }

    fn add_groups(&self, groups: &AllocationGroupList) -> Result<Self, Fault> {
        // Of no groups the graph is empty, and no error: a script that found a leak runs when the leak is mended.
        if groups.groups.is_empty() {
            return self.add(None, Of::Blocks(groups.list.none()?));
        }
        let stacks = groups.list.of.index().stacks();
        let nodes: std::collections::HashMap<u32, usize> =
            groups.list.of.analysis().groups().iter().zip(0..).map(|(g, i)| (g.node, i)).collect();
        let series = groups.groups.iter().map(|one| {
            let group = nodes.get(&one.node).copied();
            let place = group.and_then(|g| stacks.stack(g).get(stacks.asker(g)).copied());
            let caption = place.and_then(|p| stacks.place(p).function.clone());
            Ok(Series { of: Of::Blocks(groups.blocks(one)?), label: None, caption })
        });
        self.with(series.collect::<Result<Vec<_>, Fault>>()?)
    }

    /// Returns the file's content by the ending of its name.
    fn draw(&self, plot: &draw::Plot, path: &str) -> Result<(FileKind, Vec<u8>), Fault> {
        let ending = path.rsplit(['.', '/']).next().unwrap_or_default().to_ascii_lowercase();
        if ["jpg", "jpeg", "gif", "webp", "pdf", "eps"].contains(&ending.as_str()) {
            return Err(fault(format!(
                "cannot write {path}: graphs are SVG, or PNG if the name ends in .png"
            )));
        }
        let svg = draw::svg(self, plot).map_err(fault)?;
        match path.to_ascii_lowercase().ends_with(".png") {
            true => Ok((FileKind::Png, png::of(&svg).map_err(fault)?)),
            false => Ok((FileKind::Svg, svg.into_bytes())),
        }
    }

    fn save(&self, shared: &Shared, path: &str) -> Result<Self, Fault> {
        let plot = series::plot(self)?;
        let (kind, bytes) = self.draw(&plot, path)?;
        let data = Some(plot.data());
        shared.write(path, kind, data, &bytes)?;
        Ok(self.clone())
    }

    fn save_as(shared: &Shared) -> String {
        let n = shared.graphs.get();
        shared.graphs.set(n + 1);
        format!("Graph #{n}.svg")
    }

    fn each(
        &self,
        shared: &Shared,
        folder: &str,
        file: impl Fn(&Series, usize) -> Result<(FileKind, Vec<u8>), Fault>,
    ) -> Result<Self, Fault> {
        shared.host.borrow_mut().mkdir_p(folder).map_err(fault)?;
        for (i, s) in self.series.iter().enumerate() {
            let name = match &s.label {
                Some(label) => label.replace(['/', '\0'], "_"),
                None => format!("Series #{i}"),
            };
            let (kind, bytes) = file(s, i)?;
            let path = format!("{}/{name}.svg", folder.trim_end_matches('/'));
            shared.write(&path, kind, None, &bytes)?;
        }
        Ok(self.clone())
    }

    fn each_as_graph(&self, shared: &Shared, folder: &str) -> Result<Self, Fault> {
        let plot = series::plot(self)?;
        self.each(shared, folder, |_, i| {
            let one = plot.of_one(i);
            Ok((FileKind::Svg, draw::svg(self, &one).map_err(fault)?.into_bytes()))
        })
    }

    fn each_as_flamegraph(&self, shared: &Shared, folder: &str) -> Result<Self, Fault> {
        let own = series::own_lists(self)?;
        self.each(shared, folder, |_, i| Ok((FileKind::Svg, crate::save::flamegraph(&own[i])?)))
    }
}

/// Writes a list as a graph.
pub(crate) fn save_list(list: &AllocationList, path: Option<&str>) -> Result<(), Fault> {
    let graph = Graph::new().add(None, Of::Blocks(list.clone()))?;
    let path = path.map_or_else(|| Graph::save_as(&list.shared), str::to_owned);
    graph.save(&list.shared, &path).map(|_| ())
}

fn color(text: &str) -> Result<Color, Fault> {
    csscolorparser::parse(text)
        .map_err(|_| fault(format!("{text:?} is no colour; give one such as red or #ff8000")))
}

/// Registers `graph` and its methods.
pub(crate) fn register(r: &mut Registry, shared: &Rc<Shared>) {
    r.engine.register_type_with_name::<Graph>("Graph");
    r.of("").def(
        "graph",
        "() -> Graph",
        "Returns an empty graph.",
        "graph().add(allocations()).save();",
        Graph::new,
    );
    r.of("Graph");
    register_series(r);
    register_looks(r);
    register_files(r, shared);
}

fn register_series(r: &mut Registry) {
    const GROUPS: &str = "graph().add(\"Leaked\", allocations().only_leaked())\n    \
         .add(\"Temporary\", allocations()).save();";
    r.def(
        "add",
        "(label: String, list: AllocationList|AllocationGroupList|MapList) -> Graph",
        "Adds a series, with a label or without; of groups a series for each. A series shows only what none before it does.",
        GROUPS,
        |g: &mut Graph, list: AllocationList| g.add(None, Of::Blocks(list)),
    )
    .also(|g: &mut Graph, label: &str, list: AllocationList| g.add(Some(label), Of::Blocks(list)))
    .also(|g: &mut Graph, list: MapList| g.add(None, Of::Maps(list)))
    .also(|g: &mut Graph, label: &str, list: MapList| g.add(Some(label), Of::Maps(list)))
    .also(|g: &mut Graph, groups: AllocationGroupList| g.add_groups(&groups));
    let shows: [(&str, Show, &str, &str); 6] = [
        (
            "show_memory_usage",
            Show::Memory,
            "allocations",
            "Shows the live bytes, as it does by default.",
        ),
        ("show_live_allocations", Show::Live, "allocations", "Shows the number of live blocks."),
        (
            "show_new_allocations",
            Show::New,
            "allocations",
            "Shows the number of blocks that are made.",
        ),
        ("show_deallocations", Show::Ended, "allocations", "Shows the number of blocks that end."),
        (
            "show_rss",
            Show::Rss,
            "maps",
            "Shows the resident bytes of mappings, as it does by default.",
        ),
        ("show_address_space", Show::AddressSpace, "maps", "Shows the address space of mappings."),
    ];
    for (name, show, list, doc) in shows {
        let example = format!("graph().add({list}()).{name}().save();");
        let set = move |g: &mut Graph| Graph { show: Some(show), ..g.clone() };
        r.def(name, "() -> Graph", doc, example, set);
    }
}

fn register_looks(r: &mut Registry) {
    let with = |what: &str| format!("graph().add(\"All\", allocations()).{what}.save();");
    let doc = "Leaves out the time before anything is shown.";
    r.def("trim_left", "() -> Graph", doc, with("trim_left()"), |g: &mut Graph| Graph {
        trim: (true, g.trim.1),
        ..g.clone()
    })
    .def(
        "trim_right",
        "() -> Graph",
        "Leaves out the time after the last moment at which anything is shown.",
        with("trim_right()"),
        |g: &mut Graph| Graph { trim: (g.trim.0, true), ..g.clone() },
    )
    .def(
        "trim",
        "() -> Graph",
        "Leaves out the empty time on both sides.",
        with("trim()"),
        |g: &mut Graph| Graph { trim: (true, true), ..g.clone() },
    );
    let until = |g: &mut Graph, time: Duration| Graph { end: Some(time), ..g.clone() };
    r.def(
        "start_at",
        "(time: Duration) -> Graph",
        "Begins the graph at this time since the start of the recording.",
        with("start_at(data().runtime() * 0.2)"),
        |g: &mut Graph, time: Duration| Graph { start: Some(time), ..g.clone() },
    )
    .def(
        "end_at",
        "(time: Duration) -> Graph",
        "Ends the graph at this time, which may be after the end of the recording.",
        with("end_at(data().runtime() + s(5))"),
        until,
    );
    for (name, shorter) in [("extend_until", false), ("truncate_until", true)] {
        let set = move |g: &mut Graph, time: Duration| {
            let now = g.end;
            let end = match (now, shorter) {
                (Some(now), true) => now.min(time),
                (Some(now), false) => now.max(time),
                (None, _) => time,
            };
            Graph { end: Some(end), ..g.clone() }
        };
        let doc = "Ends the graph at this time; use end_at.";
        let example = with(&format!("{name}(data().runtime() * 0.9)"));
        r.def(name, "(time: Duration) -> Graph", doc, example, set)
            .note("bytehound removed it in 2022; kept for older scripts.");
    }
    r.def(
        "only_non_empty_series",
        "() -> Graph",
        "Leaves series without anything out of the legend.",
        with("only_non_empty_series()"),
        |g: &mut Graph| Graph { only_non_empty: true, ..g.clone() },
    )
    .def("without_legend", "() -> Graph", "Leaves out the legend.", with("without_legend()"), |g: &mut Graph| {
        Graph { legend: false, ..g.clone() }
    })
    .def("without_axes", "() -> Graph", "Leaves out the axes.", with("without_axes()"), |g: &mut Graph| {
        Graph { axes: false, ..g.clone() }
    })
    .def("without_grid", "() -> Graph", "Leaves out the grid.", with("without_grid()"), |g: &mut Graph| {
        Graph { grid: false, ..g.clone() }
    })
    .def(
        "with_gradient_color_scheme",
        "(start: String, end: String) -> Graph",
        "Colours the series from one colour, of the lowest, to another, of the uppermost. Colours are those of HTML.",
        with("with_gradient_color_scheme(\"red\", \"#0000ff\")"),
        |g: &mut Graph, start: &str, end: &str| {
            Ok::<_, Fault>(Graph { gradient: Some((color(start)?, color(end)?)), ..g.clone() })
        },
    );
}

fn register_files(r: &mut Registry, shared: &Rc<Shared>) {
    const TWO: &str =
        "graph().add(\"Leaked\", allocations().only_leaked()).add(\"Other\", allocations())";
    let own = [(); 6].map(|()| shared.clone());
    let [s0, s1, s2, s3, s4, s5] = own;
    r.def(
        "save",
        "(path: String) -> Graph",
        "Writes the graph to a file: PNG if its name ends in .png, else SVG (names of other pictures are refused); without a path to `Graph #0.svg`.",
        "graph().add(allocations()).save(\"allocations.svg\");",
        move |g: &mut Graph| g.save(&s0, &Graph::save_as(&s0)),
    )
    .also(move |g: &mut Graph, path: &str| g.save(&s1, path))
    .def(
        "save_each_series_as_graph",
        "(folder: String) -> Graph",
        "Writes each series to a graph of its own, LABEL.svg, in the current folder or another.",
        format!("{TWO}.save_each_series_as_graph();"),
        move |g: &mut Graph| g.each_as_graph(&s2, "."),
    )
    .also(move |g: &mut Graph, folder: &str| g.each_as_graph(&s3, folder))
    .def(
        "save_each_series_as_flamegraph",
        "(folder: String) -> Graph",
        "Writes each series to a flame graph of its own, LABEL.svg, in the current folder or another.",
        format!("{TWO}.save_each_series_as_flamegraph();"),
        move |g: &mut Graph| g.each_as_flamegraph(&s4, "."),
    )
    .also(move |g: &mut Graph, folder: &str| g.each_as_flamegraph(&s5, folder));
}
