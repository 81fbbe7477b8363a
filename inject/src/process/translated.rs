//! Recognises programs whose code is translated by another, and never executed where it stands: hooks in it would be
//! hooks in data.

use crate::Refusal;
use prof_os::maps::{self, Map};
use prof_os::{Pid, process};
use std::path::Path;

/// A program that translates the code of another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Translator {
    /// A tool that executes copies of all code in the process (valgrind, DynamoRIO, Pin), by its name.
    Whole(&'static str),
    /// A program of this architecture that executes a program of another. Its own calls can be recorded, and so can
    /// calls of native libraries that it makes for the other program. The text is the name of its executable.
    Emulator(String),
}

/// Systems whose programs `qemu-NAME` executes. There are other programs of QEMU (`qemu-system-arm`, `qemu-img`), which
/// are programs like any.
const QEMU: [&str; 35] = [
    "aarch64",
    "aarch64_be",
    "alpha",
    "arm",
    "armeb",
    "cris",
    "hexagon",
    "hppa",
    "i386",
    "loongarch64",
    "m68k",
    "microblaze",
    "microblazeel",
    "mips",
    "mips64",
    "mips64el",
    "mipsel",
    "mipsn32",
    "mipsn32el",
    "nios2",
    "or1k",
    "ppc",
    "ppc64",
    "ppc64le",
    "riscv32",
    "riscv64",
    "s390x",
    "sh4",
    "sh4eb",
    "sparc",
    "sparc32plus",
    "sparc64",
    "x86_64",
    "xtensa",
    "xtensaeb",
];
/// Other programs that execute those of another architecture.
const EMULATORS: [&str; 7] =
    ["box64", "box86", "FEXInterpreter", "FEXLoader", "FEX", "rosetta", "latx-x86_64"];

/// Returns what translates the code of a process, if anything known does.
pub(crate) fn of(pid: Pid, maps: &[Map]) -> Option<Translator> {
    recognise(&process::exe(pid), maps)
}

fn recognise(exe: &Path, maps: &[Map]) -> Option<Translator> {
    let name = exe.file_name().and_then(|n| n.to_str()).unwrap_or_default();
    let name = name.strip_suffix(" (deleted)").unwrap_or(name);
    // The executable is the tool: memcheck-amd64-linux.
    let tool = name.strip_suffix("-linux").and_then(|n| n.rsplit_once('-'));
    let is_tool = tool.is_some() && exe.parent().is_some_and(|dir| dir.ends_with("valgrind"));
    let has = |begins: &[&str]| {
        maps.iter().any(|m| {
            let file = m.name.rsplit(|b| *b == b'/').next().unwrap_or_default();
            m.inode != 0 && begins.iter().any(|b| file.starts_with(b.as_bytes()))
        })
    };
    if is_tool || has(&["vgpreload_core-"]) {
        return Some(Translator::Whole("valgrind"));
    }
    if has(&["libdynamorio.so"]) {
        return Some(Translator::Whole("DynamoRIO"));
    }
    if name == "pinbin" || has(&["pinbin", "libpin3dwarf.so", "libpindwarf.so"]) {
        return Some(Translator::Whole("Pin"));
    }
    // Docker's builder has its own: buildkit-qemu-aarch64.
    let qemu = name.strip_prefix("buildkit-").unwrap_or(name).strip_prefix("qemu-");
    let guest = qemu.map(|n| n.strip_suffix("-static").unwrap_or(n));
    let emulates = guest.is_some_and(|g| QEMU.contains(&g)) || EMULATORS.contains(&name);
    emulates.then(|| Translator::Emulator(name.to_owned()))
}

impl Translator {
    /// Returns the refusal of a process in which nothing can be recorded.
    pub(crate) fn refusal(&self, pid: Pid) -> Refusal {
        let (by, advice) = match self {
            Self::Whole("valgrind") => (
                "valgrind".to_owned(),
                "start the program without valgrind to record it, or ask valgrind's own massif or dhat",
            ),
            Self::Whole(by) => ((*by).to_owned(), "start the program without it to record it"),
            Self::Emulator(by) => (
                by.clone(),
                "record the program on a machine of its own architecture, or a virtual one",
            ),
        };
        Refusal::Translated { pid, comm: process::comm(pid), by, advice }
    }
}

/// Returns what the user has to know of a process that executes a program of another architecture.
#[must_use]
pub fn note(pid: Pid) -> Option<String> {
    let maps = maps::of(pid).ok()?;
    let Some(Translator::Emulator(by)) = of(pid, &maps) else { return None };
    Some(format!(
        "process {pid} is {by}, which translates the code of the program that it runs: prof records what {by} itself \
         allocates, and does not see the program's own calls; record that on a machine of its own architecture, or a \
         virtual one"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_exe(exe: &str, maps: &str) -> Option<Translator> {
        recognise(Path::new(exe), &maps::parse(maps.as_bytes()))
    }

    #[test]
    fn translators_are_told_from_programs_with_such_names() {
        let valgrind = Some(Translator::Whole("valgrind"));
        assert_eq!(of_exe("/usr/libexec/valgrind/memcheck-amd64-linux", ""), valgrind);
        assert_eq!(of_exe("/opt/lib/valgrind/dhat-arm64-linux (deleted)", ""), valgrind);
        let preloaded = "1000-2000 r-xp 00000000 08:01 7 /x/vgpreload_core-amd64-linux.so\n";
        assert_eq!(of_exe("/x/none", preloaded), valgrind);
        for (file, by) in [("libdynamorio.so.10.0", "DynamoRIO"), ("pinbin", "Pin")] {
            let maps = format!("1000-2000 r-xp 00000000 08:01 7 /opt/tool/{file}\n");
            assert_eq!(of_exe("/bin/app", &maps), Some(Translator::Whole(by)));
        }
        for exe in ["qemu-arm", "qemu-mips64-static", "buildkit-qemu-aarch64", "box64", "rosetta"] {
            let emulator = Some(Translator::Emulator(exe.into()));
            assert_eq!(of_exe(&format!("/usr/bin/{exe}"), ""), emulator, "{exe}");
        }
        let others = [
            "qemu-system-arm",
            "qemu-img",
            "qemu-nbd",
            "qemu-storage-daemon",
            "qemu-ga",
            "qemu-",
            "valgrind",
            "app-amd64-linux",
            "boxes",
            "",
        ];
        for exe in others {
            assert_eq!(of_exe(&format!("/usr/bin/{exe}"), ""), None, "{exe}");
        }
        // The name of a mapping without a file is anybody's choice.
        assert_eq!(of_exe("/bin/cat", "1000-2000 r--p 00000000 00:00 0 [anon:pinbin]\n"), None);
    }
}
