//! `prof status`

mod cost;
mod family;
mod told;

use self::cost::Cost;
use self::told::{AtBound, figures_age};
use super::collect::Told;
use super::family::SelectArgs;
use super::report::Format;
use crate::attach_messages;
use crate::failure::{FAILED, refused};
use crate::family::control::Who;
use crate::kept::Kept;
use crate::look;
use crate::notes;
use crate::session;
use crate::signals::signal_name;
use crate::term::one_line;
use anyhow::Result;
use clap::Args;
use prof_analyze::unseen::{Unseen, workers_text};
use prof_analyze::{Summary, live_summary};
use prof_collect::{Peek, Probe, all_recorded};
use prof_inject::Added;
use prof_inject::{Probed, uprobe};
use prof_os::Pid;
use prof_trace::shared::state;
use prof_trace::values::text;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::Write;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Show what is being recorded
///
/// Without a process: every process that is being recorded on this machine.
#[derive(Args, Debug)]
pub(crate) struct StatusArgs {
    /// The process, or the folder of a family
    #[arg(value_name = "PID|FOLDER", value_parser = Who::parse, conflicts_with = "family")]
    pub who: Option<Who>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub select: SelectArgs,
    /// The format of the output
    #[arg(short, long, value_enum, default_value_t = Format::Text)]
    pub format: Format,
}

/// Age and number of the ended recordings that are listed if no process is recorded.
const RECENT: Duration = Duration::from_secs(600);
const MOST_RECENT: usize = 3;
/// Part of the recorded events that may be on their way to the file for statements on what the recording misses.
const ON_THEIR_WAY: u64 = 8;
/// Recordings up to this size are replayed for their live bytes.
const REPLAYED: u64 = 256 << 20;

/// Shows one recorded process, or all.
pub(crate) fn run(args: &StatusArgs) -> Result<ExitCode> {
    if let Some(Who::Folder(path)) = &args.who {
        return family::show(args.format, path);
    }
    let pid = args.one();
    let all: Vec<Status> = match pid {
        Some(pid) => match session::peek(pid) {
            Ok(peek) => match Status::of(peek) {
                Some(status) => vec![status],
                None => return ended(args, pid, session::ended(pid)),
            },
            Err(e) => return ended(args, pid, e),
        },
        None => match args.select.which() {
            Some(which) => Who::All(which).recorded()?.into_iter().filter_map(Status::of).collect(),
            None => all_recorded().into_iter().filter_map(Status::of).collect(),
        },
    };
    let text = match (args.format, pid) {
        (Format::Json, Some(_)) => format!("{:#}\n", all[0].json()),
        (Format::Json, None) => {
            format!("{:#}\n", Value::Array(all.iter().map(Status::json).collect()))
        }
        (Format::Text, _) if all.is_empty() => {
            crate::term::say("nothing is being recorded that can be seen from here");
            for note in notes::ended_within(RECENT).iter().take(MOST_RECENT) {
                crate::term::say(&format!("{}: {}", note.process(), note.text()));
            }
            String::new()
        }
        (Format::Text, _) => all.iter().map(Status::text).collect::<Vec<_>>().join("\n"),
    };
    let _ = std::io::stdout().write_all(text.as_bytes());
    let displaced = pid.is_some() && all.iter().any(|s| s.displaced.is_some());
    Ok(if displaced { ExitCode::from(FAILED) } else { ExitCode::SUCCESS })
}

impl StatusArgs {
    /// Returns the process that alone is meant.
    pub(crate) fn one(&self) -> Option<Pid> {
        match self.who {
            Some(Who::One(pid)) => Some(pid),
            _ => None,
        }
    }
}

/// Reports the recording of a process that is not recorded any more.
fn ended(args: &StatusArgs, pid: Pid, e: anyhow::Error) -> Result<ExitCode> {
    let Some(note) = notes::last(pid) else { return Err(e) };
    if args.format == Format::Json {
        let _ = writeln!(std::io::stdout(), "{:#}", note.json());
    }
    Err(refused(format!("{e:#}; {}", note.text())))
}

/// Describes the effect of other tools' uprobes on the hooks, present or possible.
fn probes(all: &[Probe]) -> Vec<String> {
    let names = |which: &dyn Fn(&&Probe) -> bool| {
        let names: Vec<&str> = all.iter().filter(which).map(|p| p.function.as_str()).collect();
        prof_inject::hooked::calls::in_short(&names)
    };
    let is_over = |p: &Probe| p.code.get(p.offset..) != Some(&p.patch[..]);
    let in_front =
        |p: &&Probe| p.offset > 0 && prof_inject::begins_with_breakpoint(&p.code, p.addr);
    let delicate = |effect: Probed| {
        names(&|p| !is_over(p) && uprobe(p.offset as u64, &p.before, p.addr) == effect)
    };
    let mut messages = Vec::new();
    let mut say = |names: String, what: &dyn Fn(&str) -> String| {
        if !names.is_empty() {
            messages.push(what(&names));
        }
    };
    say(names(&in_front), &|n| {
        format!("a breakpoint (a uprobe?) stands at the entry of {n}, in front of the hook")
    });
    say(names(&|p| is_over(p)), &|n| {
        format!("somebody else has changed the hook of {n}: its calls are not recorded")
    });
    for effect in [Probed::Breaks, Probed::Hides] {
        say(delicate(effect), &|n| prof_inject::no_uprobes(n, effect));
    }
    messages
}

struct Status {
    peek: Peek,
    name: String,
    summary: Option<Summary>,
    added: Option<Added>,
    /// A detach could not remove everything.
    is_left: bool,
    /// Why the recording is not at its original path.
    displaced: Option<String>,
    /// The collector's options, if they are known.
    told: Option<Told>,
    /// Processor time of the recording, if a collector is at work.
    cost: Option<Cost>,
    /// The note on reports at a signal.
    reports: Option<Value>,
    /// What has happened at the bound.
    at_bound: AtBound,
    /// Time since the last figures of a recording without blocks.
    figures_age: Option<Duration>,
}

impl Status {
    /// `None`: the process has ended meanwhile.
    fn of(peek: Peek) -> Option<Self> {
        let name = prof_os::process::comm(peek.pid);
        // The live bytes are known only by replaying the recording, which takes seconds if it is large.
        let kept = Kept::of(&peek);
        let displaced = kept.as_ref().and_then(Kept::describe);
        let path = kept.filter(|_| displaced.is_some());
        let path = path.as_ref().map_or(peek.path.clone(), Kept::link);
        let size = std::fs::metadata(&path).map_or(0, |m| m.len());
        let now = look::now(peek.pid);
        let summary = (size <= REPLAYED).then(|| live_summary(&path, &now).ok()).flatten();
        let added = Added::of(peek.pid);
        let is_left = session::is_left(&peek);
        let told = Told::of(peek.collector.0).filter(|_| peek.collector_alive);
        let cost = Cost::of(&peek);
        let reports = notes::about(peek.pid, "reports").filter(|_| peek.dump_signal != 0);
        let at_bound = AtBound::of(peek.pid);
        let is_aggregated =
            at_bound.went_over() || told.as_ref().is_some_and(|t: &Told| t.aggregate.is_some());
        let figures_age = summary.as_ref().filter(|_| is_aggregated).and_then(figures_age);
        (!prof_os::process::has_ended(peek.pid)).then_some(Self {
            peek,
            name,
            summary,
            added,
            is_left,
            displaced,
            told,
            cost,
            reports,
            at_bound,
            figures_age,
        })
    }

    fn state(&self) -> &'static str {
        let p = &self.peek;
        match p.state {
            state::SETUP => "being attached to",
            _ if self.is_left => "detached from, with prof's memory left in it",
            state::DETACHING | state::DETACHED => "being detached from",
            _ if !p.collector_alive => "orphaned",
            _ if p.recording => "recording",
            _ if p.orphaned => "turned off",
            _ => "paused",
        }
    }

    /// Returns whether the toggle signal and the hooks are in effect.
    fn is_attached(&self) -> bool {
        !matches!(self.peek.state, state::DETACHING | state::DETACHED)
    }

    /// Returns the time in the present state, and the time since the start of the recording.
    fn times(&self) -> Option<(Duration, Duration)> {
        if self.is_left {
            return None;
        }
        let s = self.summary.as_ref()?;
        let mut all = s.duration_ns;
        if s.lags && self.peek.collector_alive {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            all = all.max((now.as_nanos() as u64).saturating_sub(s.began_ns));
        }
        let since = all.saturating_sub(s.since_ns);
        Some((Duration::from_nanos(since), Duration::from_nanos(all)))
    }

    fn text(&self) -> String {
        let p = &self.peek;
        let mut t = format!("process {} ({}): {}", p.pid, one_line(&self.name), self.state());
        if let Some((since, all)) = self.times() {
            t += &match self.state() {
                // Nobody writes the time any more.
                "orphaned" => format!("; its recording ends {} after the attach", text::time(all)),
                _ => format!(" for {}, attached for {}", text::time(since), text::time(all)),
            };
        }
        t += "\n";
        let mut line =
            |name: &str, value: String| t += &format!("  {name:<10} {}\n", one_line(&value));
        line("recording", p.path.display().to_string());
        if let Some(why) = &self.displaced {
            let saves = format!("`prof detach {}` ends it, and saves what is nowhere else", p.pid);
            line("", format!("is not there any more: {why}; {saves}"));
        }
        for (name, text) in self.contents() {
            line(name, text);
        }
        for (name, text) in self.told.iter().flat_map(Told::lines) {
            line(name, text);
        }
        for (name, text) in self.at_bound.lines() {
            line(name, text);
        }
        if let Some(cost) = &self.cost {
            line("cost", cost.text(self.times().map(|(_, all)| all)));
        }
        if let Some(marks) = self.summary.as_ref().and_then(|s| marks(&s.marks)) {
            line("marks", marks);
        }
        if let Some(added) = &self.added {
            line("memory", added.describe());
        }
        if let Some(by) = &p.foreign {
            line("by", by.describe());
        }
        if !p.capture.is_everything() {
            line("records", attach_messages::captured(&p.capture));
        }
        match p.signal {
            // The signal would end the process now.
            _ if !self.is_attached() => {}
            s => {
                let own = format!("prof pause {0}, prof resume {0}", p.pid);
                // An interrupted wait is harmful to programs that take EINTR for the end of their input.
                let by_signal = (s != 0).then(|| {
                    format!("; or kill -{} {}, which interrupts waits", signal_name(s), p.pid)
                });
                line("toggle", own + by_signal.unwrap_or_default().as_str());
            }
        }
        for (i, text) in self.reports().into_iter().enumerate().filter(|_| self.is_attached()) {
            line(if i == 0 { "reports" } else { "" }, text);
        }
        for (module, functions) in
            by_module(&p.functions).into_iter().filter(|_| self.is_attached())
        {
            line("hooked", format!("{module}: {}", crate::attach_messages::list(functions)));
        }
        for remark in probes(&p.probes) {
            line("probes", remark);
        }
        for (name, text) in self.unseen() {
            line(name, text);
        }
        for advice in self.advice() {
            line("advice", advice);
        }
        t
    }

    /// Describes what the recording has so far.
    fn contents(&self) -> Vec<(&'static str, String)> {
        let p = &self.peek;
        let mut all = Vec::new();
        let mut push = |name: &'static str, value: String| all.push((name, value));
        let c = &p.counters;
        push("events", format!("{}, {} lost", text::number(c.events), text::number(c.lost)));
        if let Some(s) = &self.summary {
            let (n, b) = (s.totals.figures.live_count, s.totals.figures.live_bytes);
            let sampled = p.capture.is_sampled();
            let e = s.totals.errors;
            let error = |e: u64| sampled.then_some(e);
            let ago = self.figures_age.map_or_else(String::new, |age| {
                format!(", by the figures of {} ago", text::time(age))
            });
            push(
                "live",
                format!(
                    "{} in {}{ago}",
                    text::about_bytes(b, error(e.live_bytes)),
                    text::about(n, error(e.live_count), "block", "blocks")
                ),
            );
            let packed = if s.compressed { ", compressed" } else { "" };
            push(
                "written",
                format!("{}{packed}, part {}", text::bytes(s.bytes), text::number(s.parts as u64)),
            );
        } else if let Ok(m) = std::fs::metadata(&p.path) {
            let why = if m.len() > REPLAYED { "the recording is large" } else { "not readable" };
            push("live", format!("not counted here ({why}); `prof report {}` does", p.pid));
            push("written", text::bytes(m.len()));
        }
        all
    }

    /// Returns advice on each fault of the recording.
    fn advice(&self) -> Vec<String> {
        let p = &self.peek;
        let mut all = Vec::new();
        if p.unknown_modules > 0 {
            let n = p.unknown_modules;
            let why = format!(
                "no room for the unwind tables of {}: stacks are cut there",
                text::count(n.into(), "module", "modules")
            );
            all.push(format!("{why}; a new attach makes room for all that are loaded then"));
        }
        if self.is_left {
            let why = "what is left does nothing";
            all.push(format!("{why}; `prof detach {}` tries again to remove it", p.pid));
        }
        if self.state() == "turned off" {
            let why = "the collector did not answer for 5 s (stopped, or short of processor?)";
            all.push(format!("{why}; `prof resume {}` goes on", p.pid));
        }
        if self.state() == "orphaned" {
            let (pid, path) = (p.pid, p.path.display());
            all.push(format!(
                "the collector has died; `prof detach {pid}` saves the rest, and `prof attach {pid} -o {path}` also goes on"
            ));
        }
        all
    }

    /// Describes the reports at a signal: what asks for one, and what became of those that were asked for.
    fn reports(&self) -> Vec<String> {
        let (pid, signal) = (self.peek.pid, self.peek.dump_signal);
        let told = self.told.as_ref().and_then(|t| t.reports.as_ref());
        let mut all = match (signal, told) {
            (0, None) => return Vec::new(),
            (0, Some((wanted, _))) => {
                let name = signal_name(*wanted);
                let why = "the process uses that signal itself";
                return vec![format!("none at {name}: {why}; `prof dump {pid}` writes one")];
            }
            (signal, to) => {
                let to = to.map_or(String::new(), |(_, to)| format!(" to {}", to.display()));
                vec![format!("kill -{} {pid} writes one{to}", signal_name(signal))]
            }
        };
        let Some(done) = &self.reports else { return all };
        let number = |name: &str| done[name].as_u64().unwrap_or(0);
        let mut text = format!(
            "{} written for {}",
            text::number(number("written")),
            text::count(number("signals"), "signal", "signals")
        );
        if number("failed") > 0 {
            text += &format!(", {} failed", text::number(number("failed")));
        }
        if let Some(last) = done["last"].as_str() {
            text += &format!("; the last is {last}");
            if number("last_stands_for") > 1 {
                text += &format!(", for {} signals", text::number(number("last_stands_for")));
            }
        }
        all.push(text);
        all.extend(done["error"].as_str().map(|why| format!("the last attempt failed: {why}")));
        all
    }

    /// Returns the growth of the process that its recording does not explain. Nothing is known of it while many events are
    /// on their way to the file, as they may be what explains it.
    fn unseen_memory(&self) -> Option<&Unseen> {
        let s = self.summary.as_ref()?;
        let on_their_way = self.peek.counters.events.saturating_sub(s.counted);
        s.unseen.as_ref().filter(|_| on_their_way <= s.counted / ON_THEIR_WAY)
    }

    /// Returns signs that the recording misses memory.
    fn unseen(&self) -> Vec<(&'static str, String)> {
        let Some(s) = &self.summary else { return Vec::new() };
        let text = self.unseen_memory().into_iter().flat_map(|u| u.text.clone()).enumerate();
        let unseen = text.map(|(i, text)| (if i == 0 { "unseen" } else { "" }, text));
        unseen.chain(workers_text(&s.workers).map(|text| ("workers", text))).collect()
    }

    fn json(&self) -> Value {
        let (p, c) = (&self.peek, &self.peek.counters);
        let mut v = json!({
            "pid": p.pid,
            "name": self.name,
            "state": self.state(),
            "path": p.path.display().to_string(),
            "collector_pid": p.collector_alive.then_some(p.collector.0),
            "signal": (p.signal != 0 && self.is_attached()).then(|| signal_name(p.signal)),
            "dump_signal": (p.dump_signal != 0 && self.is_attached()).then(|| signal_name(p.dump_signal)),
            "events": c.events,
            "lost_events": c.lost,
            "unknown_modules": p.unknown_modules,
            "hooks": p.functions.iter().zip(c.calls.iter().chain(std::iter::repeat(&0)))
                .map(|((f, m), calls)| json!({"function": f, "module": m, "calls": calls}))
                .collect::<Vec<_>>(),
        });
        if let Some(by) = &p.foreign {
            v["prof"] = json!({ "version": by.version, "layout": by.layout, "exe": by.exe.display().to_string() });
        }
        if let Some(added) = &self.added {
            v["memory"] = memory(added);
        }
        if let Some(told) = &self.told {
            told.put(&mut v);
        }
        if let Some(cost) = &self.cost {
            cost.put(&mut v);
        }
        if let Some(reports) = &self.reports {
            v["reports"] = reports.clone();
        }
        self.at_bound.put(&mut v);
        if let Some(why) = &self.displaced {
            v["displaced"] = why.as_str().into();
        }
        let probes = probes(&p.probes);
        if !probes.is_empty() {
            v["probes"] = probes.into();
        }
        if !p.capture.is_everything() {
            v["sample_bytes"] = p.capture.sample_bytes.into();
            v["sample_adapts"] = p.capture.adapts.into();
            v["sample_every"] = p.capture.sample_every.into();
            v["min_size"] = p.capture.min_size.into();
            v["max_size"] = (p.capture.max_size < u64::MAX).then_some(p.capture.max_size).into();
        }
        if let Some(age) = self.figures_age {
            v["figures_age_ns"] = (age.as_nanos() as u64).into();
        }
        if let Some(s) = &self.summary {
            if p.capture.is_sampled() {
                v["live_bytes_stderr"] = s.totals.errors.live_bytes.into();
                v["live_count_stderr"] = s.totals.errors.live_count.into();
            }
            v["compressed"] = s.compressed.into();
            v["live_bytes"] = s.totals.figures.live_bytes.into();
            v["live_count"] = s.totals.figures.live_count.into();
            v["recording_bytes"] = s.bytes.into();
            v["parts"] = s.parts.into();
            v["duration_ns"] = s.duration_ns.into();
            v["since_ns"] = s.since_ns.into();
            if !s.marks.is_empty() {
                let mark = |(i, (name, at)): (usize, &(String, u64))| json!({ "number": i + 1, "name": name, "at_ns": at });
                v["marks"] = s.marks.iter().enumerate().map(mark).collect();
            }
            if let Some(unseen) = self.unseen_memory() {
                v["unseen"] = json!(unseen);
            }
            if !s.workers.is_empty() {
                v["workers"] = json!(s.workers);
            }
        }
        v
    }
}

/// Lists the last marks of a recording; `None` if it has none.
fn marks(all: &[(String, u64)]) -> Option<String> {
    const LISTED: usize = 8;
    let mark = |(i, (name, at)): (usize, &(String, u64))| {
        let name = one_line(name);
        let name = if name.is_empty() { name } else { format!(" {name}") };
        format!("#{}{name} at {}", i + 1, text::duration(*at))
    };
    let from = all.len().saturating_sub(LISTED);
    let listed: Vec<String> = all.iter().enumerate().skip(from).map(mark).collect();
    let earlier = if from > 0 { format!("{from} earlier ones, ") } else { String::new() };
    (!all.is_empty()).then(|| format!("{earlier}{}", listed.join(", ")))
}

/// Returns the memory that prof has added to the target's cgroup, with the cgroup's use and limit.
fn memory(added: &Added) -> Value {
    let own = added.levels.first();
    let limit = own.and_then(|l| l.limit);
    json!({
        "added_bytes": added.bytes(),
        "ring_bytes": added.ring,
        "cgroup": own.map(|l| &l.group),
        "cgroup_used_bytes": own.map(|l| l.used),
        "cgroup_limit_bytes": limit.map(|l| l.1),
        "cgroup_limit": limit.map(|l| l.0),
    })
}

fn by_module(functions: &[(String, String)]) -> BTreeMap<&str, Vec<String>> {
    let mut modules: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (name, module) in functions {
        let name = prof_analyze::symbols::demangle(name);
        modules.entry(module).or_default().push(name);
    }
    modules
}
