//! Runs the fuzz targets (tests/fuzz) once over each input of their corpora, so that what fuzzing has found stays
//! mended.

#[allow(unreachable_pub)] // a crate of its own, whose binaries use its items
#[path = "fuzz/src/lib.rs"]
mod fuzz;

use std::path::Path;

#[test]
fn every_input_comes_to_an_end() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/corpus");
    for (name, target) in fuzz::TARGETS {
        let mut files: Vec<_> = std::fs::read_dir(corpus.join(name))
            .unwrap_or_else(|e| panic!("corpus of {name}: {e}"))
            .map(|f| f.expect("entry").path())
            .collect();
        files.sort();
        assert!(!files.is_empty(), "{name} has no corpus");
        for file in &files {
            // The output shows the input if it fails.
            println!("{}", file.display());
            target(&std::fs::read(file).expect("input"));
        }
    }
}
