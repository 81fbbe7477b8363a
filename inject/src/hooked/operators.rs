//! A program's own operator new and delete, outside of an allocator's module.
//!
//! The operators of libstdc++ call malloc, which is hooked, and so do most operators that programs define. Those that
//! do not would be missed, so they are hooked where that is harmless. No exception may pass through the hook, so the
//! hook calls the nothrow form of a throwing operator new instead. Both do the same only if the nothrow form calls
//! the operator itself; prof looks for that call in its code.

use crate::hooked::found::{Found, merge};
use crate::hooked::functions::{TABLE, Wanted};
use crate::process::elf::{Module, Symbol};
use crate::{RemoteAddr, RemoteMemory};
use prof_arch::native::insn::{called_slots, calls, indirect_jump};
use prof_arch::native::jump::code_at;
use prof_os::Pid;
use prof_trace::records::NotHooked;
use prof_trace::shared::Kind;

/// Libraries whose operators call malloc.
const RUNTIMES: &[&str] = &["libstdc++", "libc++", "libc++abi", "libsupc++"];
/// Maximum number of bytes of a nothrow form that are searched.
const MAX_CODE: u64 = 256;

/// The target, as the search needs it.
pub(crate) struct Program<'a> {
    pub pid: Pid,
    pub mem: &'a RemoteMemory,
    pub modules: &'a [Module],
}

/// Adds the operators that module `index` defines itself. `symbols` are those of the module.
pub(crate) fn add(
    program: &Program<'_>,
    index: usize,
    symbols: &[Symbol],
    found: &mut Vec<Found>,
    not: &mut Vec<NotHooked>,
) {
    let m = &program.modules[index];
    let runtime = |r: &str| m.file_name().strip_prefix(r).is_some_and(|t| t.starts_with(".so"));
    let has = |name: &str| symbols.iter().any(|s| s.name == name);
    if RUNTIMES.iter().any(|r| runtime(r)) || (has("malloc") && has("free")) {
        return;
    }
    let own: Vec<(&Symbol, &Wanted)> = symbols
        .iter()
        .filter_map(|s| Some((s, TABLE.iter().find(|w| w.name == s.name)?)))
        .filter(|(_, w)| w.name.starts_with("_Z"))
        .collect();
    let mut hooked = false;
    for (s, w) in own.iter().filter(|(_, w)| w.kind != Kind::Delete) {
        match usable(program, m, s, w) {
            Ok(nothrow) => {
                hooked = true;
                merge(found, Found { nothrow, ..Found::new(s, w.kind, index) });
            }
            Err(reason) => {
                let module = m.path.display().to_string();
                not.push(NotHooked { function: s.name.clone(), module, reason });
            }
        }
    }
    // A block whose allocation is not recorded needs no record of its free.
    for (s, w) in own.iter().filter(|(_, w)| hooked && w.kind == Kind::Delete) {
        merge(found, Found::new(s, w.kind, index));
    }
}

/// Returns whether an operator can be hooked: `Ok(None)` if it can be called as it is, `Ok(Some)` with the address of
/// the nothrow form for a throwing operator, or the reason why not.
fn usable(
    program: &Program<'_>,
    m: &Module,
    s: &Symbol,
    w: &Wanted,
) -> Result<Option<RemoteAddr>, String> {
    if s.indirect {
        return Err(
            "the dynamic linker chooses its code at run time (IFUNC), which prof can't hook".into(),
        );
    }
    if w.nothrow.is_empty() {
        return Ok(None);
    }
    let others = program.modules.iter().filter(|o| o.start != m.start);
    let forms = std::iter::once(m).chain(others).flat_map(|o| {
        o.symbols(program.pid, program.mem, |n| n == w.nothrow).into_iter().map(move |s| (o, s))
    });
    for (owner, form) in forms {
        if leads_to(program, m, owner, &form, s) {
            return Ok(Some(form.addr));
        }
    }
    Err("it may throw an exception, which can't pass through prof's hook, and no nothrow form is known to call it; if it calls malloc, its blocks are recorded there".into())
}

/// Returns whether a nothrow form calls this very operator.
fn leads_to(
    program: &Program<'_>,
    m: &Module,
    owner: &Module,
    form: &Symbol,
    operator: &Symbol,
) -> bool {
    let len = if form.size == 0 { MAX_CODE } else { form.size.min(MAX_CODE) };
    let code = program.mem.read_some(RemoteAddr(code_at(form.addr.0)), len as usize);
    let holds = |slot: u64| {
        if program.mem.word(RemoteAddr(slot)).is_ok_and(|w| w == operator.addr.0) {
            return true;
        }
        // The linkage table has not been resolved yet. The dynamic linker will take the executable's definition
        // first.
        let executable = program.modules.first().is_some_and(|e| e.start == m.start);
        executable
            && m.exports(program.mem, &[&operator.name])
            && owner.slot_symbol(program.mem, slot).as_deref() == Some(operator.name.as_str())
    };
    let direct = calls(&code, form.addr.0).into_iter().any(|to| {
        // `to` is the operator itself, or a stub of the linkage table.
        let stub = || program.mem.read_some(RemoteAddr(code_at(to)), 32);
        to == operator.addr.0 || indirect_jump(&stub(), to).is_some_and(holds)
    });
    let table = || owner.global_offset_table(program.mem);
    direct || table().is_some_and(|t| called_slots(&code, t).into_iter().any(holds))
}
