//! Formats the fragmentation report as text.

use super::{Account, Fragmentation, STEPS, StackData};
use crate::report::{Style, frame_lines};
use prof_trace::values::text::{bytes, count, duration, number};
use std::fmt::{self, Write};

/// Length of the longest bar in columns.
const BAR: u64 = 40;

impl Fragmentation {
    /// Returns the report as text.
    pub fn text(&self, style: Style) -> String {
        let mut out = self.head.text(style);
        // Writing to a string can't fail.
        let _ = self.write(style, &mut out);
        out
    }

    fn write(&self, style: Style, out: &mut String) -> fmt::Result {
        let r = &self.head.recording;
        let since = r.duration_ns.saturating_sub(self.moment_ns);
        if self.account.is_some() && !r.complete && since > STALE_NS {
            writeln!(
                out,
                "\nThe figures below are from {} ago, when resident memory was last looked at, which is seldom during a \
                 recording; `prof detach` looks again.",
                duration(since)
            )?;
        }
        let off = self.account.as_ref().map_or(0, |a| a.unrecorded_ns);
        if off > OFF_NS {
            writeln!(
                out,
                "\nRecording had been off for {} when the allocator was looked at: what the program allocated and \
                 freed in that time is missing in the lines of blocks.",
                duration(off)
            )?;
        }
        match &self.account {
            Some(a) => account(a, self.moment_ns, out)?,
            None => writeln!(
                out,
                "\nWhat was resident is not known at this moment: the recording does not say (it ended \
                 before it was looked at, --at was given, or an earlier prof made it)."
            )?,
        }
        let p = &self.pages;
        writeln!(
            out,
            "\npages with live blocks, at {}: {} of {}, {}",
            duration(self.moment_ns),
            number(p.count),
            bytes(p.size),
            bytes(p.count.saturating_mul(p.size))
        )?;
        let used = p.live_bytes as f64 * 100.0 / (p.count as f64 * p.size as f64).max(1.0);
        let blocks = count(p.live_count, "block", "blocks");
        writeln!(out, "  {} in {blocks} on them: {used:.1}% of their bytes", bytes(p.live_bytes))?;
        let sparse = count(p.sparse, "page is sparse", "pages are sparse");
        writeln!(
            out,
            "  {sparse}: {} of theirs are of no live block",
            bytes(p.sparse_unused_bytes)
        )?;
        writeln!(out, "\n{:<12} {:>12}", "used", "pages")?;
        let most = p.by_use.iter().copied().max().unwrap_or(0).max(1);
        for (i, n) in p.by_use.iter().enumerate() {
            let to = (i + 1) * 100 / STEPS;
            let part = (u128::from(*n) * u128::from(BAR)).div_ceil(most.into()) as usize;
            let line = format!("up to {to:>3}% {:>14}  {}", number(*n), "#".repeat(part));
            writeln!(out, "{}", line.trim_end())?;
        }
        for (i, s) in self.stacks.iter().enumerate() {
            stack(i + 1, s, style, out)?;
        }
        if self.other_stacks > 0 {
            let n = count(self.other_stacks, "other stack", "other stacks");
            writeln!(out, "\nrest       {n} (--top 0 shows all)")?;
        }
        Ok(())
    }
}

/// Age in nanoseconds from which on a look at resident memory is said to be old.
const STALE_NS: u64 = 2_000_000_000;
/// Time without recording up to which nothing is said.
const OFF_NS: u64 = 1_000_000;
/// Bounds that are this close, in bytes, are not shown.
const LITTLE: u64 = 64 << 10;

fn account(a: &Account, at: u64, out: &mut String) -> fmt::Result {
    let mut line =
        |sign: &str, n: u64, what: &str| writeln!(out, "  {sign} {:>12}  {what}", bytes(n));
    line(" ", a.rss_bytes, &format!("resident (RSS), at {}; of these:", duration(at)))?;
    line("+", a.live_bytes, "live blocks that were recorded")?;
    let (beside, before, slack) = match a.by_allocator {
        true => (
            "beside them: the allocator's headers, and what it rounds up by",
            "other blocks in use, as glibc says: from before the attach, or in threads' caches",
            "free, kept by the allocator, as glibc says",
        ),
        false => (
            "beside them on their pages: the allocator's own, free, or older blocks",
            "other pages of the heap, from before the attach at most",
            "other pages of the heap: kept by the allocator",
        ),
    };
    line("+", a.beside_bytes, beside)?;
    line("+", a.before_bytes, before)?;
    // Within 2 % either way, or of a size that is of no interest, it is as good as exact.
    let wide = |&[least, most]: &[u64; 2]| most - least > (a.before_bytes / 25).max(LITTLE);
    if let Some([least, most]) = a.before_between_bytes.filter(wide) {
        let what = format!(
            "is how far apart its bounds are, {} and {}: the program allocated and freed while it was looked at",
            bytes(least),
            bytes(most)
        );
        line(" ", most - least, &what)?;
    }
    if a.not_resident_bytes > 0 {
        let what = "of the lines above are not resident: never written to, or swapped out";
        line("-", a.not_resident_bytes, what)?;
    }
    line("+", a.slack_bytes, slack)?;
    if a.other_anonymous_bytes > 0 {
        let what = "anonymous memory of no recorded allocator: mapped by the program or a runtime \
                    (Python's arenas, a JVM's heap, PHP's)";
        line("+", a.other_anonymous_bytes, what)?;
    }
    for m in a.maps.iter().filter(|m| !matches!(m.kind, "heap" | "anonymous")) {
        match a.files.filter(|_| m.kind == "files") {
            Some(f) => {
                line("+", f.code_bytes, "code of programs and libraries")?;
                line("+", f.data_bytes, "data of programs and libraries")?;
                line("+", f.other_bytes, "other mapped files")?;
                line("+", f.shared_bytes, "memory shared between processes")?;
            }
            None => line("+", m.rss_bytes, &format!("mappings: {}", m.kind))?,
        }
    }
    match u64::try_from(a.unexplained_bytes) {
        Ok(n) => line("+", n, "unexplained")?,
        Err(_) => line("-", a.unexplained_bytes.unsigned_abs(), "unexplained")?,
    }
    if a.elsewhere_bytes > 0 {
        line(" ", a.elsewhere_bytes, "of live blocks are not on the heap, but in these mappings")?;
    }
    if a.swap_bytes > 0 {
        line(" ", a.swap_bytes, "are swapped out")?;
    }
    if a.page_tables_bytes > 0 {
        line(" ", a.page_tables_bytes, "page tables, which the kernel does not count as resident")?;
    }
    cgroup(a, out)
}

/// Writes the figures of the memory cgroup, whose limit is what the kernel kills for.
fn cgroup(a: &Account, out: &mut String) -> fmt::Result {
    let Some(current) = a.cgroup.get("current") else { return Ok(()) };
    let limit = a.cgroup.get("max").map_or("no limit".into(), |n| format!("limit {}", bytes(*n)));
    let processes = a.cgroup.get("processes").map_or(0, |n| *n);
    writeln!(
        out,
        "\nits memory cgroup ({}, {limit}): {}; of it:",
        count(processes, "process", "processes"),
        bytes(*current)
    )?;
    let parts = ["anon", "file", "shmem", "kernel", "slab", "sock", "swap"];
    let told = parts.iter().filter_map(|k| Some(format!("{k} {}", bytes(*a.cgroup.get(k)?))));
    writeln!(
        out,
        "  {} (shmem is part of file, slab of kernel)",
        told.collect::<Vec<_>>().join(", ")
    )
}

fn stack(n: usize, s: &StackData, style: Style, out: &mut String) -> fmt::Result {
    writeln!(
        out,
        "\n=== stack #{n} === [keeps alone: {}, {} sparse] [unused there: {}] [on {}] [live: {} in {}]",
        count(s.alone, "page", "pages"),
        number(s.sparse_alone),
        bytes(s.unused_alone_bytes),
        count(s.pages, "page", "pages"),
        bytes(s.live_bytes),
        count(s.live_count, "block", "blocks"),
    )?;
    frame_lines(&s.frames, s.truncated, style, out)
}
