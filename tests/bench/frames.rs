//! Measures how fast code addresses are symbolised, and with how much memory.
//!
//!     cargo run --release -p prof-analyze --example frames -- PROGRAM [ADDRESSES]
//!
//! Takes addresses all over the program's code, in random order; then again in a new process, with the cached names.

use goblin::elf::Elf;
use goblin::elf::program_header::{PF_X, PT_LOAD, PT_NOTE};
use prof_analyze::symbols::{SymbolCache, SymbolOptions, Symbolizer};
use prof_analyze::{Analysis, LoadOptions, load::Pc};
use prof_trace::chunk;
use prof_trace::records::{Module, Target, kind};
use std::path::Path;
use std::time::{Duration, Instant};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("give a program")?;
    let wanted: u64 = std::env::args().nth(2).map_or(Ok(400_000), |n| n.parse())?;
    let (ranges, build_id) = code(Path::new(&path))?;
    let mut bytes = chunk::file_header().to_vec();
    let target = Target { pid: 4_000_001, arch: "x86_64".into(), ..Target::default() };
    chunk::put(&mut bytes, kind::TARGET, &target.encode());
    let module = Module { number: 1, end: u64::MAX, path, build_id, ..Module::default() };
    chunk::put(&mut bytes, kind::MODULE, &module.encode());
    let recording = std::env::temp_dir().join(format!("prof-frames-{}", std::process::id()));
    std::fs::write(&recording, bytes)?;
    let analysis = Analysis::from_file(&recording, &LoadOptions::default());
    std::fs::remove_file(&recording)?;
    let mut analysis = analysis?;
    let folder = std::env::temp_dir().join(format!("prof-frames-cache-{}", std::process::id()));
    let cache = SymbolCache { folder: folder.clone(), worth: Duration::from_millis(20) };
    analysis.set_symbol_options(SymbolOptions { cache: Some(cache), ..SymbolOptions::default() });
    for round in ["cold", "warm"] {
        println!("{round}:");
        measure(&analysis, &ranges, wanted);
    }
    let kept: u64 = std::fs::read_dir(&folder)
        .into_iter()
        .flatten()
        .flatten()
        .map(|e| e.metadata().map_or(0, |m| m.len()))
        .sum();
    println!("kept: {} KiB", kept / 1024);
    if folder.exists() {
        std::fs::remove_dir_all(&folder)?;
    }
    Ok(())
}

fn measure(analysis: &Analysis, ranges: &[(u64, u64)], wanted: u64) {
    let all: u64 = ranges.iter().map(|r| r.1).sum();
    let mut seed = 0x2545_f491_4f6c_dd1du64;
    let mut next = || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        let mut at = seed % all;
        for (start, len) in ranges {
            match at.checked_sub(*len) {
                Some(rest) => at = rest,
                None => return Pc { address: start + at, module: 1, exact: false },
            }
        }
        Pc::default()
    };
    let mut symbols = Symbolizer::new(analysis);
    let begin = Instant::now();
    symbols.frames(next());
    println!("loaded in {:.3} s, RSS {} MiB", begin.elapsed().as_secs_f64(), rss());
    let (start, mut total) = (cpu(), 0);
    for round in 1..=4 {
        let begin = Instant::now();
        let frames: usize = (0..wanted / 4).map(|_| symbols.frames(next()).len()).sum();
        let s = begin.elapsed().as_secs_f64();
        total += frames;
        let (addresses, rate) = (wanted / 4, frames as f64 / s);
        println!(
            "{round}: {addresses} addresses, {frames} frames in {s:.3} s: {rate:.0} frames/s, RSS {} MiB",
            rss()
        );
    }
    println!("{:.0} frames a second of CPU", total as f64 / (cpu() - start));
    let unnamed: u64 = symbols.unnamed().map(|u| u.2).sum();
    println!("{unnamed} of {} addresses without a name", symbols.looked_up());
    drop(symbols);
    println!("{:.3} s with what is kept", begin.elapsed().as_secs_f64());
}

/// Addresses and lengths of a program's code, and its build ID.
type Code = (Vec<(u64, u64)>, Vec<u8>);

fn code(path: &Path) -> Result<Code, Box<dyn std::error::Error>> {
    let file = std::fs::File::open(path)?;
    // SAFETY: the mapping is private and only read, and the user of this tool does not change the file meanwhile.
    let map = unsafe { memmap2::Mmap::map(&file) }?;
    let elf = Elf::parse(&map)?;
    let sections = elf.section_headers.iter();
    let text = sections.filter(|s| elf.shdr_strtab.get_at(s.sh_name) == Some(".text"));
    let mut ranges: Vec<_> = text.map(|s| (s.sh_addr, s.sh_size)).collect();
    if ranges.is_empty() {
        let loads = elf.program_headers.iter().filter(|p| p.p_type == PT_LOAD);
        let code = loads.filter(|p| p.p_flags & PF_X != 0);
        ranges = code.map(|p| (p.p_vaddr, p.p_filesz)).collect();
    }
    let notes = elf.program_headers.iter().any(|p| p.p_type == PT_NOTE);
    let notes = if notes { elf.iter_note_headers(&map) } else { None };
    let id = notes.into_iter().flatten().flatten().find(|n| n.n_type == 3 && n.name == "GNU");
    Ok((ranges, id.map_or(Vec::new(), |n| n.desc.to_vec())))
}

/// Returns the anonymous resident memory of this process in MiB; mapped files do not count.
fn rss() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kib = status.lines().find_map(|l| l.strip_prefix("RssAnon:"));
    let kib = kib.and_then(|l| l.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.unwrap_or(0) / 1024
}

/// Returns the processor time of this process so far, in seconds.
fn cpu() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    fields.skip(11).take(2).filter_map(|f| f.parse::<f64>().ok()).sum::<f64>() / 100.0
}
