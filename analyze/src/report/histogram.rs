//! Reports blocks by size.

use super::rows::{Ask, Row, RowData, rows};
use super::words::calls;
use super::{Head, KernelData, Style};
use crate::index::ScanError;
use crate::query::{By, SIZE_CLASSES};
use crate::table::{Table, title};
use prof_trace::values::text::{
    about_bytes, about_number, bytes, duration, number, signed_bytes, signed_number,
};
use serde::Serialize;
use std::fmt::{self, Write};

/// A histogram of block sizes: up to 8 bytes, up to 16, up to 32, and so on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Histogram {
    /// Version of this format: 1.
    pub version: u32,
    /// Describes the recording.
    #[serde(flatten)]
    pub head: Head,
    /// The last reading of the target's memory.
    pub kernel: Option<KernelData>,
    /// The earlier moment of a comparison, in nanoseconds since the start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base_ns: Option<u64>,
    /// The size classes, from the first to the last that has blocks.
    pub sizes: Vec<SizeData>,
}

/// Blocks of one size class.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SizeData {
    /// The smallest size of the class.
    pub min_size: u64,
    /// The largest size of the class.
    pub max_size: u64,
    /// Figures of the class.
    #[serde(flatten)]
    pub row: RowData,
}

/// Returns the smallest and the largest size of a class.
pub(super) fn limits(class: usize) -> (u64, u64) {
    let max = |class: usize| 1u64.checked_shl(class as u32 + 3).unwrap_or(u64::MAX);
    let min = class.checked_sub(1).map_or(0, |c| max(c).saturating_add(1));
    (min, if class + 1 >= SIZE_CLASSES { u64::MAX } else { max(class) })
}

impl Histogram {
    /// Counts blocks by size.
    ///
    /// # Errors
    /// If the index can't be read.
    pub fn new(ask: &Ask<'_>) -> Result<Self, ScanError> {
        let rows = rows(ask, By::Sizes, SIZE_CLASSES)?;
        let first = rows.iter().position(|r| !r.is_empty()).unwrap_or(0);
        let last = rows.iter().rposition(|r| !r.is_empty()).map_or(0, |i| i + 1);
        let size = |(i, r): (usize, &Row)| {
            let (min_size, max_size) = limits(i);
            SizeData { min_size, max_size, row: RowData::new(ask, r) }
        };
        Ok(Self {
            version: 1,
            head: Head::new(&ask.analysis, &ask.options.filter),
            kernel: KernelData::new(&ask.analysis),
            base_ns: ask.options.base.map(|t| ask.analysis.meta().clock.ns(t)),
            sizes: rows.iter().enumerate().take(last).skip(first).map(size).collect(),
        })
    }

    /// Returns the histogram as JSON.
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }

    /// Returns the histogram as text.
    pub fn text(&self, style: Style) -> String {
        let mut out = self.head.text(style);
        // Writing to a string can't fail.
        let _ = self.write(style, &mut out);
        out
    }

    fn write(&self, style: Style, out: &mut String) -> fmt::Result {
        let since = self.base_ns.map(|at| format!(": what has changed since {}", duration(at)));
        title(style, &format!("by size{}", since.unwrap_or_default()), out)?;
        if self.sizes.is_empty() {
            return writeln!(out, "no allocations were recorded");
        }
        let temporary = self.head.totals.temporary.is_some();
        table(&self.sizes, temporary, self.base_ns.is_some()).write(style, out)
    }
}

/// Returns the table of a histogram, or of its changes.
pub(super) fn table(sizes: &[SizeData], temporary: bool, changes: bool) -> Table {
    let mut head = match changes {
        true => vec!["SIZES", "SIZE", "CHANGE", "COUNT", "CHANGE", "ALLOCATIONS"],
        false => vec!["SIZES", "SIZE", "COUNT", "PEAK", "ALLOCATED"],
    };
    if !changes {
        head.extend(temporary.then_some("TEMPORARY"));
        head.push("ALLOCATIONS");
    }
    head.push("");
    let mut table = Table::new(head);
    let n = |s: &SizeData| s.row.figures.allocations + s.row.figures.reallocations;
    let most = sizes.iter().map(n).max().unwrap_or(0);
    for s in sizes {
        let f = &s.row.figures;
        let mut cells = vec![range(s.min_size, s.max_size)];
        match s.row.change.as_ref().filter(|_| changes) {
            Some(c) => cells.extend([
                bytes(f.live_bytes),
                signed_bytes(c.live_bytes),
                number(f.live_count),
                signed_number(c.live_count),
                signed_number(c.allocations),
                String::new(),
            ]),
            None => {
                cells.extend([
                    about_bytes(f.live_bytes, f.live_bytes_stderr),
                    about_number(f.live_count, f.live_count_stderr),
                    about_bytes(f.peak_bytes, f.peak_bytes_stderr),
                    about_bytes(f.allocated_bytes, f.allocated_bytes_stderr),
                ]);
                cells.extend(temporary.then(|| number(f.temporary.unwrap_or(0))));
                cells.extend([calls(f), bar(n(s), most)]);
            }
        }
        table.row(cells);
    }
    table
}

/// Formats a range of sizes: `9 to 16 B`, `over 1.0 KiB to 2.0 KiB`.
fn range(min: u64, max: u64) -> String {
    if max == u64::MAX {
        return format!("more than {}", bytes(min - 1));
    }
    if max < 1024 {
        return format!("{min} to {max} B");
    }
    // Print the power of two below the range, where the row before ends.
    format!("over {} to {}", bytes(min - 1), bytes(max))
}

/// Length of the longest bar in columns.
const BAR: u64 = 32;

/// Returns a bar proportional to a number, with a resolution of an eighth of a column.
pub(super) fn bar(n: u64, most: u64) -> String {
    const PARTS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let eighths = (u128::from(n) * u128::from(BAR * 8)).div_ceil(u128::from(most.max(1))) as usize;
    format!("{}{}", "█".repeat(eighths / 8), PARTS[eighths % 8])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::query::size_class;

    #[test]
    fn classes_have_no_gaps() {
        assert_eq!((limits(0), limits(1)), ((0, 8), (9, 16)));
        for class in 0..SIZE_CLASSES {
            let (min, max) = limits(class);
            assert_eq!((size_class(min), size_class(max)), (class, class), "{min} to {max}");
            if class + 1 < SIZE_CLASSES {
                assert_eq!(limits(class + 1).0, max + 1);
            }
        }
        assert_eq!(limits(SIZE_CLASSES - 1).1, u64::MAX);
    }

    #[test]
    fn rows_have_both_limits() {
        let of = |class: usize| range(limits(class).0, limits(class).1);
        assert_eq!((of(0).as_str(), of(6).as_str()), ("0 to 8 B", "257 to 512 B"));
        assert_eq!(of(7), "over 512 B to 1.0 KiB");
        assert!(of(SIZE_CLASSES - 1).starts_with("more than "));
    }

    #[test]
    fn bars_are_as_long_as_their_numbers() {
        assert_eq!((bar(0, 10).as_str(), bar(1, u64::MAX).as_str()), ("", "▏"));
        assert_eq!(bar(10, 10), "█".repeat(32));
        assert_eq!(bar(5, 10), "█".repeat(16));
    }
}
