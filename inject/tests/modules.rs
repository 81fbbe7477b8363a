//! The module list that is read from outside, against what the dynamic linker says of this process
//! itself.

use findshlibs::{SharedLibrary, TargetSharedLibrary};
use prof_inject::RemoteMemory;
use prof_inject::process::elf;
use prof_os::{Pid, maps};
use std::path::PathBuf;

#[test]
fn modules_are_those_of_the_dynamic_linker() {
    let pid = Pid::this();
    let mem = RemoteMemory::open(pid).unwrap();
    let found = elf::modules(&mem, &maps::of(pid).unwrap());
    let mut checked = 0;
    TargetSharedLibrary::each(|lib| {
        let bias = lib.virtual_memory_bias().0 as u64;
        let name = PathBuf::from(lib.name());
        let same = found.iter().find(|m| m.bias == bias);
        let Some(m) = same else { panic!("{name:?} with bias {bias:#x} is not in {found:#?}") };
        if !name.as_os_str().is_empty() && m.path.as_os_str() != "[vdso]" {
            assert_eq!(std::fs::canonicalize(&m.path).ok(), std::fs::canonicalize(&name).ok());
        }
        let end = bias + lib.len() as u64;
        assert!(m.end.0 >= end, "{name:?} ends at {end:#x}, not {:#x}", m.end.0);
        if m.file_name() != "[vdso]" {
            let tables = if cfg!(target_arch = "arm") {
                m.exidx.1
            } else {
                m.eh_frame_hdr.1.min(m.eh_frame.1)
            };
            assert!(tables > 0, "{m:?}");
        }
        checked += 1;
    });
    assert!(checked >= 3, "{checked}");
}

#[test]
fn symbols_lead_to_functions() {
    let pid = Pid::this();
    let mem = RemoteMemory::open(pid).unwrap();
    let found = elf::modules(&mem, &maps::of(pid).unwrap());
    let libc = found.iter().find(|m| m.file_name().starts_with("libc.so")).expect("libc");
    let symbols = libc.symbols(pid, &mem, |n| n == "malloc" || n == "free");
    let malloc = libc::malloc as *const () as u64;
    assert!(symbols.iter().any(|s| s.name == "malloc" && s.addr.0 == malloc), "{symbols:?}");
    assert!(symbols.iter().any(|s| s.name == "free" && s.size > 0));
}
