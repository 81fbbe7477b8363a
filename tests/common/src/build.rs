//! Compiles test programs on first use, and keeps them until their source changes.

use super::Scene;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

/// Returns the folder of the sources.
pub fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("programs")
}

/// Returns a program built with the usual flags: `-g -O1`, threads.
pub fn program(source: &str) -> PathBuf {
    program_with(source, &["-O1"])
}

/// Returns a program built with flags of its own besides `-g -pthread`; `-shared` makes it a library.
pub fn program_with(source: &str, flags: &[&str]) -> PathBuf {
    let compiler = if source.ends_with(".cpp") { "c++" } else { "cc" };
    compile(compiler, source, flags).unwrap_or_else(|e| panic!("{source}: {e}"))
}

/// Returns the folder of programs that were built elsewhere, for a machine without compilers (tests/vm).
fn built_elsewhere() -> Option<PathBuf> {
    std::env::var_os("PROF_TEST_PROGRAMS").map(PathBuf::from)
}

/// Returns the folder with prof and a program for the other width that the machine's kernel runs, if there is one.
pub fn other_width() -> Option<PathBuf> {
    built_elsewhere().map(|dir| dir.join("other")).filter(|dir| dir.exists())
}

/// Returns whether [`compile`] can be expected to work with this compiler.
pub fn has_compiler(compiler: &str) -> bool {
    super::installed(compiler)
        || built_elsewhere().is_some_and(|dir| match compiler {
            // Not every architecture has a package of it.
            "musl-gcc" => dir.join("toggle.musl_gcc__O1").exists(),
            _ => matches!(compiler, "cc" | "c++"),
        })
}

/// Returns why programs can't be linked with these flags on this architecture, if so.
pub fn unlinkable(flags: &[&str]) -> Option<&'static str> {
    let without = cfg!(any(target_arch = "mips64", target_arch = "arm"));
    let pie = without && flags.contains(&"-static-pie");
    pie.then_some("neither glibc nor gcc makes static programs at any address for it")
}

/// Compiles a program.
///
/// # Errors
/// The compiler's messages.
pub fn compile(compiler: &str, source: &str, flags: &[&str]) -> Result<PathBuf, String> {
    if let Some(dir) = built_elsewhere() {
        let key = format!("{compiler} {}", flags.join(" "));
        let key = key.replace(|c: char| !c.is_ascii_alphanumeric(), "_");
        let stem = source.split('.').next().unwrap_or(source);
        let file = dir.join(format!("{stem}.{key}"));
        let missing = || format!("no {}: see tests/vm/programs", file.display());
        return file.exists().then_some(file.clone()).ok_or_else(missing);
    }
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let input = sources().join(source);
    let mut hash = DefaultHasher::new();
    (compiler, flags).hash(&mut hash);
    let headers = ["common.h", "counted.h", "listed.h", "quiet.h"].map(|name| sources().join(name));
    for file in std::iter::once(&input).chain(&headers) {
        std::fs::read(file).map_err(|e| format!("{}: {e}", file.display()))?.hash(&mut hash);
    }
    // The folder that cargo has for files of tests is not known here, as this is none.
    let target = Scene::binary().ancestors().nth(2).expect("a folder above the profile's");
    let dir = target.join("tmp/programs");
    std::fs::create_dir_all(&dir).map_err(|e| e.to_string())?;
    let stem = source.split('.').next().unwrap_or(source);
    // The short name comes first, as the kernel shows it as the name of the process.
    let output = dir.join(format!("{stem}.{:016x}", hash.finish()));
    if output.exists() {
        return Ok(output);
    }
    let scratch = dir.join(format!("{stem}.{}.tmp", std::process::id()));
    let mut command = Command::new(compiler);
    command.args(["-g", "-pthread", "-fno-optimize-sibling-calls"]);
    if source.ends_with(".cpp") {
        command.arg("-std=c++17");
    }
    command.args(flags).arg("-o").arg(&scratch).arg(&input);
    let out = command.output().map_err(|e| format!("{compiler}: {e}"))?;
    if !out.status.success() {
        return Err(String::from_utf8_lossy(&out.stderr).into_owned());
    }
    std::fs::rename(&scratch, &output).map_err(|e| e.to_string())?;
    Ok(output)
}

/// Returns the line of a source that has the comment `@marker`.
#[track_caller]
pub fn line_of(source: &str, marker: &str) -> u64 {
    let text = std::fs::read_to_string(sources().join(source)).expect("source");
    let mark = format!("@{marker}");
    let found = |line: &str| {
        line.match_indices(&mark).any(|(at, _)| {
            let next = line[at + mark.len()..].chars().next();
            !next.is_some_and(|c| c.is_alphanumeric() || c == '_')
        })
    };
    let at = text.lines().position(found).unwrap_or_else(|| panic!("{source} has no {mark}"));
    at as u64 + 1
}
