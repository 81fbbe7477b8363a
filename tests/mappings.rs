//! Calls that change mappings, or the allocator's settings: each is recorded with its arguments, its result and its
//! whole stack, to the byte.

use common::build::{line_of, program, program_with};
use common::{Scene, Target};
use prof_analyze::Analysis;
use prof_analyze::load::{LoadOptions, MapEvent, Meta, calls};
use prof_analyze::symbols::Symbolizer;
use prof_trace::records::CallKind;
use std::collections::HashMap;
use std::path::Path;

const SOURCE: &str = "mapped.c";
const RW: u32 = (libc::PROT_READ | libc::PROT_WRITE) as u32;
const ANON: u32 = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u32;

fn page() -> u64 {
    // SAFETY: `sysconf` takes no pointers.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as u64 }
}

/// A finished recording of calls.
struct Recorded {
    all: Vec<MapEvent>,
    meta: Meta,
    analysis: Analysis,
    /// Values that the program has printed.
    answers: HashMap<String, u64>,
}

impl Recorded {
    fn read(path: &Path, answers: &str) -> Self {
        let mut all = Vec::new();
        let meta = calls(path, |e| all.push(e.clone())).expect("a recording");
        assert_eq!((meta.bad_chunks, meta.counters.lost, meta.counters.reentered), (0, 0, 0));
        let analysis = Analysis::from_file(path, &LoadOptions::default()).expect("a recording");
        let pair =
            |w: &str| w.split_once('=').map(|(k, v)| (k.into(), v.parse().expect("a number")));
        Self { all, meta, analysis, answers: answers.split(' ').filter_map(pair).collect() }
    }

    fn answer_of(&self, name: &str) -> u64 {
        *self.answers.get(name).unwrap_or_else(|| panic!("no {name}: {:?}", self.answers))
    }

    /// Returns the functions, with lines, of a stack, innermost first.
    fn stack(&self, node: u32) -> Vec<(String, u32)> {
        let mut symbols = Symbolizer::new(&self.analysis);
        let mut all = Vec::new();
        for pc in self.analysis.meta().stack(node) {
            for f in symbols.frames(pc).iter() {
                let name = f.function.as_deref().unwrap_or_default().to_owned();
                all.push((name, f.line.unwrap_or(0)));
            }
        }
        assert!(!self.analysis.meta().is_cut(node), "{all:?}");
        all
    }

    /// Returns the calls of a kind that have this line of the program in their stacks, which are whole.
    fn at(&self, kind: CallKind, marker: &str) -> Vec<&MapEvent> {
        let line = line_of(SOURCE, marker) as u32;
        let here = |e: &&MapEvent| {
            e.call.kind == kind && self.stack(e.call.node).iter().any(|f| f.1 == line)
        };
        self.all.iter().filter(here).collect()
    }

    /// Returns the only one of these.
    #[track_caller]
    fn one(&self, kind: CallKind, marker: &str) -> &MapEvent {
        let found = self.at(kind, marker);
        assert_eq!(found.len(), 1, "{kind:?} at {marker}: {found:#?}");
        let stack = self.stack(found[0].call.node);
        assert!(stack.iter().any(|f| f.0 == "main"), "{stack:?}");
        found[0]
    }

    fn of(&self, kind: CallKind) -> Vec<&MapEvent> {
        self.all.iter().filter(|e| e.call.kind == kind).collect()
    }
}

/// Records commands of the program.
#[track_caller]
fn recorded(scene: &Scene, options: &[&str], args: &[&str], commands: &[&str]) -> Recorded {
    let mut target = Target::start(&program(SOURCE), args);
    let recording = scene.attach_with(&target, options);
    let answers: Vec<String> = commands.iter().map(|c| target.ask(c)).collect();
    assert_eq!(scene.detach(&target), recording);
    // The process goes on, with the same calls.
    for c in commands {
        target.ask(c);
    }
    target.quit();
    Recorded::read(&recording, &answers.join(" "))
}

#[test]
fn regions_are_recorded_to_the_byte() {
    let scene = Scene::new("regions");
    let r = recorded(&scene, &[], &[], &["regions"]);
    let p = page();
    let e = &r.one(CallKind::Mmap, "anonymous").call;
    assert_eq!((e.addr, e.len, e.prot, e.flags), (r.answer_of("anonymous"), 3 * p, RW, ANON));
    assert_eq!((e.fd, e.offset, e.errno, e.file), (-1, 0, 0, 0));
    assert!(e.begin <= e.end);
    let e = &r.one(CallKind::Mprotect, "mprotect").call;
    assert_eq!((e.addr, e.len, e.prot), (r.answer_of("anonymous") + p, p, libc::PROT_READ as u32));
    let e = &r.one(CallKind::Madvise, "madvise").call;
    assert_eq!((e.addr, e.len, e.flags), (r.answer_of("anonymous"), p, libc::MADV_DONTNEED as u32));
    let e = &r.one(CallKind::Mremap, "mremap").call;
    assert_eq!((e.old_addr, e.old_len), (r.answer_of("anonymous"), 3 * p));
    assert_eq!(
        (e.addr, e.len, e.flags),
        (r.answer_of("grown"), 64 * p, libc::MREMAP_MAYMOVE as u32)
    );
    // The fifth argument of mremap reaches the kernel, and the mapping has moved there.
    let moved = r.of(CallKind::Mremap)[1];
    assert_eq!(
        (moved.call.old_addr, moved.call.addr),
        (r.answer_of("grown"), r.answer_of("place"))
    );
    assert_eq!(r.answer_of("moved"), r.answer_of("place"));
    let name = &r.of(CallKind::NameVma)[0].call;
    assert_eq!((name.addr, name.len), (r.answer_of("moved"), 64 * p));
    assert_eq!(name.name, "a name of my own");
    let e = &r.one(CallKind::Munmap, "munmap").call;
    assert_eq!((e.addr, e.len, e.errno), (r.answer_of("moved") + p, p, 0));
    // All came in their order.
    assert!(r.all.windows(2).all(|w| w[0].call.at() <= w[1].call.at()));
    let thread = r.all[0].thread;
    assert!(r.all.iter().all(|e| e.thread == thread && e.call.errno == 0));
}

#[test]
fn mapped_files_have_their_names() {
    let scene = Scene::new("files");
    let r = recorded(&scene, &[], &[], &["files"]);
    let e = r.one(CallKind::Mmap, "file");
    let p = page();
    assert_eq!((e.call.addr, e.call.len, e.call.offset), (r.answer_of("file"), 2 * p, p));
    assert_eq!((e.call.prot, e.call.flags), (libc::PROT_READ as u32, libc::MAP_PRIVATE as u32));
    assert_eq!(e.call.fd as u64, r.answer_of("fd"));
    let file = e.file.as_ref().expect("the file");
    let own = std::fs::metadata(program(SOURCE)).expect("the program");
    assert_eq!(file.inode, std::os::unix::fs::MetadataExt::ino(&own));
    assert_eq!(Path::new(&file.path), program(SOURCE).canonicalize().expect("its path"));
    let at = r.answer_of("memfd");
    let e = r.of(CallKind::Mmap).into_iter().find(|e| e.call.addr == at).expect("the memfd");
    assert_eq!(e.call.flags, libc::MAP_SHARED as u32);
    assert!(e.file.as_ref().is_some_and(|f| f.path.starts_with("/memfd:of my own")), "{e:?}");
}

#[test]
fn failed_calls_have_their_errors() {
    let scene = Scene::new("failing");
    let r = recorded(&scene, &[], &[], &["failing"]);
    let errors: Vec<_> = r.all.iter().map(|e| (e.call.kind, e.call.errno, e.call.addr)).collect();
    let wanted = [
        (CallKind::Munmap, libc::EINVAL as u16, 1),
        (CallKind::Mmap, libc::EINVAL as u16, 0),
        (CallKind::Mprotect, libc::ENOMEM as u16, page()),
    ];
    assert_eq!(errors, wanted);
}

#[test]
fn the_break_is_followed() {
    let scene = Scene::new("breaks");
    let r = recorded(&scene, &[], &[], &["breaks"]);
    let (at, p) = (r.answer_of("break"), page());
    let moves: Vec<_> = r.all.iter().map(|e| (e.call.kind, e.call.old_addr, e.call.addr)).collect();
    let wanted = [
        (CallKind::Sbrk, at, at + 4 * p),
        (CallKind::Brk, at + 4 * p, at + 2 * p),
        (CallKind::Sbrk, at + 2 * p, at),
    ];
    assert_eq!(moves, wanted);
    r.one(CallKind::Sbrk, "sbrk");
    r.one(CallKind::Brk, "brk");
}

#[test]
fn shared_segments_are_recorded() {
    let scene = Scene::new("shared");
    let r = recorded(&scene, &[], &[], &["shared"]);
    let e = &r.one(CallKind::Shmat, "shmat").call;
    assert_eq!((e.addr, e.fd as u64, e.errno), (r.answer_of("segment"), r.answer_of("shmid"), 0));
    let e = &r.one(CallKind::Shmdt, "shmdt").call;
    assert_eq!((e.addr, e.errno), (r.answer_of("segment"), 0));
}

#[test]
fn the_allocators_own_calls_are_inside_of_it() {
    let scene = Scene::new("allocator");
    let r = recorded(&scene, &[], &[], &["allocator"]);
    let e = &r.one(CallKind::Mallopt, "mallopt").call;
    // M_MMAP_THRESHOLD is -3.
    assert_eq!((e.flags as i32, e.value, e.result), (-3, 1 << 20, 1));
    let e = &r.one(CallKind::MallocTrim, "malloc_trim").call;
    assert_eq!((e.len, e.result), (12345, r.answer_of("trimmed")));
    // The block's own mapping, with malloc in its stack; and the block itself.
    let e = r.one(CallKind::Mmap, "block");
    let block = r.answer_of("block");
    assert!(e.call.addr < block && block < e.call.addr + page(), "{e:?}");
    assert_eq!(e.call.len, ((64 << 20) + 2 * size_of::<usize>() as u64).next_multiple_of(page()));
    let stack = r.stack(e.call.node);
    assert!(stack.iter().any(|f| f.0.contains("malloc")), "{stack:?}");
    // prof's own code, through which malloc was called, is left out.
    let pcs = r.analysis.meta().stack(e.call.node);
    assert!(pcs.iter().all(|pc| pc.module != 0), "{pcs:#x?} {stack:?}");
    let unmapped = r.of(CallKind::Munmap);
    assert!(unmapped.iter().any(|m| (m.call.addr, m.call.len) == (e.call.addr, e.call.len)));
    assert_eq!((r.analysis.meta().counters.lost, r.analysis.events()), (0, 2), "malloc and free");
}

#[test]
fn a_static_program_is_recorded_from_its_beginning() {
    let scene = Scene::new("static");
    let program = program_with(SOURCE, &["-O1", "-static"]);
    let input = scene.path("commands");
    std::fs::write(&input, "regions\nquit\n").expect("written");
    let mut c = std::process::Command::new("sh");
    c.current_dir(&scene.dir).args(["-c", "exec \"$0\" run -o r.prof -- \"$1\" <commands"]);
    c.arg(Scene::binary()).arg(&program);
    let out = scene.run(c).ok("prof run");
    let answer_of = out.stdout.lines().find(|l| l.starts_with("done")).expect("an answer");
    let r = Recorded::read(&scene.path("r.prof"), answer_of);
    let e = &r.one(CallKind::Mmap, "anonymous").call;
    assert_eq!((e.addr, e.len), (r.answer_of("anonymous"), 3 * page()));
    r.one(CallKind::Mremap, "mremap");
    r.one(CallKind::Munmap, "munmap");
    let not_hooked = &r.meta.hooks.not_hooked;
    assert!(!not_hooked.iter().any(|h| h.reason.contains("thread pointer")), "{not_hooked:?}");
}

#[test]
fn stacks_of_threads_and_libraries_are_recorded() {
    let scene = Scene::new("libraries");
    let plugin = program_with("plugin.c", &["-shared", "-fPIC"]);
    let r = recorded(&scene, &[], &[plugin.to_str().expect("a path")], &["thread", "dlopen"]);
    let e = r.one(CallKind::Mmap, "pthread_create");
    assert!(e.call.len >= 321 * page() && e.call.len < 400 * page(), "{e:?}");
    let of_plugin: Vec<_> = r
        .of(CallKind::Mmap)
        .into_iter()
        .filter(|e| e.file.as_ref().is_some_and(|f| Path::new(&f.path) == plugin))
        .collect();
    // By code that only these machines' linkers are searched for.
    if cfg!(any(target_arch = "x86_64", target_arch = "aarch64")) {
        assert!(of_plugin.len() >= 2, "{:#?}", r.all);
        let stack = r.stack(of_plugin[0].call.node);
        assert!(stack.iter().any(|f| f.0 == "main"), "{stack:?}");
    }
}

#[test]
fn eight_threads_map_and_unmap() {
    let scene = Scene::new("threads");
    let r = recorded(&scene, &[], &[], &["threads"]);
    let count = |kind, line| r.at_line(kind, line);
    assert_eq!(count(CallKind::Mmap, "hammer_mmap"), 80_000);
    assert_eq!(count(CallKind::Munmap, "hammer_munmap"), 80_000);
    assert_eq!(r.meta.counters.lost, 0);
    // At no time have two of the threads' mappings the same address.
    let mut live: HashMap<u64, u64> = HashMap::new();
    // A call may be written long after it has begun.
    let mut all: Vec<_> = r.all.iter().filter(|e| e.call.len <= page() << 3).collect();
    all.sort_by_key(|e| e.call.at());
    for e in all {
        match e.call.kind {
            CallKind::Mmap => assert_eq!(live.insert(e.call.addr, e.call.end.0), None, "{e:?}"),
            CallKind::Munmap => assert!(live.remove(&e.call.addr).is_some(), "{e:?}"),
            _ => {}
        }
    }
}

#[test]
fn many_mappings_are_recorded() {
    let scene = Scene::new("many");
    let mut target = Target::start(&program(SOURCE), &[]);
    let recording = scene.attach(&target);
    target.ask("many");
    scene.detach(&target);
    target.quit();
    let r = Recorded::read(&recording, "");
    assert_eq!(r.at_line(CallKind::Mmap, "many"), 60_000);
}

#[test]
fn neither_sampling_nor_sizes_apply_and_pauses_do() {
    let scene = Scene::new("sampled");
    let options = ["--sample=1M", "--min-size=1M"];
    let r = recorded(&scene, &options, &[], &["regions"]);
    r.one(CallKind::Mmap, "anonymous");
    let r = recorded(&scene, &["--paused"], &[], &["regions"]);
    assert_eq!(r.all, []);
    let r = recorded(&scene, &["--no-maps"], &[], &["regions", "allocator"]);
    assert_eq!(r.all, []);
    assert!(!r.meta.hooks.hooked.iter().any(|h| h.function.contains("mmap")));
    assert_eq!(r.analysis.events(), 2);
}

impl Recorded {
    /// Counts the calls of a kind at a line. The many calls have few stacks.
    fn at_line(&self, kind: CallKind, marker: &str) -> usize {
        let line = line_of(SOURCE, marker) as u32;
        let mut known: HashMap<u32, bool> = HashMap::new();
        let of_kind = self.all.iter().filter(|e| e.call.kind == kind);
        let nodes: Vec<u32> = of_kind.map(|e| e.call.node).collect();
        for node in &nodes {
            if !known.contains_key(node) {
                known.insert(*node, self.stack(*node).iter().any(|f| f.1 == line));
            }
        }
        nodes.iter().filter(|n| known[n]).count()
    }
}
