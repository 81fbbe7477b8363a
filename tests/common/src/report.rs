//! The JSON report, with methods for what tests check.

use super::build::line_of;
use serde_json::Value;

/// Allocator functions, whose frames precede the frame that asked for memory.
const ALLOCATORS: [&str; 12] = [
    "malloc",
    "calloc",
    "realloc",
    "reallocarray",
    "posix_memalign",
    "aligned_alloc",
    "memalign",
    "valloc",
    "pvalloc",
    "__libc_malloc",
    "__libc_calloc",
    "__libc_realloc",
];

/// A report in the format of `prof report --format json`.
pub struct Report(pub Value);

impl Report {
    /// Reads the JSON.
    #[track_caller]
    pub fn parse(text: &str) -> Self {
        Self(serde_json::from_str(text).unwrap_or_else(|e| panic!("no JSON: {e}\n{text}")))
    }

    /// Returns the value at a JSON pointer, which must exist.
    #[track_caller]
    pub fn at(&self, pointer: &str) -> &Value {
        self.0.pointer(pointer).unwrap_or_else(|| panic!("no {pointer} in {:#}", self.brief()))
    }

    /// Returns the count at a JSON pointer.
    #[track_caller]
    pub fn number(&self, pointer: &str) -> u64 {
        let v = self.at(pointer);
        v.as_u64().unwrap_or_else(|| panic!("{pointer} is {v}, not a count"))
    }

    /// Returns the truth value at a JSON pointer.
    #[track_caller]
    pub fn bool(&self, pointer: &str) -> bool {
        let v = self.at(pointer);
        v.as_bool().unwrap_or_else(|| panic!("{pointer} is {v}"))
    }

    /// Returns one of the totals.
    #[track_caller]
    pub fn total(&self, name: &str) -> u64 {
        self.number(&format!("/totals/{name}"))
    }

    /// Returns all groups, in the order of the report.
    #[track_caller]
    pub fn groups(&self) -> impl Iterator<Item = Group<'_>> {
        self.at("/groups").as_array().expect("groups is a list").iter().map(Group)
    }

    /// Returns the groups whose asking function (the first frame that is not an allocator) has this name.
    #[track_caller]
    pub fn asked_by(&self, function: &str) -> Vec<Group<'_>> {
        self.groups().filter(|g| g.asker().is_some_and(|f| f.function() == function)).collect()
    }

    /// Returns the only group of allocations on the line of a source that is marked with `@marker`.
    #[track_caller]
    pub fn marked(&self, source: &str, marker: &str) -> Group<'_> {
        let line = line_of(source, marker);
        let here = |f: &Frame<'_>| f.file().ends_with(source) && f.line() == line;
        let mut found: Vec<_> =
            self.groups().filter(|g| g.asker().is_some_and(|f| here(&f))).collect();
        assert!(
            found.len() == 1,
            "{} groups were allocated at {source}:{line} (@{marker}), not 1; the askers are:\n{}",
            found.len(),
            self.askers()
        );
        found.remove(0)
    }

    /// Returns one line for each group, for messages.
    pub fn askers(&self) -> String {
        let all = self.groups().take(60);
        all.map(|g| format!("{}  {}", g.asker().map_or("?".into(), |f| f.show()), g.numbers()))
            .collect::<Vec<_>>()
            .join("\n")
    }

    /// Returns the report without its groups, for messages.
    pub fn brief(&self) -> Value {
        let mut v = self.0.clone();
        if let Some(o) = v.as_object_mut() {
            o.remove("groups");
        }
        v
    }

    /// Asserts that nothing was lost, and that the totals are the sums of the groups.
    #[track_caller]
    pub fn assert_sound(&self) {
        assert_eq!(self.number("/recording/lost_events"), 0, "{:#}", self.brief());
        let sum = |name: &str| self.groups().map(|g| g.number(name)).sum::<u64>();
        for name in ["live_count", "live_bytes", "allocated_bytes", "temporary"] {
            assert_eq!(sum(name), self.total(name), "sum of the groups' {name}");
        }
        let unknown = self.number("/recording/unknown_frees");
        assert_eq!(
            self.total("allocations") + unknown - self.total("frees"),
            self.total("live_count"),
            "allocations + unknown frees - frees = live blocks: {:#}",
            self.brief()
        );
    }
}

/// The figures of one stack.
#[derive(Clone, Copy)]
pub struct Group<'a>(pub &'a Value);

impl<'a> Group<'a> {
    /// Returns one of its figures.
    #[track_caller]
    pub fn number(&self, name: &str) -> u64 {
        self.0[name].as_u64().unwrap_or_else(|| panic!("{name} of a group is {}", self.0[name]))
    }

    /// Returns the frames of its stack, the innermost first.
    #[track_caller]
    pub fn frames(&self) -> Vec<Frame<'a>> {
        self.0["frames"].as_array().expect("frames is a list").iter().map(Frame).collect()
    }

    /// Returns the innermost frame that is not an allocator.
    #[track_caller]
    pub fn asker(&self) -> Option<Frame<'a>> {
        self.frames().into_iter().find(|f| {
            let name = f.function();
            !ALLOCATORS.contains(&name) && !name.starts_with("operator new")
        })
    }

    /// Returns the names of the functions, innermost first, including inlined ones.
    #[track_caller]
    pub fn functions(&self) -> Vec<&'a str> {
        self.frames().iter().map(Frame::function).collect()
    }

    /// Returns whether the stack reaches the start of its thread. It does so by name where symbols are installed; a
    /// stripped program has no `_start`, and libc without debug symbols no `clone3`, so there the modules decide.
    #[track_caller]
    pub fn rooted(&self) -> bool {
        let frames: Vec<_> = self.frames().into_iter().filter(|f| !f.inlined()).collect();
        let Some(last) = frames.last() else { return false };
        let name = last.function();
        let libc = |f: &Frame<'_>| f.module().contains("/libc.so");
        let start = |f: &Frame<'_>| f.function().starts_with("__libc_start_main");
        match frames.len().checked_sub(2).map(|i| &frames[i]) {
            _ if name == super::START || name == "start_thread" || name.contains("clone") => true,
            Some(before) if name.is_empty() && !libc(last) => start(before),
            Some(before) => libc(last) && libc(before) && !start(last),
            None => false,
        }
    }

    /// Returns its figures without its frames, for messages.
    pub fn numbers(&self) -> String {
        let mut v = self.0.clone();
        if let Some(o) = v.as_object_mut() {
            o.remove("frames");
        }
        v.to_string()
    }

    /// Asserts live count and bytes.
    #[track_caller]
    pub fn assert_live(&self, count: u64, bytes: u64) {
        let got = (self.number("live_count"), self.number("live_bytes"));
        let show = || self.frames().iter().map(Frame::show).collect::<Vec<_>>().join("\n");
        assert!(
            got == (count, bytes),
            "live {got:?}, not ({count}, {bytes}): {}\n{}",
            self.numbers(),
            show()
        );
    }
}

/// A frame of a stack.
#[derive(Clone, Copy)]
pub struct Frame<'a>(pub &'a Value);

impl<'a> Frame<'a> {
    /// Returns the name without arguments; empty if it is not known.
    pub fn function(&self) -> &'a str {
        let name = self.0["function"].as_str().unwrap_or("");
        if name.starts_with("operator") {
            return name;
        }
        name.split('(').next().unwrap_or(name)
    }
    /// Returns the path of the source; empty if it is not known.
    pub fn file(&self) -> &'a str {
        self.0["file"].as_str().unwrap_or("")
    }
    /// Returns the line in the source; 0 if it is not known.
    pub fn line(&self) -> u64 {
        self.0["line"].as_u64().unwrap_or(0)
    }
    /// Returns the path of the file that is mapped at its address; empty if there is none.
    pub fn module(&self) -> &'a str {
        self.0["module"].as_str().unwrap_or("")
    }
    /// Returns whether the function was inlined into that of the next frame.
    pub fn inlined(&self) -> bool {
        self.0["inlined"].as_bool().unwrap_or(false)
    }
    /// Returns the address in the process.
    #[track_caller]
    pub fn address(&self) -> u64 {
        let text = self.0["address"].as_str().unwrap_or("");
        let digits = text.strip_prefix("0x").unwrap_or_else(|| panic!("address {}", self.0));
        u64::from_str_radix(digits, 16).unwrap_or_else(|e| panic!("address {text}: {e}"))
    }
    /// Returns all of it on one line, for messages.
    pub fn show(&self) -> String {
        let f = self.0;
        format!("{} {} {}:{} {}", f["address"], f["function"], f["file"], f["line"], f["module"])
    }
}
