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
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .current_dir(&so)
        .args(["build", "--release", "--locked", "--target", &target, "--target-dir"])
        .arg(out.join("hook"));
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
    // Where the standard library for the target is, if not in its usual place, goes for both.
    let flags = env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    let mut flags = flags.split('\u{1f}');
    while let Some(flag) = flags.next() {
        if flag == "--sysroot" {
            let at = flags.next().unwrap_or_default();
            cargo.env("CARGO_ENCODED_RUSTFLAGS", format!("--sysroot\u{1f}{at}"));
        }
    }
    let status = cargo.status().expect("cargo can be run");
    assert!(status.success(), "building the hook failed");
    let file = out.join("hook").join(&target).join("release/libprof_hook_so.so");
    assert!(file.exists(), "{} was not built", file.display());
    println!("cargo:rustc-env=PROF_HOOK_SO={}", file.display());
}

fn watch(dir: &Path) {
    println!("cargo:rerun-if-changed={}", dir.display());
    for e in fs::read_dir(dir).into_iter().flatten().flatten() {
        if e.path().is_dir() {
            watch(&e.path());
        }
    }
}
