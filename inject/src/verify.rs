//! Whether code is as its file has it.

use crate::RemoteMemory;
use crate::elf::Module;
use crate::proc::Map;

/// Compares a module's executable mappings with its file; says what differs. Text relocations and other tools'
/// patches differ, too, so this is a remark and no verdict.
pub(crate) fn text_differs(
    pid: i32,
    mem: &RemoteMemory,
    m: &Module,
    maps: &[Map],
) -> Option<String> {
    let file = m.open(pid, mem)?;
    if m.path.as_os_str() == "[vdso]" {
        return None;
    }
    for map in
        maps.iter().filter(|p| p.exec && p.inode != 0 && m.start <= p.start && p.end <= m.end)
    {
        let from = map.offset as usize;
        let len = (map.len() as usize).min(file.get().len().saturating_sub(from));
        let want = file.get().get(from..from + len)?;
        let mut at = 0;
        while at < len {
            let n = (len - at).min(1 << 20);
            let have = mem.read_some(map.start.plus(at as u64), n);
            if have.len() != n {
                return None;
            }
            if have != want[at..at + n] {
                let k = have.iter().zip(&want[at..]).position(|(a, b)| a != b).unwrap_or(0);
                let addr = map.start.plus((at + k) as u64);
                return Some(format!("{}: code at {addr} is not as in the file", m.path.display()));
            }
            at += n;
        }
    }
    None
}
