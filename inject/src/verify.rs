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
        let len = map.len().min(file.len().saturating_sub(map.offset));
        let mut at = 0;
        while at < len {
            let n = (len - at).min(1 << 20);
            let have = mem.read_some(map.start.plus(at), n as usize);
            let want = file.read(map.offset.checked_add(at)?, n)?;
            if have.len() != want.len() {
                return None;
            }
            if have != want {
                let k = have.iter().zip(&want).position(|(a, b)| a != b).unwrap_or(0);
                let addr = map.start.plus(at + k as u64);
                return Some(format!("{}: code at {addr} is not as in the file", m.path.display()));
            }
            at += n;
        }
    }
    None
}
