//! Finds the executable mappings of a process: those of all files, and that of the dynamic linker.

use crate::RemoteAddr;
use crate::stopped::memory::words;
use prof_os::Pid;
use prof_os::maps::Map;
use prof_os::process::folder;

/// Returns start, end and inode of each executable mapping of a file.
pub(crate) fn code(maps: &[Map]) -> Vec<(RemoteAddr, RemoteAddr, u64)> {
    let code = maps.iter().filter(|m| m.exec && m.inode != 0);
    code.map(|m| (m.start, m.end, m.inode)).collect()
}

/// Returns the executable mapping of the dynamic linker, which lasts as long as the program. For a static program, or one
/// that the linker was told to run, returns that of the program's entry. `None` if neither is known.
#[must_use]
pub(crate) fn linker(pid: Pid, maps: &[Map]) -> Option<&Map> {
    linker_of(&std::fs::read(folder(pid) + "/auxv").ok()?, maps)
}

/// Keys of the auxiliary vector (getauxval(3)): the dynamic linker's first address, and the program's entry.
const AT_BASE: u64 = 7;
const AT_ENTRY: u64 = 9;

/// Returns what [`linker`] does, by the bytes of the auxiliary vector (getauxval(3)).
fn linker_of<'a>(auxv: &[u8], maps: &'a [Map]) -> Option<&'a Map> {
    let words: Vec<u64> = words(auxv).collect();
    let value = |kind: u64| {
        words.as_chunks::<2>().0.iter().find(|e| e[0] == kind).map(|e| e[1]).filter(|v| *v != 0)
    };
    let at = value(AT_BASE).or_else(|| value(AT_ENTRY))?;
    let file = maps.iter().find(|m| m.holds(RemoteAddr(at)) && m.inode != 0)?;
    // The mapping of its first page has no code in it where segments are separate.
    let is_its = |m: &&Map| m.exec && m.inode == file.inode && m.name == file.name;
    maps.iter().filter(is_its).min_by_key(|m| m.start.0.abs_diff(at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_linker_is_told_from_another_copy_of_itself() {
        let maps = prof_os::maps::parse(
            b"1000-2000 r--p 0 08:01 7 /lib/ld.so\n2000-3000 r-xp 1000 08:01 7 /lib/ld.so\n\
            8000-9000 r--p 0 08:01 7 /lib/ld.so\n9000-a000 r-xp 1000 08:01 7 /lib/ld.so\n\
            c000-d000 r-xp 0 08:01 9 /bin/program\n",
        );
        let auxv = |all: &[(u64, u64)]| -> Vec<u8> {
            let words = all.iter().flat_map(|(kind, value)| [*kind, *value]);
            words.flat_map(|w| (w as usize).to_ne_bytes()).collect()
        };
        let found = |all: &[(u64, u64)]| linker_of(&auxv(all), &maps).map(|m| m.start.0);
        assert_eq!(found(&[(3, 0xc040), (7, 0x8000), (9, 0xc100)]), Some(0x9000));
        assert_eq!(found(&[(7, 0), (9, 0xc100)]), Some(0xc000), "a static program");
        assert_eq!((found(&[(7, 0x5000)]), found(&[])), (None, None));
    }
}
