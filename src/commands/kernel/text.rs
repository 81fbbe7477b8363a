//! Prints the summaries of `prof kernel`.

use super::KernelArgs;
use crate::term::{one_line, say};
use prof_kernel::{Backend, Block, Kind, Recorder, Row};
use prof_trace::ticks::Ticks;
use prof_trace::values::text::{bytes, duration, number};
use std::fmt::Write as _;
use std::io::Write as _;

/// Returns the lines on what begins.
pub(super) fn beginning(recorder: &Recorder, args: &KernelArgs) -> Vec<String> {
    let (all, processors) = recorder.rings();
    let whose = match (args.pid, &args.cgroup, &args.command) {
        (Some(pid), ..) => format!("process {pid}"),
        (_, Some(path), _) => format!("cgroup {}", path.display()),
        (.., Some(command)) => format!("{command:?}"),
        _ => "the whole machine".into(),
    };
    let by = match recorder.backend() {
        (Backend::Perf, Some(why)) => format!("perf events, and not by BPF programs: {why}"),
        (Backend::Perf, None) => "perf events".into(),
        _ => "BPF programs".into(),
    };
    vec![
        format!("the kernel tells of its allocations by {by}"),
        format!(
            "recording the kernel's allocations for {whose}, with {} of rings on {processors} processors; an event \
             costs about {} ns here. Ctrl-C ends it",
            bytes(all),
            recorder.figures().event_ns
        ),
    ]
}

/// Returns the stacks with the most outstanding bytes, the largest last.
pub(super) fn summary(recorder: &Recorder, args: &KernelArgs) -> String {
    let until = prof_kernel::now().saturating_sub(args.older.as_nanos() as u64);
    let live = recorder.outstanding();
    let mut rows =
        if args.combined_only { live.by_stack() } else { live.by_stack_until(Ticks(until)) };
    rows.sort_unstable_by_key(|r| (std::cmp::Reverse(r.bytes), r.stack));
    rows.truncate(args.top);
    rows.reverse();
    let mut out =
        format!("[{}] Top {} stacks with outstanding allocations:\n", clock(), rows.len());
    let stacks: Vec<u32> = rows.iter().map(|r| r.stack).collect();
    let blocks = match args.show_allocs {
        true => live.blocks_of(&stacks, Ticks(until)),
        false => Vec::new(),
    };
    for row in &rows {
        for (address, block) in blocks.iter().filter(|(_, b)| b.stack == row.stack) {
            put_block(&mut out, *address, block);
        }
        put_row(&mut out, recorder, row, args.sample_rate.unwrap_or(1));
    }
    out
}

fn put_block(out: &mut String, address: u64, block: &Block) {
    let (kind, at) = Kind::of(address);
    let what = match kind {
        Kind::Slab => "addr",
        Kind::Page => "page",
        Kind::Percpu => "percpu",
    };
    let _ = writeln!(out, "\t{what} = {at:x} size = {}", block.size);
}

fn put_row(out: &mut String, recorder: &Recorder, row: &Row, every: u64) {
    let about = if every > 1 { "about " } else { "" };
    let (size, count) = (row.bytes.saturating_mul(every), row.count.saturating_mul(every));
    let _ = writeln!(out, "\t{about}{size} bytes in {count} allocations from stack");
    let frames = recorder.frames(row.stack);
    if frames.is_empty() {
        out.push_str("\t\t[the kernel gave no stack]\n");
    }
    for (address, named) in frames {
        let _ = match named {
            Some(n) if n.module == "[slab]" => writeln!(out, "\t\t{} [slab]", one_line(n.function)),
            Some(n) => {
                let (function, module) = (one_line(n.function), one_line(n.module));
                writeln!(out, "\t\t0x{address:016x}  {function}+0x{:x} {module}", n.offset + 1)
            }
            None => writeln!(out, "\t\t0x{address:016x}  [unknown]"),
        };
    }
}

/// Writes to standard output. Returns false if its reader has closed it.
pub(super) fn print(text: &str) -> bool {
    let mut out = std::io::stdout();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => true,
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => false,
        Err(e) => {
            say(&format!("cannot write to standard output: {e}"));
            false
        }
    }
}

/// Returns the lines on the recorded and lost events, and on the cost.
pub(super) fn ending(recorder: &Recorder, args: &KernelArgs) -> Vec<String> {
    let f = recorder.figures();
    let (count, size) = recorder.outstanding().all();
    let seconds = f.elapsed_ns as f64 / 1e9;
    let mut lines = vec![format!(
        "{} allocations and {} of their frees in {}; {} allocations with {} are outstanding",
        number(f.allocations),
        number(f.frees),
        duration(f.elapsed_ns),
        number(count),
        bytes(size)
    )];
    let mut left_out = Vec::new();
    let mut note = |n: u64, what: &str| {
        if n > 0 {
            left_out.push(format!("{} {what}", number(n)));
        }
    };
    note(f.unknown_frees, "frees of blocks that were allocated before, or that others allocated");
    note(f.own_pages, "page allocations of the slab and per-CPU allocators for their own blocks");
    note(f.of_prof, "allocations for prof itself");
    if !left_out.is_empty() {
        lines.push(format!("left out: {}", left_out.join("; ")));
    }
    if f.implied_frees > 0 {
        lines.push(format!(
            "the kernel has not reported the frees of {}: they count as live until their memory is allocated again",
            prof_trace::values::text::count(f.implied_frees, "block", "blocks")
        ));
    }
    if f.lost_allocations + f.lost_frees > 0 {
        let nested = match f.lost_nested {
            0 => String::new(),
            n => format!(" or, {} of them, as they interrupted the recording of others", number(n)),
        };
        lines.push(format!(
            "{} allocations and {} frees were lost, as a ring of {} was full{nested}: what is outstanding is not exact. \
             Give a larger --ring-size, or record less (--sample-rate, --min-size, --slab)",
            number(f.lost_allocations),
            number(f.lost_frees),
            bytes(args.ring_size as u64)
        ));
    }
    if f.wrong > 0 {
        lines.push(format!(
            "{} of {} stacks that were compared had been looked up wrongly: a part of the stacks is not right. Record \
             with --backend perf, and report this",
            number(f.wrong),
            number(f.compared)
        ));
    }
    if f.damaged + f.late > 0 {
        lines.push(format!(
            "{} events could not be read, and {} came so late that their times are later ones",
            number(f.damaged),
            number(f.late)
        ));
    }
    let (_, processors) = recorder.rings();
    let cost = f.events as f64 * f.event_ns as f64 + f.own_ns as f64;
    lines.push(format!(
        "{} events a second; a ring was {:.0} % full at most; recording took about {:.1} % of this machine's processors \
         ({} for each event where it happened, and {} of prof)",
        number((f.events as f64 / seconds.max(1e-9)) as u64),
        100.0 * f.fullest as f64 / args.ring_size as f64,
        100.0 * cost / (f.elapsed_ns as f64 * processors as f64).max(1.0),
        duration(f.event_ns),
        duration(f.own_ns)
    ));
    lines
}

/// Returns the local time, such as `12:34:56`.
fn clock() -> String {
    let seconds = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    crate::new_file::time_of_day(seconds.unwrap_or_default().as_secs() as i64)
}
