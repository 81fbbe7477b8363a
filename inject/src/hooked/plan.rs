//! Plans the stubs and patches, that is, which bytes are written where, while the target runs.

use crate::hooked::calls::{in_short, is_call};
use crate::hooked::found::Found;
use crate::hooked::probed::Code;
use crate::hooked::watched;
use crate::process::elf::Module;

use crate::target::Target;
use crate::{Refusal, RemoteAddr, RemoteMemory};
use prof_arch::native::insn::{PatchPlan, Probed, plan_at_entry, plan_free, plan_patch, uprobe};
use prof_arch::native::jump::{PATCH_LEN, code_at};
use prof_arch::native::relocate::{Stub, StubParams, build_stub, stub_window};
use prof_trace::records::NotHooked;
use prof_trace::shared::Kind;
use std::ops::Range;

/// Maximum number of bytes of a function that are searched for branches into the patch.
const MAX_FUNCTION: u64 = 64 << 10;

/// A function whose patch is planned; its stub's address is chosen later.
#[derive(Debug)]
pub struct Planned {
    /// The function.
    pub found: Found,
    /// The function's code.
    pub code: Vec<u8>,
    /// The instructions to replace.
    pub plan: PatchPlan,
    /// The range of addresses in which the stub can be.
    pub window: Range<u64>,
    /// Whether another tool has put a breakpoint in front of the patch.
    pub behind_breakpoint: bool,
    /// Index of its stub area.
    pub area: usize,
    /// Address of its stub.
    pub stub_addr: RemoteAddr,
    /// The stub, once it has been built.
    pub stub: Option<Stub>,
}

/// Plans the patches of the functions that can be patched, and adds the others to `not`.
#[must_use]
pub fn plan(
    mem: &RemoteMemory,
    modules: &[Module],
    found: Vec<Found>,
    not: &mut Vec<NotHooked>,
) -> Vec<Planned> {
    let mut all = Vec::new();
    for f in found {
        match plan_one(mem, &modules[f.module], &f) {
            Ok((code, plan, window)) => all.push(Planned {
                found: f,
                behind_breakpoint: !code.breakpoints.is_empty(),
                code: code.bytes,
                plan,
                window,
                area: 0,
                stub_addr: RemoteAddr(0),
                stub: None,
            }),
            Err(reason) => {
                let module = modules[f.module].path.display().to_string();
                not.push(NotHooked { function: f.name, module, reason });
            }
        }
    }
    all
}

type OnePlan = (Code, PatchPlan, Range<u64>);

fn plan_one(mem: &RemoteMemory, m: &Module, f: &Found) -> Result<OnePlan, String> {
    let len = if f.size == 0 { 256 } else { f.size.min(MAX_FUNCTION) + 16 };
    let mut code = Code::read(mem, m, f.addr, len);
    let size = (f.size != 0).then_some(f.size);
    // A free of a null pointer is not recorded, so the patch may lie behind a test for it.
    let behind = match f.kind {
        Kind::Free | Kind::Delete => plan_free(&code.bytes, f.addr.0, size),
        _ => plan_patch(&code.bytes, f.addr.0, size),
    };
    let usable = |plan: &PatchPlan| {
        let end = plan.continuation().max(plan.patch_offset + PATCH_LEN);
        // The instructions in front of the patch stay as they are, so only those from the patch on matter.
        code.reason(plan.patch_offset, end).map_or(Ok(()), Err).and_then(|()| in_one_page(f, plan))
    };
    let plan = match behind {
        Ok(plan) => usable(&plan).map(|()| plan).or_else(|first| {
            let plan = plan_at_entry(&code.bytes, f.addr.0, size).map_err(|_| first.clone())?;
            usable(&plan).map(|()| plan)
        }),
        // Code that another tool has changed may fail to decode for any reason, so the change is named instead.
        Err(e) => Err(code.reason(0, FRONT).unwrap_or_else(|| e.to_string())),
    }?;
    let window = stub_window(&plan, &code.bytes, f.addr.0).map_err(|e| e.to_string())?;
    code.breakpoints.retain(|at| *at < plan.patch_offset);
    Ok((code, plan, window))
}

/// Number of bytes at a function's start that are examined for changes by other tools if no patch can be planned.
const FRONT: usize = 32;

fn in_one_page(f: &Found, plan: &PatchPlan) -> Result<(), String> {
    let page = prof_os::page_size();
    let patch = code_at(f.addr.0) + plan.patch_offset as u64;
    let last = patch + PATCH_LEN as u64 - 1;
    if patch / page == last / page {
        return Ok(());
    }
    Err("the bytes to be patched lie on two pages, so prof can't replace them in one step".into())
}

/// Refuses, before anything is touched, if no function that hands out memory is left.
///
/// # Errors
/// [`Refusal::NothingHooked`].
pub(crate) fn any_left(
    target: &Target,
    planned: &[Planned],
    not: &[NotHooked],
) -> crate::Result<()> {
    if planned.iter().any(|p| p.found.kind.allocates()) {
        return Ok(());
    }
    // Functions that prof only watches do not count here.
    let own = |n: &&NotHooked| {
        !watched::FUNCTIONS.contains(&n.function.as_str()) && !is_call(&n.function)
    };
    let malloc = not.iter().find(|n| n.function.contains("malloc"));
    match malloc.or_else(|| not.iter().find(own)) {
        None => Ok(()),
        Some(n) => Err(Refusal::NothingHooked {
            pid: target.pid,
            comm: target.name.clone(),
            function: n.function.clone(),
            module: n.module.clone(),
            reason: n.reason.clone(),
        }
        .into()),
    }
}

/// Returns what the user should know about other tools' probes on the functions that will be patched.
#[must_use]
pub fn notes(planned: &[Planned]) -> Vec<String> {
    let names = |which: &dyn Fn(&&Planned) -> bool| {
        let names: Vec<&str> =
            planned.iter().filter(which).map(|p| p.found.name.as_str()).collect();
        in_short(&names)
    };
    let mut notes = Vec::new();
    let probed = names(&|p| p.behind_breakpoint);
    if !probed.is_empty() {
        notes.push(format!(
            "a breakpoint stands at the entry of {probed} (a uprobe of bpftrace, bcc or perf probe?); prof hooks the instructions behind it, and prof and the probe both see each call"
        ));
    }
    for effect in [Probed::Breaks, Probed::Hides] {
        let delicate = names(&|p| {
            let at = p.plan.patch_offset;
            let before = p.code.get(at..).unwrap_or_default();
            // Calls of functions that prof only watches are not recorded, so none would be missing.
            let counts = effect == Probed::Breaks || p.found.kind.is_recorded();
            counts && uprobe(at as u64, before, p.found.addr.0) == effect
        });
        if !delicate.is_empty() {
            notes.push(no_uprobes(&delicate, effect));
        }
    }
    notes
}

/// Returns the warning for functions whose patch begins at their first byte.
#[must_use]
pub fn no_uprobes(functions: &str, effect: Probed) -> String {
    let then = match effect {
        Probed::Breaks => "the program would crash",
        Probed::Hides | Probed::Passes => {
            "the function's calls would be missing from the recording"
        }
    };
    format!(
        "put no uprobe (bpftrace, bcc, perf probe) on {functions} while prof records: prof's patch begins at the first byte, and {then}"
    )
}

impl Planned {
    /// Returns the bytes of the function that the patch replaces.
    pub(crate) fn replaced(&self, stub: &Stub) -> &[u8] {
        let at = (stub.patch_addr - code_at(self.found.addr.0)) as usize;
        &self.code[at..at + stub.patch.len()]
    }

    /// Builds the stub, once all addresses are known.
    ///
    /// # Errors
    /// If the displaced instructions can't be moved there, or may not be, as the target's unwinder would end there.
    pub fn build(
        &mut self,
        flag: RemoteAddr,
        desc: RemoteAddr,
        entry: RemoteAddr,
    ) -> Result<(), String> {
        let stub = build_stub(&StubParams {
            many: self.found.kind.has_many_entry(),
            stub_addr: self.stub_addr.0,
            flag_addr: flag.0,
            desc_addr: desc.0,
            entry_addr: entry.0,
            func_addr: self.found.addr.0,
            code: &self.code,
            plan: &self.plan,
        })
        .map_err(|e| e.to_string())?;
        if stub.bytes.len() > 512 {
            return Err("its first instructions, which prof has to move, take too much room".into());
        }
        // The call's return address would lie in the stub, where the target's unwinder finds no table. Functions of
        // an allocator pass no exceptions on.
        if self.found.kind.is_of_the_user() && stub.relocated.has_call {
            return Err("it begins with a call, which prof would have to move: an exception or a cancellation out of that call would end the program".into());
        }
        self.stub = Some(stub);
        Ok(())
    }
}
