//! Measures what a server asks of an index: timelines, groups, pages of blocks, flame graphs.
//!
//!     cargo run --release -p prof-analyze --example answers -- FILE [ROUNDS]
//!
//! Makes the index if there is none. Each line has the median of the rounds in milliseconds, and processor time.

use prof_analyze::Index;
use prof_analyze::answers::{
    BlockSort, BlocksAsk, FlameAsk, GroupKey, GroupsAsk, Metric, SpaceAsk, flame, flame_diff,
    groups,
};
use prof_analyze::index::{IndexOptions, Keep};
use prof_analyze::query::{Filter, Query, Span};
use std::path::Path;
use std::time::Instant;

type Failed = Box<dyn std::error::Error>;

fn main() -> Result<(), Failed> {
    let path = std::env::args().nth(1).ok_or("give a recording")?;
    let rounds = std::env::args().nth(2).map_or(Ok(3), |n| n.parse::<usize>())?;
    let options = IndexOptions { keep: Keep::Always, ..IndexOptions::default() };
    drop(Index::open(Path::new(&path), &options)?);
    let began = Instant::now();
    let index = Index::open(Path::new(&path), &options)?;
    let opened = began.elapsed().as_secs_f64() * 1e3;
    println!(
        "{} events, {} rows, opened in {opened:.1} ms",
        index.analysis().events(),
        index.rows()
    );
    let all = Query::new(&index, &Filter::default())?;
    let brush = query(&index, &[("from", "30%"), ("to", "60%")])?;
    let large = query(&index, &[("min-size", "500")])?;
    let span = Span::whole(&index, 1000);
    let say = |what: &str, work: &dyn Fn() -> Result<(), Failed>| say(what, rounds, work);
    say("names of all stacks", &|| {
        index.stacks();
        Ok(())
    })?;
    say("timeline", &|| Ok(all.timeline(&span, false).map(drop)?))?;
    say("timeline of sizes", &|| Ok(large.timeline(&span, false).map(drop)?))?;
    say("timeline of a brush", &|| Ok(brush.timeline(&span, false).map(drop)?))?;
    for (name, q) in [("", &all), (" of sizes", &large), (" of a brush", &brush)] {
        let ask = GroupsAsk::default();
        say(&format!("groups{name}"), &|| Ok(groups(&index, q, &ask).map(drop)?))?;
        let ask = GroupsAsk { by: GroupKey::Function, ..ask };
        say(&format!("functions{name}"), &|| Ok(groups(&index, q, &ask).map(drop)?))?;
        let ask = FlameAsk { metric: Metric::Allocated, ..FlameAsk::default() };
        say(&format!("flame graph{name}"), &|| Ok(flame(&index, q, &ask).map(drop)?))?;
        for (sort, key) in
            [(BlockSort::Time, "time"), (BlockSort::Size, "size"), (BlockSort::Address, "address")]
        {
            let ask = BlocksAsk { sort, count: 20, ..BlocksAsk::default() };
            say(&format!("blocks by {key}{name}"), &|| Ok(q.blocks(&ask).map(drop)?))?;
        }
        let ask = BlocksAsk {
            sort: BlockSort::Lifetime,
            descending: true,
            count: 20,
            ..BlocksAsk::default()
        };
        say(&format!("blocks that lived longest{name}"), &|| Ok(q.blocks(&ask).map(drop)?))?;
    }
    let other = query(&index, &[("from", "60%"), ("to", "90%")])?;
    let ask = FlameAsk { metric: Metric::Allocated, ..FlameAsk::default() };
    say("difference of two ranges", &|| {
        Ok(flame_diff((&index, &other), (&index, &brush), &ask).map(drop)?)
    })?;
    let ask = SpaceAsk { bins: 4096, ..SpaceAsk::default() };
    say("address space", &|| Ok(all.space(&ask).map(drop)?))?;
    say("rows of sizes", &|| Ok(large.rows().map(drop)?))?;
    let (a, b) = (large.rows()?, brush.rows()?);
    say("+ - & of rows", &|| {
        std::hint::black_box((a.or(&b).len(), a.minus(&b).len(), a.and(&b).len()));
        Ok(())
    })?;
    say("sizes and lifetimes", &|| Ok(all.spread(None).map(drop)?))?;
    let ask = GroupsAsk { peaks: true, ..GroupsAsk::default() };
    say("peaks of groups of sizes", &|| Ok(groups(&index, &large, &ask).map(drop)?))?;
    println!("peak RSS {:.0} MiB", peak_rss());
    Ok(())
}

fn query<'a>(index: &'a Index, given: &[(&str, &str)]) -> Result<Query<'a>, Failed> {
    let mut f = Filter::default();
    for (name, text) in given {
        f.set(name, text)?;
    }
    Ok(Query::new(index, &f)?)
}

fn say(what: &str, rounds: usize, work: &dyn Fn() -> Result<(), Failed>) -> Result<(), Failed> {
    let mut took = Vec::new();
    let cpu = cpu_ms();
    for _ in 0..rounds {
        let began = Instant::now();
        work()?;
        took.push(began.elapsed().as_secs_f64() * 1e3);
    }
    let cpu = (cpu_ms() - cpu) / rounds as f64;
    took.sort_by(f64::total_cmp);
    println!("{what:32}{:10.1} ms{cpu:10.1} ms of CPU", took[rounds / 2]);
    Ok(())
}

/// Returns the processor time of this process so far, in milliseconds.
fn cpu_ms() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let rest = stat.rsplit(')').next().unwrap_or_default();
    rest.split_whitespace().skip(11).take(2).filter_map(|n| n.parse::<f64>().ok()).sum::<f64>()
        * 10.0
}

/// Returns the peak of resident memory in MiB.
fn peak_rss() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).unwrap_or_default();
    line.trim().trim_end_matches("kB").trim().parse::<f64>().unwrap_or(0.0) / 1024.0
}
