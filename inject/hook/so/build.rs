//! Links the hook as a self-contained library: no libc, no undefined symbol, no lazy binding.
fn main() {
    // For MIPS, linkers support no other hash style.
    let mips = std::env::var("CARGO_CFG_TARGET_ARCH").is_ok_and(|a| a == "mips64");
    let hash = if mips { "-Wl,--hash-style=sysv" } else { "-Wl,--hash-style=both" };
    for arg in [
        "-nostdlib",
        "-nostartfiles",
        "-Wl,-z,defs",
        "-Wl,-soname,libprof_hook.so",
        "-Wl,-z,now",
        "-Wl,-z,norelro",
        "-Wl,-Bsymbolic",
        hash,
        "-Wl,-z,max-page-size=65536",
        "-Wl,-z,separate-code",
    ] {
        println!("cargo:rustc-cdylib-link-arg={arg}");
    }
    println!("cargo:rerun-if-changed=build.rs");
}
