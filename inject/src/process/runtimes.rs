//! The language runtimes in a target that divide memory among objects themselves.

use crate::process::elf::Module;
use crate::{Installed, RemoteMemory};
use prof_os::Pid;
use prof_trace::runtimes::Runtime;
use std::io::Read;

/// Beginnings of the file names of runtimes' libraries.
const LIBRARIES: [(&str, Runtime); 9] = [
    ("libpython3", Runtime::Pymalloc),
    ("libphp", Runtime::Zend),
    ("libjvm.so", Runtime::Java),
    ("libnode.so", Runtime::V8),
    ("libv8.so", Runtime::V8),
    ("libruby", Runtime::Ruby),
    ("libcoreclr.so", Runtime::CoreClr),
    ("libclrjit.so", Runtime::CoreClr),
    ("libluajit-", Runtime::LuaJit),
];

/// Functions that tell a runtime in the program itself.
const FUNCTIONS: [(&str, Runtime); 8] = [
    ("PyObject_Malloc", Runtime::Pymalloc),
    ("_emalloc", Runtime::Zend),
    ("erts_alloc_enomem", Runtime::Beam),
    ("runtime.mallocgc", Runtime::Go),
    ("slabs_alloc", Runtime::Memcached),
    ("_ZN2v87Isolate3NewERKNS0_12CreateParamsE", Runtime::V8),
    ("_ZN2v87Isolate8AllocateEv", Runtime::V8),
    ("ruby_xmalloc", Runtime::Ruby),
];

/// Names of programs that are often stripped of symbols.
const PROGRAMS: [(&str, Runtime); 2] =
    [("memcached", Runtime::Memcached), ("beam.smp", Runtime::Beam)];

/// Maximum number of bytes of the environment that are read.
const LONGEST: u64 = 1 << 20;

/// Returns the runtimes of the target, except those whose allocator the environment has switched off.
#[must_use]
pub fn of(installed: &Installed) -> Vec<Runtime> {
    let pid = installed.target.pid;
    let mut all = found(pid, &installed.mem, &installed.modules);
    all.sort_unstable();
    all.dedup();
    if !all.is_empty() {
        let environment = environment(pid);
        all.retain(|r| !is_off(*r, &environment));
    }
    all
}

fn found(pid: Pid, mem: &RemoteMemory, modules: &[Module]) -> Vec<Runtime> {
    let mut all: Vec<Runtime> = Vec::new();
    for m in modules {
        let name = m.file_name();
        all.extend(LIBRARIES.iter().filter(|l| name.starts_with(l.0)).map(|l| l.1));
    }
    let Some(program) = modules.iter().find(|m| m.path.as_os_str() != "[vdso]") else { return all };
    let name = program.file_name();
    all.extend(PROGRAMS.iter().filter(|p| name == p.0).map(|p| p.1));
    let of = |name: &str| FUNCTIONS.iter().find(|f| f.0 == name).map(|f| f.1);
    let symbols = program.symbols(pid, mem, |n| of(n).is_some());
    all.extend(symbols.iter().filter_map(|s| of(&s.name)));
    // Stripped programs keep this section.
    if program.open(pid, mem).is_some_and(|file| file.section(".go.buildinfo").is_some()) {
        all.push(Runtime::Go);
    }
    all
}

fn is_off(runtime: Runtime, environment: &[u8]) -> bool {
    let has = |values: &[&[u8]]| environment.split(|b| *b == 0).any(|v| values.contains(&v));
    match runtime {
        Runtime::Pymalloc => has(&[b"PYTHONMALLOC=malloc", b"PYTHONMALLOC=malloc_debug"]),
        Runtime::Zend => has(&[b"USE_ZEND_ALLOC=0"]),
        _ => false,
    }
}

fn environment(pid: Pid) -> Vec<u8> {
    let mut bytes = Vec::new();
    let folder = prof_os::process::folder(pid);
    if let Ok(file) = std::fs::File::open(folder + "/environ") {
        let _ = file.take(LONGEST).read_to_end(&mut bytes);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_switches_allocators_off() {
        let environment = b"A=1\0PYTHONMALLOC=malloc\0USE_ZEND_ALLOC=01\0";
        assert!(is_off(Runtime::Pymalloc, environment));
        assert!(!is_off(Runtime::Zend, environment));
        assert!(!is_off(Runtime::Go, environment));
    }
}
