//! The programs on allocations that this process causes. The tests are skipped where programs can't be used.

use super::*;
use crate::recorder::Backend;
use crate::tracefs::Tracefs;
use crate::tracepoints::{self, What};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

/// Programs that record this process, with every known stack compared if that is asked for.
struct Started {
    programs: Programs,
    stacks: Stacks,
    tracepoints: Vec<Tracepoint>,
}

fn started(test: &str, compares_all: bool) -> Option<Started> {
    let options = Options {
        what: What::ALL,
        scope: Scope::Machine,
        min_size: 0,
        max_size: u64::MAX,
        sample_every: 1,
        ring: 1 << 26,
        backend: Backend::Bpf,
    };
    let skip = |why: String| eprintln!("skipped {test}: {why}");
    let tracepoints = Tracefs::open().and_then(|t| tracepoints::all(&t, options.what));
    let tracepoints = tracepoints.map_err(|e| skip(e.to_string())).ok()?;
    let names = Names::read().map_err(|e| skip(e.to_string())).ok()?;
    let mut stacks = Stacks::new(&names, true, true);
    let processors = crate::sys::processors();
    let programs = Programs::start(&options, &tracepoints, &names, &mut stacks, &processors);
    let programs = programs.map_err(skip).ok()?;
    if compares_all {
        programs.memo.table.set(COMPARED, 0);
    }
    Some(Started { programs, stacks, tracepoints })
}

/// Makes the kernel allocate in many ways: pipes, files, sockets, pages, threads and processes.
fn load() {
    for i in 0..40 {
        let (mut a, mut b) = UnixStream::pair().expect("sockets");
        a.write_all(&[1; 5000]).expect("written");
        b.read_exact(&mut [0; 5000]).expect("read");
        drop(std::fs::read_dir("/proc/self/task").map(Iterator::count));
        drop(std::fs::read("/proc/self/maps"));
        drop(std::io::pipe());
        std::hint::black_box(vec![1u8; 1 << 20]);
        if i % 8 == 0 {
            std::thread::spawn(|| drop(std::io::pipe())).join().expect("a thread");
            drop(std::process::Command::new("/bin/true").status());
        }
    }
}

#[test]
fn known_stacks_are_those_that_the_kernel_unwinds() {
    let Some(mut s) = started("known_stacks", true) else { return };
    for _ in 0..60 {
        load();
        s.programs.read(&mut s.stacks, |_, _| {});
    }
    let p = &s.programs;
    // With a load of 40 times 10 allocations and more, most of which have stacks that come again.
    assert!(p.compared > 10_000, "{} stacks were known", p.compared);
    assert_eq!((p.wrong, p.damaged), (0, 0));
    let lost = p.lost();
    assert_eq!((lost.allocations, lost.frees), (0, 0), "{lost:?}");
}

#[test]
fn a_frame_that_varies_is_no_known_way() {
    // A wrong number in the table is found out by the comparison, and ends the use of the table.
    let Some(mut s) = started("a_frame_that_varies", true) else { return };
    for _ in 0..10 {
        load();
        s.programs.read(&mut s.stacks, |_, _| {});
    }
    s.programs.memo.spoil();
    load();
    s.programs.read(&mut s.stacks, |_, _| {});
    assert!(s.programs.wrong > 0, "no wrong stack was noticed");
    // Other processors went on with the table until the wrong stack was read. Their records are in the rings.
    for _ in 0..3 {
        std::thread::sleep(std::time::Duration::from_millis(10));
        s.programs.read(&mut s.stacks, |_, _| {});
    }
    let (wrong, compared) = (s.programs.wrong, s.programs.compared);
    load();
    s.programs.read(&mut s.stacks, |_, _| {});
    assert_eq!((s.programs.wrong, s.programs.compared), (wrong, compared), "the table is in use");
}

#[test]
fn every_allocation_is_told_once() {
    let Some(mut s) = started("every_allocation", false) else { return };
    let kmalloc = s.tracepoints.iter().position(|t| t.name == "kmem:kmem_cache_alloc");
    let this = nix::unistd::gettid();
    let mut files = [0; 2];
    for n in &mut files {
        s.programs.read(&mut s.stacks, |_, _| {});
        for _ in 0..3000 {
            drop(std::io::pipe());
        }
        s.programs.read(&mut s.stacks, |stacks, e| {
            let is_file = e.tid.as_raw() == this.as_raw()
                && Some(e.tracepoint) == kmalloc
                && stacks.get(e.stack).frames.first().and_then(|a| stacks.cache_name(*a))
                    == Some("filp");
            *n += u64::from(is_file);
        });
    }
    assert_eq!(files, [6000; 2], "each pipe has two open files");
    let lost = s.programs.lost();
    assert_eq!((lost.allocations, lost.frees), (0, 0), "{lost:?}");
}
