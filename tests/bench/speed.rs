//! Measures how fast a recording is read: plain replay, building its index, and opening that.
//!
//!     cargo run --release -p prof-analyze --example speed -- FILE [index]
//!
//! `index`: only build the index. `generate` makes files for this.

use prof_analyze::index::{IndexOptions, Keep};
use prof_analyze::{Analysis, Index, LoadOptions};
use std::path::Path;
use std::time::Instant;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("give a recording")?;
    let path = Path::new(&path);
    let options = IndexOptions { keep: Keep::Always, ..IndexOptions::default() };
    let index = prof_analyze::index::path_of(path);
    let _ = std::fs::remove_file(&index);

    // Comes first, so that the peak of memory is that of the index.
    let begin = (Instant::now(), cpu_seconds());
    let i = Index::open(path, &options)?;
    let events = i.analysis().events();
    let (live, rows) = (i.analysis().totals().figures.peak_count, i.rows());
    say("index made", events, begin);
    let bytes = index.metadata()?.len();
    let per_row = bytes as f64 / rows.max(1) as f64;
    println!("  {events} events");
    println!("  {rows} rows, {:.1} MiB, {per_row:.1} bytes a row", mib(bytes));
    let peak = peak_rss();
    let bound = (256 << 20) + 64 * live;
    println!("  peak RSS {:.1} MiB for {live} live blocks (bound {:.1})", mib(peak), mib(bound));
    drop(i);
    if std::env::args().nth(2).is_some_and(|a| a == "index") {
        return Ok(());
    }

    let begin = (Instant::now(), cpu_seconds());
    let i = Index::open(path, &options)?;
    say("index opened", i.analysis().events(), begin);
    drop(i);

    let begin = (Instant::now(), cpu_seconds());
    let a = Analysis::from_file(path, &LoadOptions::default())?;
    say("replayed", a.events(), begin);
    Ok(())
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

fn say(what: &str, events: u64, (start, cpu): (Instant, f64)) {
    let (wall, cpu) = (start.elapsed().as_secs_f64(), cpu_seconds() - cpu);
    let rate = events as f64 / 1e6;
    println!(
        "{what}: {rate:.1} M events in {wall:.3} s ({:.1} M events/s), {cpu:.3} s of CPU ({:.1} ns an event)",
        rate / wall,
        cpu * 1e9 / events as f64
    );
}

/// Returns the processor time of this process so far, in seconds.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let rest = stat.rsplit(')').next().unwrap_or_default();
    rest.split_whitespace().skip(11).take(2).filter_map(|n| n.parse::<f64>().ok()).sum::<f64>()
        / 100.0
}

/// Returns the peak of resident memory in bytes.
fn peak_rss() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).unwrap_or_default();
    line.trim().trim_end_matches("kB").trim().parse::<u64>().unwrap_or(0) << 10
}
