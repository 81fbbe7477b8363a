//! The hook as it is embedded: it must need nothing, and must not be able to panic on a thread's own
//! stack.

use goblin::elf::Elf;
use std::process::Command;

static HOOK: &[u8] = include_bytes!(env!("PROF_HOOK_SO"));

#[test]
fn it_needs_no_library_and_no_symbol() {
    let elf = Elf::parse(HOOK).unwrap();
    assert!(elf.libraries.is_empty(), "{:?}", elf.libraries);
    let undefined: Vec<_> = elf
        .dynsyms
        .iter()
        .filter(|s| s.is_import())
        .map(|s| elf.dynstrtab.get_at(s.st_name).unwrap_or_default().to_owned())
        .collect();
    assert!(undefined.is_empty(), "{undefined:?}");
    assert!(elf.program_headers.iter().all(|p| p.p_type != goblin::elf::program_header::PT_TLS));
    assert!(elf.program_headers.iter().all(|p| !(p.is_executable() && p.is_write())));
    let code: u64 = elf.program_headers.iter().map(|p| p.p_memsz).sum();
    assert!(code < 1 << 20, "{code} bytes");
}

#[test]
fn no_function_of_ours_calls_a_panic() {
    let file = env!("PROF_HOOK_SO");
    let out = match Command::new("objdump").args(["-d", "-C", "--no-show-raw-insn", file]).output()
    {
        Ok(o) if o.status.success() => String::from_utf8_lossy(&o.stdout).into_owned(),
        _ => {
            assert!(std::env::var_os("PROF_TESTS_NO_SKIP").is_none(), "objdump is missing");
            return eprintln!("skipped: no_function_of_ours_calls_a_panic: no objdump");
        }
    };
    let mut function = String::new();
    let mut bad = Vec::new();
    let mut seen = false;
    for line in out.lines() {
        if let Some(name) = line.split_once('<').filter(|_| line.ends_with(">:")) {
            function = name.1.to_owned();
            seen |= function.contains("prof_hook");
        } else if (line.contains("panic")
            || line.contains("unwrap_failed")
            || line.contains("slice_index"))
            && function.contains("prof_hook")
        {
            bad.push(format!("{function} {line}"));
        }
    }
    assert!(seen, "no function of the hook in its own disassembly");
    assert!(bad.is_empty(), "{bad:#?}");
}
