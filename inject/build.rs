//! Builds the hook's library, which `image.rs` embeds: another workspace, always optimised.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

fn main() {
    let here = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("set by cargo"));
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("set by cargo"));
    let so = here.join("hook/so");
    for dir in ["hook/src", "hook/so/src", "trace/src", "../arch/src"] {
        watch(&here.join(dir));
    }
    for file in ["hook/Cargo.toml", "hook/so/Cargo.toml", "hook/so/build.rs", "hook/so/Cargo.lock"]
    {
        println!("cargo:rerun-if-changed={}", here.join(file).display());
    }
    let target = env::var("TARGET").expect("set by cargo");
    // There ld takes the flags of the first object for those of all, and rustc's own comes first and has
    // none when it links a library (rust-lang/rust): so it does not.
    let is_arm = target.starts_with("arm");
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .current_dir(&so)
        .args(["rustc", "--release", "--locked", "--target", &target, "--target-dir"])
        .arg(out.join("hook"))
        .args(["--crate-type", if is_arm { "staticlib" } else { "cdylib" }]);
    // Flags and wrappers for the workspace (coverage, sanitizers, lints) are not meant for this one.
    for (name, _) in env::vars_os() {
        let n = name.to_string_lossy().into_owned();
        let ours = n == "CARGO_HOME"
            || n.starts_with("CARGO_NET")
            || n.starts_with("CARGO_HTTP")
            || n.starts_with("CARGO_REGISTRIES")
            || n.starts_with("CARGO_SOURCE")
            || n.starts_with("CARGO_TARGET_") && n.ends_with("_LINKER");
        if (n.starts_with("CARGO") && !ours)
            || n.starts_with("RUSTC_W")
            || n == "RUSTFLAGS"
            || n == "RUSTC"
        {
            cargo.env_remove(&name);
        }
    }
    // Both builds need the path of the target's standard library, if it is not in its usual place, and the names that
    // stand for the paths of this machine.
    let flags = env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    let (mut flags, mut passed) = (flags.split('\u{1f}'), Vec::new());
    while let Some(flag) = flags.next() {
        if flag == "--sysroot" {
            passed.extend([flag, flags.next().unwrap_or_default()]);
        } else if flag.starts_with("--remap-path-prefix=") {
            passed.push(flag);
        }
    }
    // Functions that choose between two kinds of atomic instructions ask libc for the processor's kind; the hook has no libc.
    if target.starts_with("aarch64") {
        passed.push("-Ctarget-feature=-outline-atomics");
    }
    if !passed.is_empty() {
        cargo.env("CARGO_ENCODED_RUSTFLAGS", passed.join("\u{1f}"));
    }
    let status = cargo.status().expect("cargo can be run");
    assert!(status.success(), "building the hook failed");
    let release = out.join("hook").join(&target).join("release");
    let file = release.join("libprof_hook_so.so");
    if is_arm {
        link(&target, &release.join("libprof_hook_so.a"), &file);
        end_at_handlers(&file);
    }
    assert!(file.exists(), "{} was not built", file.display());
    println!("cargo:rustc-env=PROF_HOOK_SO={}", file.display());
}

/// Links the hook as `hook/so/build.rs` has it linked elsewhere.
fn link(target: &str, archive: &Path, to: &Path) {
    let name = format!("CARGO_TARGET_{}_LINKER", target.to_uppercase().replace('-', "_"));
    let linker = env::var_os(name).unwrap_or_else(|| "cc".into());
    let exported = to.with_extension("version");
    fs::write(&exported, "{ global: PROF_HOOK; local: *; };").expect("OUT_DIR can be written to");
    let mut command = Command::new(linker);
    command.args(["-shared", "-nostdlib", "-nostartfiles", "-o"]).arg(to);
    command.args([
        "-Wl,--undefined=PROF_HOOK",
        "-Wl,--gc-sections",
        "-Wl,-z,defs",
        "-Wl,-soname,libprof_hook.so",
        "-Wl,-z,now",
        "-Wl,-z,norelro",
        "-Wl,-Bsymbolic",
        "-Wl,--hash-style=both",
        "-Wl,-z,max-page-size=65536",
        "-Wl,-z,separate-code",
    ]);
    command.arg(format!("-Wl,--version-script={}", exported.display())).arg(archive);
    let status = command.status().expect("the linker can be run");
    assert!(status.success(), "linking the hook failed");
}

/// Has unwinders end a stack at functions of the library that name a routine for exceptions, as at code without tables: on
/// ARM, that routine alone finds a frame's caller, and the hook's does nothing. A backtrace would never end there.
fn end_at_handlers(library: &Path) {
    const EXIDX: u32 = 0x7000_0001; // PT_ARM_EXIDX
    const CANT_UNWIND: u32 = 1;
    let mut bytes = fs::read(library).expect("the library can be read");
    let word = |bytes: &[u8], at: usize| {
        u32::from_le_bytes(*bytes[at..].first_chunk().expect("a word of the library"))
    };
    let half = |at: usize| usize::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]));
    // The 32-bit ELF header has the place, the size and the number of the program headers.
    let (place, size, number) = (word(&bytes, 28) as usize, half(42), half(44));
    let mut headers = (0..number).map(|n| place + n * size);
    let header = headers.find(|at| word(&bytes, *at) == EXIDX).expect("an index table");
    let [offset, addr, len] = [4, 8, 16].map(|field| word(&bytes, header + field));
    for row in (offset..offset + len).step_by(8) {
        let (at, row) = (addr + (row - offset) + 4, row as usize + 4);
        let distance = word(&bytes, row);
        if distance == CANT_UNWIND || distance >> 31 == 1 {
            continue;
        }
        // Both tables are in one segment.
        let entry = at.wrapping_add_signed((distance << 1) as i32 >> 1).wrapping_sub(addr - offset);
        if word(&bytes, entry as usize) >> 31 == 0 {
            bytes[row..row + 4].copy_from_slice(&CANT_UNWIND.to_le_bytes());
        }
    }
    fs::write(library, bytes).expect("the library can be written");
}

fn watch(dir: &Path) {
    println!("cargo:rerun-if-changed={}", dir.display());
    for e in fs::read_dir(dir).into_iter().flatten().flatten() {
        if e.path().is_dir() {
            watch(&e.path());
        }
    }
}
