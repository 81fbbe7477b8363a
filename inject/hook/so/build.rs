//! Links the hook as a library that needs nothing: no libc, no undefined symbol, no lazy binding.
fn main() {
    for arg in [
        "-nostdlib",
        "-nostartfiles",
        "-Wl,-z,defs",
        "-Wl,-z,now",
        "-Wl,-z,norelro",
        "-Wl,-Bsymbolic",
        "-Wl,--hash-style=both",
        "-Wl,-z,max-page-size=65536",
        "-Wl,-z,separate-code",
    ] {
        println!("cargo:rustc-cdylib-link-arg={arg}");
    }
    println!("cargo:rerun-if-changed=build.rs");
}
