//! Tests the parts of a release: the list of all crates (SBOM), the files of the Debian package, and that a binary does
//! not depend on where it was built. The complete check, which builds twice and installs in minimal roots, is `tests/release --check`.

use common::{Scene, installed, skip};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// Returns the command of a script of `tests`, with a fixed build time.
fn script(name: &str) -> Command {
    let mut c = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(name));
    c.env("SOURCE_DATE_EPOCH", "1700000000");
    c
}

/// Returns name, version and, if it has one, checksum of each package of a lock file.
fn locked(file: &str) -> BTreeSet<(String, String, Option<String>)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    let text = std::fs::read_to_string(path).expect("a lock file");
    let value = |part: &str, key: &str| {
        let key = format!("{key} = \"");
        let line = part.lines().find_map(|l| l.strip_prefix(key.as_str()))?;
        Some(line.trim_end_matches('"').to_owned())
    };
    text.split("[[package]]")
        .skip(1)
        .map(|p| {
            let name = value(p, "name").expect("a name");
            (name, value(p, "version").expect("a version"), value(p, "checksum"))
        })
        .collect()
}

#[test]
fn the_sbom_has_each_locked_crate_with_licence_and_checksum() {
    if !installed("python3") || !installed("cargo") {
        return skip("the_sbom_has_each_locked_crate", "python3 or cargo is not installed");
    }
    let scene = Scene::new("sbom");
    let sbom = || {
        let mut c = script("sbom");
        c.args(["--static", "--licences"]).arg(scene.path("licences"));
        scene.run(c).ok("tests/sbom").stdout
    };
    let text = sbom();
    assert!(text == sbom(), "two runs give the same");
    let sbom: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!((&sbom["bomFormat"], &sbom["specVersion"]), (&"CycloneDX".into(), &"1.5".into()));
    assert_eq!(sbom["metadata"]["timestamp"], "2023-11-14T22:13:20Z");
    let subject = &sbom["metadata"]["component"];
    let components: Vec<&Value> =
        sbom["components"].as_array().expect("a list").iter().chain([subject]).collect();
    let all: BTreeSet<_> =
        locked("Cargo.lock").union(&locked("inject/hook/so/Cargo.lock")).cloned().collect();
    for (name, version, checksum) in &all {
        let found = components.iter().find(|c| c["name"] == **name && c["version"] == **version);
        let found = found.unwrap_or_else(|| panic!("{name} {version} is not listed"));
        let licence = found["licenses"][0]["expression"].as_str().unwrap_or_default();
        assert!(!licence.is_empty() && !licence.contains('/'), "{found:#}");
        assert_eq!(found["hashes"][0]["content"].as_str(), checksum.as_deref(), "{found:#}");
    }
    // The list also has Rust's standard library and libc.
    assert_eq!(components.len(), all.len() + 2);
    let scope = |name: &str| {
        components.iter().find(|c| c["name"] == name).expect("listed")["scope"].clone()
    };
    for name in ["gimli", "prof-hook", "prof-hook-so", "clap", "rust-std", "glibc"] {
        assert_eq!(scope(name), "required", "{name}");
    }
    for name in ["serde_derive", "loom", "cc", "prof-model"] {
        assert_eq!(scope(name), "excluded", "{name}");
    }
    let refs: BTreeSet<_> = components.iter().filter_map(|c| c["bom-ref"].as_str()).collect();
    let edges = sbom["dependencies"].as_array().expect("a list");
    for r in edges.iter().flat_map(|d| d["dependsOn"].as_array().into_iter().flatten()) {
        assert!(refs.contains(r.as_str().expect("text")), "{r} is no component");
    }
    let licences = std::fs::read_to_string(scene.path("licences")).expect("licences");
    assert!(licences.contains("gimli ") && licences.contains("Permission is hereby granted"));
}

#[test]
fn the_debian_package_has_its_files_and_is_the_same_twice() {
    if ["dpkg-deb", "python3", "cargo", "objcopy"].iter().any(|c| !installed(c)) {
        return skip(
            "the_debian_package_has_its_files",
            "dpkg-deb, python3, cargo or objcopy is not installed",
        );
    }
    let scene = Scene::new("package");
    let mut strip = Command::new("objcopy");
    strip.arg("--strip-all").arg(Scene::binary()).arg("prof");
    scene.run(strip).ok("objcopy");
    let package = |to: &str, zone: &str| {
        let mut c = script("deb");
        c.arg("--prof").arg(scene.path("prof"));
        c.env("PROF_RELEASE_DIR", scene.path(to)).env("PROF_RELEASE_LEVEL", "1").env("TZ", zone);
        scene.run(c).ok("tests/deb").stdout.trim().to_owned()
    };
    let (one, two) = (package("one", "UTC"), package("two", "Asia/Kolkata"));
    let read = |path: &str| std::fs::read(path).expect("a package");
    assert!(read(&one) == read(&two), "{one} and {two} differ");
    let mut extract = Command::new("dpkg-deb");
    extract.args(["-x", &one, "root"]);
    scene.run(extract).ok("dpkg-deb");
    for file in [
        "bin/prof",
        "share/bash-completion/completions/prof",
        "share/zsh/vendor-completions/_prof",
        "share/fish/vendor_completions.d/prof.fish",
        "share/man/man1/prof.1.gz",
        "share/man/man1/prof-attach.1.gz",
        "share/man/man1/prof-doctor.1.gz",
        "share/doc/prof/copyright",
        "share/doc/prof/CHANGELOG.md.gz",
        "share/doc/prof/THIRD-PARTY.gz",
        "share/doc/prof/sbom.cdx.json.gz",
    ] {
        let path = scene.path("root/usr").join(file);
        assert!(path.metadata().is_ok_and(|m| m.len() > 100), "{file}");
    }
    let out = scene.run({
        let mut c = Command::new("root/usr/bin/prof");
        c.arg("--version");
        c
    });
    assert!(out.stdout.contains(env!("CARGO_PKG_VERSION")), "{out:?}");
    let mut field = Command::new("dpkg-deb");
    field.args(["-f", &one, "Package", "Version", "Depends"]);
    let fields = scene.run(field).ok("dpkg-deb").stdout;
    // A static binary depends on no package.
    assert_eq!(fields, format!("Package: prof\nVersion: {}\n", env!("CARGO_PKG_VERSION")));
}

/// Makes a program that `tests/release` can build, of a workspace with two members.
fn small_workspace(at: &Path) {
    let write = |file: &str, text: &str| {
        let path = at.join(file);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        std::fs::write(path, text).expect("a file");
    };
    let package = |name: &str, rest: &str| {
        format!("[package]\nname = \"{name}\"\nversion = \"1.0.0\"\nedition = \"2024\"\n{rest}")
    };
    let rest = "[dependencies]\nmember = { path = \"member\" }\n[workspace]\n";
    write("Cargo.toml", &package("prof", rest));
    write("member/Cargo.toml", &package("member", ""));
    let locked = |name: &str| format!("[[package]]\nname = \"{name}\"\nversion = \"1.0.0\"\n");
    let dependencies = "dependencies = [\n \"member\",\n]\n";
    write(
        "Cargo.lock",
        &format!("version = 4\n\n{}\n{}{dependencies}", locked("member"), locked("prof")),
    );
    write("src/main.rs", "fn main() { println!(\"{}\", member::place(std::env::args())) }\n");
    // The path of what was made while building is in the binary, as the hook's may be.
    write(
        "member/src/lib.rs",
        "pub fn place<T: Iterator>(of: T) -> String {\n    \
         format!(\"{} {} {}\", of.count(), file!(), env!(\"MADE\"))\n}\n",
    );
    write(
        "member/build.rs",
        "fn main() { println!(\"cargo:rustc-env=MADE={}\", std::env::var(\"OUT_DIR\").unwrap()) }\n",
    );
    for file in ["README.md", "CHANGELOG.md", "LICENSE-APACHE", "LICENSE-MIT"] {
        write(file, "");
    }
    for name in ["release", "sbom"] {
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(name);
        std::fs::create_dir_all(at.join("tests")).expect("a folder");
        std::fs::copy(from, at.join("tests").join(name)).expect("a script");
    }
    write("tests/sbom", "#!/bin/sh\n");
}

#[test]
fn a_release_is_the_same_from_any_folder() {
    let name = "a_release_is_the_same_from_any_folder";
    let mut space = Command::new("unshare");
    space.args(["--mount", "--user", "--map-root-user", "true"]);
    if !installed("cargo") || !installed("readelf") || !space.status().is_ok_and(|s| s.success()) {
        return skip(name, "cargo or readelf is not installed, or there are no user namespaces");
    }
    let scene = Scene::new("anywhere");
    let build = |folder: &str| {
        let at = scene.path(folder);
        small_workspace(&at.join("source"));
        let mut c = Command::new(at.join("source/tests/release"));
        c.arg("--stage").arg(at.join("out"));
        c.env("SOURCE_DATE_EPOCH", "1700000000").env_remove("PROF_RELEASE_COPY");
        c.env("CARGO_TARGET_DIR", at.join("target")).env("CARGO_HOME", at.join("cargo"));
        scene.run(c).ok("tests/release");
        std::fs::read(at.join("out/prof")).expect("a binary")
    };
    let (one, two) = (build("a"), build("another-folder-with-a-longer-name"));
    assert!(one == two, "the binaries differ");
    let here = scene.path("a").into_os_string().into_string().expect("text");
    assert!(!one.windows(here.len()).any(|w| w == here.as_bytes()), "{here} is in the binary");
}
