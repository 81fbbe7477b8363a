//! A scan as a heap dump of Java's: blocks and roots are objects, and their names are classes.

use super::graph::ScanGraph;
use super::{RootData, RootKind};
use crate::export::hprof::{Dump, Id, Layout, NO_STACK, Object, Reason, Sink, class_name};
use prof_graph::{HeapBlock, Sum};
use std::collections::HashMap;
use std::io;

/// Blocks that have all one size, up to this, are objects with fields. Others are arrays.
const LARGEST_OBJECT: u64 = 1024;
/// Pointers of a root that is an object with fields.
const MOST_FIELDS: usize = 256;
/// Bytes of all blocks that are written at most: sizes in a damaged or hostile recording may be anything.
const MOST_BYTES: u64 = 1 << 38;
/// Name of the class of blocks that were freed while the memory was read, and of what leads to unreachable blocks.
const FREED: &str = "(freed while the memory was read)";
const UNREACHABLE: &str = "(no root leads to these blocks)";
/// Name of the fields that fill up an object's size.
const NUMBER: &str = "other bytes";

/// A class of blocks: all that have one name.
struct Kind {
    name: String,
    class: Id,
    /// The size of its blocks; `None`: they have several.
    size: Option<u64>,
    /// The most pointers that one of them has.
    pointers: usize,
}

impl Kind {
    /// Returns the fields of its objects; `None`: they are arrays.
    fn layout(&self) -> Option<Layout> {
        let size = self.size.filter(|s| *s <= LARGEST_OBJECT && self.pointers <= MOST_FIELDS)?;
        Some(Layout::new(self.pointers as u16, size as u32))
    }
}

/// The classes of all blocks.
#[derive(Default)]
struct Kinds {
    all: Vec<Kind>,
    /// Indexes by stack and table of virtual functions.
    of: HashMap<(Option<u32>, Option<u64>), usize>,
}

impl Kinds {
    fn new(graph: &ScanGraph<'_>) -> Self {
        let (mut kinds, mut names) = (Self::default(), HashMap::new());
        for b in graph.heap.blocks() {
            let i = *kinds.of.entry((b.stack, b.class)).or_insert_with(|| {
                let name = graph.name_of(&b);
                *names.entry(name.clone()).or_insert_with(|| {
                    let size = b.stack.is_some().then_some(b.size);
                    kinds.all.push(Kind { name, class: Id(0), size, pointers: 0 });
                    kinds.all.len() - 1
                })
            });
            let kind = &mut kinds.all[i];
            kind.size = kind.size.filter(|s| *s == b.size);
            kind.pointers = kind.pointers.max(b.to.len());
        }
        kinds
    }

    fn at(&self, b: &HeapBlock<'_>) -> Option<&Kind> {
        self.all.get(*self.of.get(&(b.stack, b.class))?)
    }
}

/// An object that stands for a root.
struct RootObject<'a> {
    number: u32,
    data: &'a RootData,
    class: Id,
    object: Id,
    /// The roots that are parts of it.
    parts: Vec<u32>,
}

impl<'a> RootObject<'a> {
    /// Returns the objects of all roots.
    fn all(graph: &'a ScanGraph<'_>, dump: &mut Dump<'_>) -> Vec<Self> {
        let mut parts: HashMap<u32, Vec<u32>> = HashMap::new();
        for part in 0..graph.heap.roots().len() as u32 {
            if let Some(above) = graph.heap.root_above(part) {
                parts.entry(above).or_default().push(part);
            }
        }
        let object = |(number, root)| {
            let parts = parts.remove(&number).unwrap_or_default();
            let data = graph.roots.get(root)?;
            Some(Self { number, data, class: dump.id(), object: dump.id(), parts })
        };
        (0..).zip(graph.heap.roots()).filter_map(object).collect()
    }

    fn name(&self) -> String {
        let text = self.data.text();
        if self.data.kind == RootKind::Variable { format!("variable {text}") } else { text }
    }

    fn reason(&self) -> Reason {
        match self.data.kind {
            RootKind::Variable | RootKind::Data => Reason::Native,
            RootKind::Stack | RootKind::Frame | RootKind::ThreadLocal => {
                Reason::Stack(self.data.thread.map_or(0, |t| t.as_u32()))
            }
            RootKind::Mapping | RootKind::Kernel | RootKind::Several => Reason::Unknown,
        }
    }

    fn layout(&self, graph: &ScanGraph<'_>) -> Option<Layout> {
        let n = self.pointers(graph);
        (n <= MOST_FIELDS).then(|| Layout::new(n as u16, 0))
    }

    fn pointers(&self, graph: &ScanGraph<'_>) -> usize {
        self.parts.len() + graph.heap.pointers_of_root(self.number).len()
    }

    /// Returns what its fields are called; `None`: it is an array.
    fn fields(&self, graph: &ScanGraph<'_>) -> Option<Vec<String>> {
        self.layout(graph)?;
        let start = self.data.start();
        let frame = |part: &u32| {
            let data = graph.heap.roots().get(*part as usize).and_then(|r| graph.roots.get(r));
            data.map_or_else(|| "frame".to_owned(), RootData::frame_text)
        };
        let mut names: Vec<String> = self.parts.iter().map(frame).collect();
        for e in graph.heap.pointers_of_root(self.number) {
            names.push(match start.and_then(|s| e.at.checked_sub(s)) {
                _ if e.at == 0 => "register".to_owned(),
                Some(offset) => format!("+{offset:#x}"),
                None => format!("{:#x}", e.at),
            });
        }
        Some(names)
    }
}

/// The classes that readers want to see. The first is above all others; those behind [`REFERENCE`] extend that: without them
/// VisualVM computes no retained sizes.
const SYSTEM: [&str; 8] = [
    "java.lang.Object",
    "java.lang.Class",
    "java.lang.ClassLoader",
    "java.lang.ref.Reference",
    "java.lang.ref.WeakReference",
    "java.lang.ref.SoftReference",
    "java.lang.ref.FinalReference",
    "java.lang.ref.PhantomReference",
];
const REFERENCE: usize = 3;
/// Name of the only field of [`REFERENCE`].
const REFERENT: &str = "referent";

/// The classes of no block and of no root.
struct Fixed {
    system: [Id; SYSTEM.len()],
    /// The class of all frames.
    frames: Id,
    /// `java.lang.Object[]`.
    arrays: Id,
    unreachable: Id,
}

impl Fixed {
    fn new(dump: &mut Dump<'_>) -> Self {
        let mut id = || dump.id();
        Self { system: SYSTEM.map(|_| id()), frames: id(), arrays: id(), unreachable: id() }
    }

    /// Returns the class above all others.
    fn base(&self) -> Id {
        self.system[0]
    }

    fn name(&self, dump: &mut Dump<'_>) -> io::Result<()> {
        // Frames are of the class that is named first.
        dump.name_class(self.frames, "native", false)?;
        for (class, name) in self.system.iter().zip(SYSTEM) {
            dump.name_class(*class, name, false)?;
        }
        dump.name_class(self.arrays, SYSTEM[0], true)?;
        dump.name_class(self.unreachable, UNREACHABLE, true)?;
        dump.text(REFERENT).map(drop)
    }

    fn add(&self, dump: &mut Dump<'_>, number: Id) -> io::Result<()> {
        let referent = dump.text(REFERENT)?;
        for (i, class) in self.system.iter().enumerate() {
            let above = match i {
                0 => Id(0),
                1..=REFERENCE => self.base(),
                _ => self.system[REFERENCE],
            };
            let fields = if i == REFERENCE { &[referent][..] } else { &[] };
            dump.class(*class, above, Layout::new(fields.len() as u16, 0), fields, number)?;
        }
        for class in [self.frames, self.arrays, self.unreachable] {
            dump.class(class, self.base(), Layout::default(), &[], number)?;
        }
        Ok(())
    }
}

/// A dump that is being written.
struct Writer<'g, 'd> {
    graph: &'g ScanGraph<'g>,
    dump: Dump<'d>,
    fixed: Fixed,
    kinds: Kinds,
    roots: Vec<RootObject<'g>>,
    /// Objects of the roots, by their numbers.
    objects: HashMap<u32, Id>,
    /// Numbers that the dump has for stacks.
    stacks: HashMap<u32, u32>,
}

impl ScanGraph<'_> {
    /// Writes the graph as a heap dump of the format HPROF, for Eclipse MAT and its like; `unix_ms`: the moment, in
    /// milliseconds since 1970. Returns the blocks that were too large to be written whole, and their bytes that are missing.
    ///
    /// # Errors
    /// If `out` can't be written to.
    pub fn hprof(&self, unix_ms: u64, out: &mut dyn Sink) -> io::Result<Sum> {
        let mut dump = Dump::begin(out, unix_ms)?;
        let mut kinds = Kinds::new(self);
        kinds.all.iter_mut().for_each(|k| k.class = dump.id());
        let fixed = Fixed::new(&mut dump);
        let roots = RootObject::all(self, &mut dump);
        let objects = roots.iter().map(|r| (r.number, r.object)).collect();
        let stacks = HashMap::new();
        let mut writer = Writer { graph: self, dump, fixed, kinds, roots, objects, stacks };
        writer.name_classes()?;
        writer.add_stacks()?;
        writer.add_classes()?;
        writer.add_roots()?;
        writer.add_unreachable()?;
        let cut = writer.add_blocks()?;
        writer.dump.finish()?;
        Ok(cut)
    }

    /// Returns what a block is called: its class, or the function that asked for it.
    fn name_of(&self, b: &HeapBlock<'_>) -> String {
        match (b.class.and_then(|c| self.classes.get(&c)), b.stack) {
            (_, None) => FREED.to_owned(),
            (Some(class), _) => class.clone(),
            (None, Some(stack)) => short(&self.names.get(stack).label()),
        }
    }

    fn address(&self, block: u32) -> Id {
        Id(self.heap.address(block))
    }
}

impl Writer<'_, '_> {
    /// Writes the names of all classes and fields: readers want texts before what they name.
    fn name_classes(&mut self) -> io::Result<()> {
        let Self { graph, dump, fixed, kinds, roots, .. } = self;
        fixed.name(dump)?;
        for kind in &kinds.all {
            dump.name_class(kind.class, &class_name(&kind.name), kind.layout().is_none())?;
        }
        let most = kinds.all.iter().filter_map(Kind::layout).map(|l| l.pointers).max();
        for k in 0..most.unwrap_or(0) {
            dump.text(&field(k))?;
        }
        dump.text(NUMBER)?;
        for root in roots {
            let fields = root.fields(graph);
            dump.name_class(root.class, &class_name(&root.name()), fields.is_none())?;
            for name in fields.unwrap_or_default() {
                dump.text(&name)?;
            }
        }
        Ok(())
    }

    /// Writes the stacks that allocated the blocks.
    fn add_stacks(&mut self) -> io::Result<()> {
        let mut stacks: Vec<u32> = self.kinds.of.keys().filter_map(|(stack, _)| *stack).collect();
        stacks.sort_unstable();
        stacks.dedup();
        let mut frames = Vec::new();
        for stack in stacks {
            frames.clear();
            for f in &self.graph.names.get(stack).frames {
                let function = f.function.as_deref().unwrap_or(&f.address);
                let file = f.file.as_deref().or(f.module.as_deref()).unwrap_or_default();
                frames.push(self.dump.frame(function, file, f.line.unwrap_or(0))?);
            }
            let number = self.dump.stack(&frames)?;
            self.stacks.insert(stack, number);
        }
        Ok(())
    }

    fn add_classes(&mut self) -> io::Result<()> {
        let Self { graph, dump, fixed, kinds, roots, .. } = self;
        let number = dump.text(NUMBER)?;
        fixed.add(dump, number)?;
        for kind in &kinds.all {
            let layout = kind.layout().unwrap_or_default();
            let names: io::Result<Vec<Id>> =
                (0..layout.pointers).map(|k| dump.text(&field(k))).collect();
            dump.class(kind.class, fixed.base(), layout, &names?, number)?;
        }
        for root in roots {
            let names = root.fields(graph).unwrap_or_default();
            let names: io::Result<Vec<Id>> = names.iter().map(|name| dump.text(name)).collect();
            let layout = Layout::new(root.layout(graph).map_or(0, |l| l.pointers), 0);
            dump.class(root.class, fixed.base(), layout, &names?, number)?;
        }
        Ok(())
    }

    fn add_roots(&mut self) -> io::Result<()> {
        let Self { graph, dump, fixed, roots, objects, .. } = self;
        for class in fixed.system {
            dump.root(class, Reason::Class)?;
        }
        for root in roots.iter().filter(|r| graph.heap.root_above(r.number).is_none()) {
            dump.root(root.object, root.reason())?;
        }
        dump.compress(fixed.arrays)?;
        for root in roots.iter() {
            let parts = root.parts.iter().filter_map(|part| objects.get(part).copied());
            let blocks =
                graph.heap.pointers_of_root(root.number).iter().map(|e| graph.address(e.to));
            let object = Object { id: root.object, class: root.class, stack: NO_STACK };
            match root.layout(graph) {
                Some(layout) => dump.instance(object, layout, parts.chain(blocks))?,
                None => dump.array(object, root.pointers(graph) as u64, 0, parts.chain(blocks))?,
            }
        }
        Ok(())
    }

    /// Makes a root of the blocks that no root leads to: readers leave out what is unreachable.
    fn add_unreachable(&mut self) -> io::Result<()> {
        let heads = self.graph.heap.unreached_heads();
        if heads.is_empty() {
            return Ok(());
        }
        let id = self.dump.id();
        self.dump.root(id, Reason::Unknown)?;
        let object = Object { id, class: self.fixed.unreachable, stack: NO_STACK };
        let to = heads.iter().map(|b| self.graph.address(*b));
        self.dump.array(object, heads.len() as u64, 0, to)
    }

    fn add_blocks(&mut self) -> io::Result<Sum> {
        let Self { graph, dump, kinds, stacks, .. } = self;
        let most = largest_block(graph);
        let mut cut = Sum::default();
        for b in graph.heap.blocks() {
            let Some(kind) = kinds.at(&b) else { continue };
            let stack = b.stack.and_then(|s| stacks.get(&s).copied()).unwrap_or(NO_STACK);
            let object = Object { id: Id(b.address), class: kind.class, stack };
            let to = b.to.iter().map(|to| graph.address(*to));
            if let Some(layout) = kind.layout() {
                dump.instance(object, layout, to)?;
                continue;
            }
            if b.size > most {
                cut.blocks += 1;
                cut.bytes = cut.bytes.saturating_add(b.size - most);
            }
            dump.array(object, b.to.len() as u64, b.size.min(most), to)?;
        }
        Ok(cut)
    }
}

/// Returns a function with its place without the folders of that.
fn short(label: &str) -> String {
    let Some((function, place)) = label.rsplit_once(' ') else { return label.to_owned() };
    let (front, path) = place.split_at(place.len() - place.trim_start_matches('(').len());
    format!("{function} {front}{}", path.rsplit('/').next().unwrap_or(path))
}

/// Returns the name of a pointer of a block.
fn field(k: u16) -> String {
    format!("pointer {k}")
}

/// Returns how many bytes of a block are written at most, so that the file has no more than [`MOST_BYTES`] of all.
fn largest_block(graph: &ScanGraph<'_>) -> u64 {
    let mut most = MOST_BYTES;
    let all =
        |most: u64| graph.heap.blocks().fold(0, |all: u64, b| all.saturating_add(b.size.min(most)));
    while most > LARGEST_OBJECT && all(most) > MOST_BYTES {
        most /= 2;
    }
    most
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::Names;
    use prof_graph::{Edges, Heap, Keys, Table};
    use std::io::Write;

    /// Counts bytes.
    struct Count(u64);

    impl Write for Count {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += bytes.len() as u64;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Sink for Count {
        fn zeros(&mut self, n: u64) -> io::Result<()> {
            self.0 += n;
            Ok(())
        }
    }

    /// Returns the length of the dump of blocks without pointers, and what is cut off them.
    fn written(sizes: &[u64]) -> (u64, Sum) {
        let mut keys = Keys::default();
        (1..).zip(sizes).for_each(|(k, _)| keys.push(k << 12, 16));
        let edges = Edges {
            starts: vec![0; sizes.len() + 1],
            to: Vec::new(),
            roots: Vec::new(),
            above: Vec::new(),
            of_roots: Vec::new(),
            classes: Vec::new(),
            tables: Vec::new(),
            left_out: 0,
        };
        let size = |at: u64| Some((1, sizes[(at >> 12) as usize - 1]));
        let heap = Heap::new(Table::new(keys), edges, [], size);
        let (roots, names, classes) = (HashMap::new(), Names::default(), HashMap::new());
        let graph = ScanGraph { heap: &heap, roots: &roots, names: &names, classes };
        let mut out = Count(0);
        let cut = graph.hprof(0, &mut out).expect("written");
        (out.0, cut)
    }

    #[test]
    fn places_have_no_folders() {
        for (label, wanted) in [
            ("add(int, char) /src/a b.cpp:7", "add(int, char) /src/a b.cpp:7"),
            ("add(int) /src/b.cpp:7", "add(int) b.cpp:7"),
            ("0x17 (/lib/x.so)", "0x17 (x.so)"),
            ("(no stack)", "(no stack)"),
            ("f ", "f "),
        ] {
            assert_eq!(short(label), wanted);
        }
    }

    #[test]
    fn sizes_of_a_hostile_recording_make_no_huge_file() {
        let (len, cut) = written(&[100, 3000, 1 << 20]);
        assert!(((2 << 20)..(2 << 20) + 10_000).contains(&len) && cut == Sum::default(), "{len}");
        let (len, cut) = written(&[MOST_BYTES + 5]);
        assert!((2 * MOST_BYTES).abs_diff(len) < 1 << 21, "{len}");
        assert_eq!(cut, Sum { bytes: 5, blocks: 1 });
        let (len, cut) = written(&[1 << 47; 3000]);
        assert!(len > MOST_BYTES / 2 && len < MOST_BYTES * 5 / 2, "{len}");
        assert_eq!(cut.blocks, 3000);
        assert!(written(&[u64::MAX; 2]).1.blocks == 2);
    }
}
