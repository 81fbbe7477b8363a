//! The collector with threads that write as the hook does.

mod common;
use common::*;
use prof_collect::{Collector, Copied, Folder, Limits};
use prof_os::maps::Map;
use prof_os::{Pid, RemoteAddr};
use prof_trace::chunk;
use prof_trace::pack::Compress;
use prof_trace::records::{FoldFailed, Pass, kind};
use prof_trace::ring;
use prof_trace::shared::{Shared, slot, state};
use prof_trace::ticks::Ticks;
use std::fs::File;
use std::io::Write;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::time::{Duration, Instant};

fn write_many(shared: Shared<'static>, slot: usize, nodes: &[u32], n: u64) -> u32 {
    let mut w = Writer::new(shared, slot);
    for i in 0..n {
        w.put(&event(w.serial, i, nodes[i as usize % nodes.len()]));
    }
    w.serial
}

/// Runs a collector while `work` runs, and detaches.
fn collect(shared: Shared<'static>, name: &str, work: impl FnOnce()) -> Recording {
    let path = temp(name);
    let mut c = Collector::new(Pid::this(), shared, start(&path)).expect("collector");
    let ended = std::thread::scope(|s| {
        let never = AtomicBool::new(false);
        let h = s.spawn(move || c.run(&never));
        work();
        shared.control().state.store(state::DETACHED, Release);
        h.join().expect("collector")
    });
    assert_eq!(ended.reason, "detached");
    assert!(ended.failure.is_none());
    let r = read(&path);
    assert_eq!(ended.bytes, r.len as u64);
    assert_eq!(ended.events, r.events.values().map(|e| e.len() as u64).sum::<u64>());
    assert_eq!(r.end.as_ref().map(|e| &*e.reason), Some("detached"));
    assert_eq!(r.unknown_nodes, 0);
    std::fs::remove_file(path).expect("remove");
    r
}

fn check_events(r: &Recording, serial: u32, n: u64) {
    let events = &r.events[&serial];
    assert_eq!(events.len() as u64, n, "thread {serial}");
    for (i, e) in events.iter().enumerate() {
        assert!(is_event(e, serial, i as u64), "thread {serial}, event {i}: {e:?}");
    }
}

#[test]
fn all_events_of_all_threads_arrive_in_order() {
    const N: u64 = 100_000;
    // A ring of little more than one segment per thread is full most of the time.
    let shared = new_ring(0);
    let nodes: Vec<u32> = (0..499).map(|i| stack(&shared, 0x50_0000 + i * 4, 40)).collect();
    let mut serials = Vec::new();
    let nodes = nodes.as_slice();
    let r = collect(shared, "order", || {
        serials = std::thread::scope(|s| {
            let write = |slot| s.spawn(move || write_many(shared, slot, nodes, N));
            let all: Vec<_> = (0..24).map(write).collect();
            all.into_iter().map(|h| h.join().expect("writer")).collect()
        });
    });
    for serial in serials {
        check_events(&r, serial, N);
        assert!(r.threads.contains_key(&serial));
        assert!(r.depths(serial).all(|d| d == 40));
    }
    assert_eq!(r.nodes.len(), 39 + 499, "each node once, whoever names it");
    assert_eq!(r.counters.expect("counters").events, 24 * N);
    let bytes_per_event = r.len as f64 / (24 * N) as f64;
    println!("{bytes_per_event:.2} bytes per event in the recording");
    assert!(ring::free_count(&shared) >= 64 - 24, "all but the active ones were given back");
}

/// Is never asked: the recording is too short for a fold.
#[derive(Debug)]
struct NoFolds;

impl Folder for NoFolds {
    fn spent(&self) -> Duration {
        Duration::ZERO
    }

    fn begin(&mut self, _: u64) -> Result<(), String> {
        unreachable!("no fold is due")
    }

    fn written(&self) -> u64 {
        0
    }

    fn poll(&mut self) -> Option<Result<Copied, String>> {
        None
    }

    fn replace(&mut self, _: &File) -> Result<(), String> {
        unreachable!("there is no other file")
    }

    fn give_up(&mut self) {}

    fn tell(&mut self, _: &FoldFailed) {}

    fn create(&mut self) -> Result<File, String> {
        unreachable!("another process folds")
    }

    fn went_over(&mut self) {}
}

#[test]
fn a_full_ring_is_read_in_passes_that_keep_the_order_between_threads() {
    let shared = new_ring(2 << 20);
    let nodes = [stack(&shared, 0x50_0000, 40), 0];
    let path = temp("parts");
    let mut c = Collector::new(Pid::this(), shared, start(&path)).expect("collector");
    c.set_limits(Limits { max_disk: Some(20 << 20), ..Limits::NONE });
    c.set_folder(Box::new(NoFolds));
    let mut writers = [0, 1, 2].map(|slot| Writer::new(shared, slot));
    let mut n = 0u64;
    for round in 0..3 {
        while ring::free_count(&shared) > 8 {
            // One thread writes but little.
            for w in writers.iter_mut().take(if n.is_multiple_of(100) { 3 } else { 2 }) {
                w.put(&event(w.serial, n, nodes[n as usize % 2]));
            }
            n += 1;
        }
        c.pass(false);
        assert!(ring::free_count(&shared) >= 120, "it reads all");
        if round == 0 {
            let r = read(&path);
            let sizes: Vec<usize> = r.events.values().map(Vec::len).collect();
            assert_eq!(sizes.iter().sum::<usize>() as u64, 2 * n + n.div_ceil(100), "{sizes:?}");
        }
    }
    c.finish("detached");
    let r = read(&path);
    std::fs::remove_file(&path).expect("remove");
    (0..2).for_each(|i| check_events(&r, writers[i].serial, n));
    assert_eq!(r.late, 0);
    let passes: Vec<u64> = r.passes.iter().map(|p| p.number).collect();
    assert!((3 * 3..3 * 6).contains(&passes.len()), "{passes:?}");
    assert_eq!(passes, (0..passes.len() as u64).collect::<Vec<_>>());
    assert!(r.passes.is_sorted_by_key(|p| p.ticks) && r.passes.is_sorted_by_key(|p| p.clock_ns));
}

#[test]
fn a_pass_that_another_collector_has_begun_is_read_to_its_end() {
    let shared = new_ring(1 << 20);
    let path = temp("begun");
    let mut file = start(&path);
    let mut writers = [Writer::new(shared, 0), Writer::new(shared, 1)];
    let put = |w: &mut Writer, from: u64| {
        (from..from + 1000).for_each(|i| w.put(&event(w.serial, i, 0)));
    };
    writers.iter_mut().for_each(|w| put(w, 0));
    // It has died before it read any.
    let pass = Pass { number: 7, ticks: Ticks(now()), ..Pass::default() };
    let mut bytes = Vec::new();
    chunk::put(&mut bytes, kind::PASS, &pass.encode());
    file.write_all(&bytes).expect("write");
    let mut c = Collector::go_on(Pid::this(), shared, file, &path).expect("collector");
    c.pass(false);
    writers.iter_mut().for_each(|w| put(w, 1000));
    c.finish("detached");
    let r = read(&path);
    std::fs::remove_file(&path).expect("remove");
    writers.iter().for_each(|w| check_events(&r, w.serial, 2000));
    assert_eq!(r.late, 0);
    assert_eq!(r.passes.iter().map(|p| p.number).collect::<Vec<_>>()[..2], [7, 8]);
}

#[test]
fn packed_and_plain_events_of_a_thread_are_in_order() {
    for how in [Compress::Fast, Compress::Best] {
        let shared = new_ring(1 << 20);
        let nodes = [stack(&shared, 0x50_0000, 40), 0];
        let path = temp(how.name());
        let mut c = Collector::new(Pid::this(), shared, start(&path)).expect("collector");
        c.set_compress(how);
        let mut writers = [Writer::new(shared, 0), Writer::new(shared, 1)];
        let (mut n, mut bursts) = (0u64, 0);
        for round in 0..12 {
            // Now and then more than half of the ring waits, so that there is no time to pack.
            let burst = round % 4 == 3;
            let until = if burst { 40 } else { ring::free_count(&shared) - 2 };
            let before = n;
            while ring::free_count(&shared) > if burst { 64 - until } else { until } {
                for w in &mut writers {
                    w.put(&event(w.serial, n, nodes[n as usize % 2]));
                }
                n += 1;
            }
            bursts += if burst { n - before } else { 0 };
            c.pass(false);
        }
        let ended = c.finish("detached");
        let r = read(&path);
        for w in &writers {
            check_events(&r, w.serial, n);
        }
        assert_eq!((ended.events, r.late, r.unknown_nodes), (2 * n, 0, 0));
        assert_eq!(r.packed, 2 * (n - bursts), "{how:?}");
        std::fs::remove_file(path).expect("remove");
    }
}

#[test]
fn segments_and_slots_of_ended_threads_come_back() {
    let shared = new_ring(0);
    let node = stack(&shared, 0x1000, 3);
    let mut serials = Vec::new();
    let r = collect(shared, "dead", || {
        // There are more threads than segments, and each leaves an active one.
        for slot in 0..200 {
            let h = std::thread::spawn(move || write_many(shared, slot, &[node], 10));
            serials.push(h.join().expect("writer"));
        }
        let began = Instant::now();
        while ring::free_count(&shared) < 64 && began.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(ring::free_count(&shared), 64);
        std::thread::sleep(Duration::from_millis(1200));
        for i in 0..200 {
            assert_eq!(shared.slot(i).expect("slot").state.load(Relaxed), slot::DEAD);
        }
    });
    assert_eq!(serials.len(), 200);
    for serial in serials {
        check_events(&r, serial, 10);
    }
    assert!(r.passes.iter().any(|p| p.rss_pages > 0 && p.vss_pages > p.rss_pages));
}

#[test]
fn names_toggles_and_modules_are_recorded() {
    let shared = new_ring(0);
    let here = names_toggles_and_modules_are_recorded as *const () as u64;
    let all = prof_os::maps::of(Pid::this()).expect("maps");
    let exe = all.iter().find(|m| m.holds(RemoteAddr(here))).expect("mapped").name.clone();
    let part = |m: &&Map| m.name == exe;
    let vdso = all.iter().find(|m| m.name == b"[vdso]").expect("vdso");
    let first = all.iter().find(part).expect("first");
    let own = (first.start.0, all.iter().rfind(part).expect("last").end.0);
    for (i, (start, end)) in [own, (vdso.start.0, vdso.end.0)].into_iter().enumerate() {
        let m = shared.module(i).expect("module");
        m.start.store(start, Relaxed);
        m.end.store(end, Relaxed);
        m.bias.store(start, Relaxed);
        m.ready.store(1, Release);
    }
    shared.control().modules.store(2, Release);
    let in_vdso = stack(&shared, vdso.start.0 + 16, 1);
    let node = stack(&shared, here, 2);
    let r = collect(shared, "names", || {
        let toggle = |n: usize, on: u64| {
            let c = shared.control();
            c.toggles[n].on.store(on, Relaxed);
            c.toggles[n].time.store(now(), Release);
            c.toggle_count.fetch_add(1, Release);
        };
        toggle(0, 1);
        let named = std::thread::Builder::new().name("worker-7".into());
        let write = move || {
            write_many(shared, 0, &[node, in_vdso], 10);
            std::thread::sleep(Duration::from_millis(1500));
        };
        named.spawn(write).expect("spawn").join().expect("join");
        shared.module(0).expect("module").ready.store(2, Release);
        toggle(1, 0);
        std::thread::sleep(Duration::from_millis(1200));
    });
    assert_eq!(r.threads[&1].name, "worker-7");
    assert_eq!(r.toggles.iter().map(|t| t.on).collect::<Vec<_>>(), [1, 0]);
    let m = &r.modules[&1];
    assert_eq!((m.path.as_str(), m.start, m.end), (&*first.text(), own.0, own.1));
    assert!(m.unloaded > m.loaded && !m.build_id.is_empty(), "{m:?}");
    assert_eq!(r.modules[&2].path, "[vdso]");
    assert!(!r.symbols.contains_key(&1), "its file is there");
    assert!(String::from_utf8_lossy(&r.symbols[&2].names).contains("gettimeofday"));
}

#[test]
fn it_keeps_up() {
    const N: u64 = 10_000_000;
    for how in [Compress::None, Compress::Fast, Compress::Best] {
        let shared = new_ring(256 << 20);
        let nodes: Vec<u32> = (0..1000).map(|i| stack(&shared, 0x50_0000 + i * 4, 20)).collect();
        // The speed matters on one architecture only; others are mostly emulated.
        let whole = cfg!(all(target_arch = "x86_64", not(debug_assertions)));
        let quick = if whole { N } else { N / 20 };
        write_many(shared, 0, &nodes, quick);
        let path = temp("speed");
        let mut c = Collector::new(Pid::this(), shared, start(&path)).expect("collector");
        c.set_compress(how);
        let began = Instant::now();
        c.pass(false);
        let took = began.elapsed().as_secs_f64();
        c.finish("detached");
        let r = read(&path);
        assert_eq!((r.events[&1].len() as u64, r.late), (quick, 0));
        assert_eq!(r.packed, if how == Compress::None { 0 } else { quick });
        println!(
            "{how:?}: drained {:.1} M events/s, {:.1} ns each, {:.2} bytes per event",
            quick as f64 / took / 1e6,
            took * 1e9 / quick as f64,
            r.len as f64 / quick as f64
        );
        std::fs::remove_file(path).expect("remove");
    }
}
