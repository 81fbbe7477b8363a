//! Runs the fuzz targets (tests/fuzz) once over each input of their corpora, so that what fuzzing has found stays
//! mended, and over changed inputs for some seconds. That needs no nightly compiler, and knows nothing of what an input
//! reaches. For a longer search:
//!
//!     PROF_FUZZ_SECONDS=300 PROF_FUZZ_SEED=7 PROF_FUZZ_TARGET=script cargo test --release --test corpus -- changed --nocapture

#[allow(unreachable_pub)] // a crate of its own, whose binaries use its items
#[path = "fuzz/src/lib.rs"]
mod fuzz;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

#[test]
fn every_input_comes_to_an_end() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/corpus");
    for (name, target) in fuzz::TARGETS {
        for file in &files(&corpus.join(name)) {
            // The output shows the input if it fails.
            println!("{}", file.display());
            target(&std::fs::read(file).expect("input"));
        }
    }
}

/// Returns the files of a corpus.
fn files(corpus: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(corpus);
    let entries = entries.unwrap_or_else(|e| panic!("{}: {e}", corpus.display()));
    let mut files: Vec<_> = entries.map(|f| f.expect("entry").path()).collect();
    files.sort();
    assert!(!files.is_empty(), "{} has no inputs", corpus.display());
    files
}

/// Returns a number from the environment, or another.
fn number(name: &str, or: u64) -> u64 {
    std::env::var(name).ok().map_or(or, |n| n.parse().unwrap_or_else(|_| panic!("{name}: {n}")))
}

/// A generator of numbers (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) as usize % n.max(1)
    }
}

/// Longest input that is made.
const LONGEST: usize = 1 << 16;

/// The inputs that others are made of.
struct Inputs {
    all: Vec<Vec<u8>>,
    /// Pieces of text: words with what stands between them.
    pieces: Vec<Vec<u8>>,
}

impl Inputs {
    fn of(name: &str) -> Self {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/corpus").join(name);
        let read = |path: &PathBuf| std::fs::read(path).expect("input");
        #[cfg_attr(not(feature = "script"), allow(unused_mut))]
        let mut all: Vec<Vec<u8>> = files(&corpus).iter().map(read).collect();
        #[cfg(feature = "script")]
        if name == "script" {
            all.extend(prof_script::names().into_iter().map(|n| n.example.into_bytes()));
        }
        let mut pieces: Vec<Vec<u8>> = Vec::new();
        for text in all.iter().filter_map(|i| std::str::from_utf8(i).ok()) {
            let is_end = |c: char| !c.is_alphanumeric() && c != '_';
            pieces.extend(text.split_inclusive(is_end).map(|w| w.as_bytes().to_vec()));
            pieces.extend(text.split_inclusive(['\n', ';', '{']).map(|l| l.as_bytes().to_vec()));
        }
        pieces.sort_unstable();
        pieces.dedup();
        Self { all, pieces }
    }

    /// Makes an input of others.
    fn changed(&self, r: &mut Random) -> Vec<u8> {
        let mut input = self.all[r.below(self.all.len())].clone();
        for _ in 0..=r.below(4) {
            let at = r.below(input.len() + 1);
            let end = input.len().min(at + 1 + r.below(16));
            match r.below(if self.pieces.is_empty() { 6 } else { 10 }) {
                0 if at < input.len() => input[at] ^= 1 << r.below(8),
                1 if at < input.len() => input[at] = [0, 1, 0x7f, 0x80, 0xff][r.below(5)],
                2 => _ = input.drain(at..end),
                3 => {
                    let part = input[at..end].repeat(1 + r.below(40));
                    _ = input.splice(at..at, part);
                }
                4 => {
                    let other = &self.all[r.below(self.all.len())];
                    let from = r.below(other.len() + 1);
                    input.truncate(at);
                    input.extend_from_slice(&other[from..]);
                }
                5 if end - at >= 4 => {
                    let number = [0, 1, 0x7fff_ffff, 0x8000_0000, u32::MAX][r.below(5)];
                    input[at..at + 4].copy_from_slice(&u32::to_le_bytes(number));
                }
                6.. => {
                    // At the border of a word, so that what comes of it can be read.
                    let is_word = |b: &u8| b.is_ascii_alphanumeric() || *b == b'_';
                    let at = (at..input.len()).find(|at| !is_word(&input[*at])).unwrap_or(at);
                    let end = input.len().min(at + r.below(3) * r.below(12));
                    let piece = &self.pieces[r.below(self.pieces.len())];
                    _ = input.splice(at..end, piece.iter().copied());
                }
                _ => {}
            }
        }
        input.truncate(LONGEST);
        input
    }
}

#[test]
fn changed_inputs_come_to_an_end() {
    let time = Duration::from_secs(number("PROF_FUZZ_SECONDS", 1));
    let only = std::env::var("PROF_FUZZ_TARGET").ok();
    for (name, target) in fuzz::TARGETS.iter().filter(|t| only.as_deref().is_none_or(|o| o == t.0))
    {
        let inputs = Inputs::of(name);
        let mut r = Random(number("PROF_FUZZ_SEED", 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        // If the process dies, or hangs, the file has its input.
        let kept = std::env::temp_dir().join(format!("prof-fuzz-{name}-{}", std::process::id()));
        let (began, mut count, mut longest) = (Instant::now(), 0u64, Duration::ZERO);
        while began.elapsed() < time {
            let input = inputs.changed(&mut r);
            std::fs::write(&kept, &input).expect("written");
            let start = Instant::now();
            let done = std::panic::catch_unwind(|| target(&input));
            assert!(done.is_ok(), "{name} panics at the input in {}", kept.display());
            longest = longest.max(start.elapsed());
            count += 1;
        }
        std::fs::remove_file(&kept).expect("removed");
        println!("{name}: {count} inputs, the longest took {longest:?}");
    }
}
