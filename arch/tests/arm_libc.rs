//! Counts the functions of Debian's libc for ARM that can be patched, and checks that all of their displaced
//! instructions have a known place in the moved code. Reads the library of this machine, or the cross
//! compiler's.
#![cfg(feature = "relocate")]

use prof_arch::arm::insn::plan_patch;
use prof_arch::arm::jump::{code_at, state_at};
use prof_arch::arm::relocate::relocate;
use std::collections::BTreeMap;

const PATHS: [&str; 2] =
    ["/lib/arm-linux-gnueabihf/libc.so.6", "/usr/arm-linux-gnueabihf/lib/libc.so.6"];

fn word(file: &[u8], at: u32) -> u32 {
    u32::from_le_bytes(file[at as usize..][..4].try_into().unwrap())
}

fn half(file: &[u8], at: u32) -> u32 {
    u16::from_le_bytes(file[at as usize..][..2].try_into().unwrap()).into()
}

/// Returns addresses and sizes of the functions in the file's `.dynsym` (`Elf32_Shdr`, `Elf32_Sym`). The code
/// of a shared library has the same offset in the file as in memory.
fn functions(file: &[u8]) -> BTreeMap<u32, u32> {
    const SHT_DYNSYM: u32 = 11;
    const STT_FUNC: u32 = 2;
    let (headers, size, count) = (word(file, 32), half(file, 46), half(file, 48));
    let mut list = BTreeMap::new();
    for header in (0..count).map(|n| headers + n * size).filter(|h| word(file, h + 4) == SHT_DYNSYM)
    {
        let (at, len) = (word(file, header + 16), word(file, header + 20));
        for symbol in (at..at + len).step_by(16) {
            let (addr, size) = (word(file, symbol + 4), word(file, symbol + 8));
            if word(file, symbol + 12) & 15 == STT_FUNC && addr != 0 && size != 0 {
                list.insert(addr, size);
            }
        }
    }
    list
}

#[test]
fn most_functions_of_libc_can_be_patched() {
    let Some(file) = PATHS.iter().find_map(|path| std::fs::read(path).ok()) else {
        let reason = "there is no libc for ARM (package libc6-armhf-cross)";
        assert!(std::env::var_os("PROF_TESTS_NO_SKIP").is_none(), "{reason}");
        println!("skipped: {reason}");
        return;
    };
    let list = functions(&file);
    let (mut planned, mut blocks, mut tables) = (0, 0, 0);
    let mut refused: BTreeMap<String, u32> = BTreeMap::new();
    for (&addr, &size) in &list {
        let code = &file[code_at(addr.into()) as usize..];
        let found = plan_patch(code, addr.into(), Some(size.into())).and_then(|plan| {
            let (from, state) = (code_at(addr.into()) as u32, state_at(addr.into()));
            relocate(code, from, state, plan.displaced_len).map(|moved| (plan, moved))
        });
        match found {
            Ok((plan, moved)) => {
                assert!(moved.map.iter().map(|(at, _)| at).eq(&plan.displaced), "{addr:x}");
                planned += 1;
                let halves = plan.displaced.iter().map(|&at| half(code, at as u32));
                let thumb = addr & 1 == 1;
                blocks += u32::from(thumb && halves.clone().any(|h| h >> 8 == 0xbf && h & 15 != 0));
                tables += u32::from(thumb && halves.clone().any(|h| h & 0xfff0 == 0xe8d0));
            }
            Err(refusal) => {
                let kind = format!("{refusal:?}");
                *refused.entry(kind.split([' ', '{']).next().unwrap().into()).or_default() += 1;
                println!("{addr:x} {refusal}");
            }
        }
    }
    let of = list.len();
    println!(
        "{planned} of {of}, {blocks} with an if-then block, {tables} with a table; refused: {refused:?}"
    );
    assert!(of > 1500 && planned * 20 > of * 19, "{planned} of {of}: {refused:?}");
}
