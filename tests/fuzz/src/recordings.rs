//! Fuzzes the readers of recordings.

use super::{Input, memory_file};
use prof_analyze::maps::{MapFilter, MappedRanges, Maps, MapsOptions, MapsReport};
use prof_analyze::report::{Report, ReportOptions, SortKey};
use prof_analyze::{Analysis, Follower, LoadOptions};
use prof_trace::chunk;
use prof_trace::ticks::Ticks;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Reads the input as a recording. The first byte tells the form of the rest: 0 is a whole file; otherwise it consists
/// of chunks as (kind, length, payload), which get the header and the checksums that a fuzzer would not find.
pub fn recording(bytes: &[u8]) {
    static FILE: OnceLock<(File, PathBuf)> = OnceLock::new();
    let (file, path) = FILE.get_or_init(|| memory_file(c"recording"));
    let mut input = Input(bytes);
    let whole = match input.int(1) {
        0 => input.0.to_vec(),
        _ => {
            let mut b = chunk::file_header().to_vec();
            while !input.is_empty() {
                let (kind, len) = (input.int(1) as u16, input.int(2) as usize);
                chunk::put(&mut b, kind, input.bytes(len));
            }
            b
        }
    };
    file.set_len(0).expect("cut");
    file.write_all_at(&whole, 0).expect("write");
    report(path);
}

/// Makes all reports on a recording; returns the number of its events.
pub(crate) fn report(path: &Path) -> Option<u64> {
    let options = LoadOptions::default();
    if let Ok(mut f) = Follower::open(path) {
        let _ = f.poll();
    }
    let analysis = Analysis::from_file(path, &options).ok()?;
    for sort in [SortKey::Size, SortKey::Age] {
        let report = Report::new(&analysis, &ReportOptions { sort, top: 5, ..Default::default() });
        let _ = (report.text(Default::default()), report.json());
    }
    mappings(&analysis);
    Some(analysis.events())
}

/// Makes the reports on the mappings of a recording, with the history of each.
fn mappings(analysis: &Analysis) {
    let Ok(maps) = Maps::of(analysis) else { return };
    let options = MapsOptions { details: true, over_time: true, top: 50, ..Default::default() };
    let report = MapsReport::new(analysis, &maps, &MapFilter::default(), &options);
    let _ = (report.text(Default::default()), report.json());
    let all: Vec<u32> = (0..maps.count().min(50)).collect();
    assert_eq!(maps.some(&all).len(), all.len(), "a mapping is missing");
    let _ = MappedRanges::of(&maps, &all).map(|p| p.has(0x1000, Ticks(1)));
}
