//! Writes the hook, the stubs and the descriptors of the functions.

use crate::hooked::calls::is_call;
use crate::hooked::found::Found;
use crate::hooked::functions::LOADER;
use crate::hooked::plan::Planned;
use crate::hooked::search::is_last_malloc;
use crate::hooked::watched;
use crate::installed::Installed;
use crate::mapped::bridge;
use crate::mapped::mapping::Mapped;
use crate::process::elf;
use crate::{Refusal, RemoteAddr, Result};
use prof_arch::native::bridge::{Bridge, LEAST_FRAME};
use prof_arch::native::jump::code_at;
use prof_arch::native::relocate::Stub;
use prof_trace::records::{Hook, NotHooked};
use prof_trace::shared::{
    FUNCTIONS, Function, Kind, NEEDS_FOR_BRIDGE, NEEDS_FOR_DUMP, Shared, flags,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering::{Relaxed, Release};

/// Writes the hook, the stubs and the functions' descriptors.
///
/// # Errors
/// If the target's memory can't be written, or no function that allocates or frees blocks can be hooked.
pub(crate) fn code(i: &mut Installed, mapped: &Mapped) -> Result<()> {
    build_stubs(i, mapped)?;
    let glibc = glibc(i);
    let bridge = bridge(i);
    if let Some(b) = bridge {
        // SAFETY: nothing in the target knows of it yet.
        let stable = unsafe { &mut i.shared.control_mut().stable };
        (stable.bridge, stable.bridge_frame) = (code_at(b.back), b.frame);
        stable.needs = stable.needs.max(NEEDS_FOR_BRIDGE);
    }
    if i.options.dump_signal != 0 {
        // SAFETY: nothing in the target knows of it yet.
        let stable = unsafe { &mut i.shared.control_mut().stable };
        stable.needs = stable.needs.max(NEEDS_FOR_DUMP);
    }
    for (index, p) in i.planned.iter().enumerate() {
        let Some(stub) = &p.stub else { continue };
        i.mem.write(p.stub_addr, &stub.bytes)?;
        // SAFETY: nothing in the target knows of it yet.
        let Some(f) = (unsafe { i.shared.function_mut(index) }) else { continue };
        f.index = index as u32;
        let headers = glibc.get(&p.found.module).copied();
        f.headers = headers.filter(|_| p.found.kind.hands_out_chunks()).unwrap_or(0);
        describe(f, p, stub, bridge);
        if matches!(p.found.kind, Kind::New | Kind::NewAligned) {
            f.nothrow = nothrow_form(p, &i.planned);
        }
        let module = i.modules[p.found.module].path.display().to_string();
        let text = format!("{}\0{module}", p.found.name);
        let n = text.len().min(f.name.len() - 1);
        f.name[..n].copy_from_slice(&text.as_bytes()[..n]);
        if !p.found.kind.is_recorded() {
            continue;
        }
        for name in std::iter::once(&p.found.name).chain(&p.found.aliases) {
            i.hooked.push(Hook {
                index: index as u32,
                function: name.clone(),
                module: module.clone(),
                method: "inline".into(),
            });
        }
    }
    i.shared.control().functions.store(i.planned.len() as u32, Release);
    note_what_is_missing(i);
    any_hooked(i)
}

/// Writes the hook, and builds the stubs of all functions for which there is room. The others become unhooked ones.
fn build_stubs(i: &mut Installed, mapped: &Mapped) -> Result<()> {
    let base = RemoteAddr(mapped.hook.addr);
    let segments = i.shared.geometry().segments() as u32;
    let (ring, flag) = (RemoteAddr(mapped.ring.addr), RemoteAddr(mapped.flag.addr));
    if mapped.library == 0 {
        i.mem.write(base, &i.image.at(base, segments, ring, flag))?;
    } else {
        // The dynamic linker has written the rest.
        let (at, locations) = i.image.locations_at(segments, ring, flag);
        i.mem.write(base.plus(at), &locations)?;
    }
    let header = i.image.header_at(base);
    let select = i.shared.control().flags.load(Relaxed) & flags::SELECT != 0;
    let found: Vec<Found> = i.planned.iter().map(|p| p.found.clone()).collect();
    let mut kept = Vec::new();
    // The functions that prof only watches come first: where there is no room for all, a function of an allocator is
    // left out rather than the way by which prof learns of new libraries.
    // Calls that change mappings come last.
    i.planned.sort_by_key(|p| (p.found.kind.is_recorded(), p.found.kind.is_call()));
    for mut p in std::mem::take(&mut i.planned) {
        let index = kept.len();
        let desc = ring.plus(Shared::function_offset(index) as u64);
        let code = match p.found.kind {
            Kind::Malloc if select && is_last_malloc(&p.found, &found, &i.modules) => {
                header.pass[0]
            }
            Kind::Free if select => header.pass[1],
            Kind::Delete if select => header.pass[2],
            kind => kind.entry(&header.entries),
        };
        let entry = RemoteAddr(code.0 as u64);
        // This is the address of the cookie beside the flag.
        let flag = if p.found.kind.is_always_on() { flag.plus(4) } else { flag };
        let built = if index < FUNCTIONS {
            p.build(flag, desc, entry)
        } else {
            Err(format!("prof hooks at most {FUNCTIONS} functions; choose modules with --obj"))
        };
        match built {
            Ok(()) => kept.push(p),
            Err(reason) => {
                let module = i.modules[p.found.module].path.display().to_string();
                i.not_hooked.push(NotHooked { function: p.found.name, module, reason });
            }
        }
    }
    i.planned = kept;
    Ok(())
}

/// Fills in a function's descriptor, except for its index, its name, its headers and its nothrow form.
fn describe(f: &mut Function, p: &Planned, stub: &Stub, bridge: Option<Bridge>) {
    f.original = stub.original_addr;
    f.kind = p.found.kind as u32;
    f.asks = p.found.asks;
    let helpers = p.found.helpers;
    (f.errno_at, f.break_at, f.caller) = (helpers.errno_at, helpers.break_at, helpers.caller);
    if p.found.kind.is_call() {
        f.frame = LEAST_FRAME;
    }
    (f.size_arg, f.block_arg) = p.found.args;
    f.patch_addr = stub.patch_addr;
    f.patch_len = stub.patch.len() as u32;
    f.new_bytes[..stub.patch.len()].copy_from_slice(&stub.patch);
    f.old_bytes[..stub.patch.len()].copy_from_slice(p.replaced(stub));
    f.stub_addr = p.stub_addr.0;
    f.stub_len = stub.bytes.len() as u64;
    f.addr = p.found.addr.0;
    if p.found.kind.has_many_entry() {
        f.back = bridge.map_or(0, |b| b.back);
        f.frame = bridge.map_or(LEAST_FRAME, |b| b.frame);
        f.back_register = bridge.map_or(0, |b| b.register);
        f.back_slots = bridge.map_or([0; 16], |b| b.slots);
    }
    let moved = &stub.relocated.map;
    for (at, place) in f.places.iter_mut().enumerate() {
        let old = moved.iter().rev().find(|(_, new)| *new <= at);
        *place = match old {
            Some((old, _)) if at < stub.relocated.bytes.len() => *old as u8,
            _ => 0,
        };
    }
}

/// Returns the address at which the hook calls the nothrow form of an `operator new`: behind that form's patch if it is
/// hooked itself. Returns 0 if there is no such form.
fn nothrow_form(p: &Planned, all: &[Planned]) -> u64 {
    let form = p.found.nothrow.map_or(0, |a| a.0);
    let own = all.iter().find(|o| o.found.addr.0 == form);
    own.and_then(|o| o.stub.as_ref()).map_or(form, |s| s.original_addr)
}

/// Adds notes for the user on functions that prof only watches and that can't be hooked.
fn note_what_is_missing(i: &mut Installed) {
    let c = i.shared.control();
    if i.planned.iter().any(|p| p.found.kind == Kind::Loader) {
        c.flags.fetch_or(flags::LOADER, Relaxed);
    } else if c.r_debug.load(Relaxed) != 0 {
        let loader = i.not_hooked.iter().find(|n| n.function == LOADER);
        let reason = loader.map_or("its symbol is missing", |n| n.reason.as_str());
        i.notes.push(format!("the dynamic linker's {LOADER} can't be hooked ({reason}), so prof notices loaded and unloaded libraries only once a second; until then, stacks may end at their frames"));
    }
    let forks = |n: &&NotHooked| watched::FORKS.contains(&n.function.as_str());
    if let Some(n) = i.not_hooked.iter().find(forks) {
        i.notes.push(format!(
            "{} can't be hooked ({}): if a signal handler forks, the child may crash when it returns from that handler",
            n.function, n.reason
        ));
    }
}

/// Checks that a function that allocates or frees blocks is hooked, if one was found.
///
/// # Errors
/// [`Refusal::NothingHooked`].
fn any_hooked(i: &Installed) -> Result<()> {
    // The message names a function of the allocator rather than one that prof only watches.
    let allocates = |n: &&NotHooked| {
        !watched::FUNCTIONS.contains(&n.function.as_str()) && !is_call(&n.function)
    };
    let missing = i.not_hooked.iter().find(allocates).or(i.not_hooked.first());
    let is_block = |p: &Planned| p.found.kind.is_recorded() && !p.found.kind.is_call();
    match missing.filter(|_| !i.planned.iter().any(is_block)) {
        None => Ok(()),
        Some(n) => Err(Refusal::NothingHooked {
            pid: i.target.pid,
            comm: i.target.name.clone(),
            function: n.function.clone(),
            module: n.module.clone(),
            reason: n.reason.clone(),
        }
        .into()),
    }
}

/// Returns the modules of the planned functions that are glibc, which is known by a message of its allocator. glibc's
/// debugging library has a copy of that, but puts headers of its own in front of blocks, so it does not count. Each
/// module has level 2 if its functions can only hand out glibc's blocks: since 2.34 glibc has no malloc hooks.
/// Otherwise the level is 1.
fn glibc(i: &Installed) -> BTreeMap<usize, u8> {
    const MESSAGE: &[u8] = b"munmap_chunk(): invalid pointer";
    const WITHOUT_HOOKS: &[u8] = b"\0GLIBC_2.34\0";
    let is = |k: usize| {
        let m = &i.modules[k];
        let file = m.open(i.target.pid, &i.mem).filter(|f| f.find(MESSAGE).is_some())?;
        let level = if file.find(WITHOUT_HOOKS).is_some() { 2 } else { 1 };
        (!m.file_name().starts_with("libc_malloc_debug")).then_some((k, level))
    };
    let all: BTreeSet<usize> = i.planned.iter().map(|p| p.found.module).collect();
    all.into_iter().filter_map(is).collect()
}

/// Finds a bridge, by which the target's unwinder gets past the hook, if the user has named functions.
fn bridge(i: &mut Installed) -> Option<Bridge> {
    if !i.planned.iter().any(|p| p.found.kind.has_many_entry()) {
        return None;
    }
    let found = bridge::find(&i.mem, &i.modules);
    let unwinds = |m: &elf::Module| m.eh_frame.1 != 0 || m.exidx.1 != 0;
    if found.is_none() && i.modules.iter().any(unwinds) {
        i.notes.push("no exception and no thread cancellation can pass through the functions named by --alloc-fn, --realloc-fn and --free-fn: it would end the program (no code of the program or its libraries serves as a bridge for the unwinder)".into());
    }
    found
}
