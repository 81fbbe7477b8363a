//! `prof doctor`: reports what the kernel allows prof here, by trying it where possible, and what to change.

use super::record::{RecordArgs, pid};
use super::report::Format;
use crate::failure::FAILED;
use crate::session::{self, DETACH_TIMEOUT, Settings};
use crate::term;
use anyhow::{Context, Result};
use clap::Args;
use prof_os::Pid;
use prof_trace::values::text::{bytes, count, time};
use serde::Serialize;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

/// Show what the kernel allows prof here, and what to change
///
/// Looks at rights, Yama, seccomp and others, and records a process of its own. With a process: whether
/// that can be attached to. The exit code is 1 if recording would fail.
#[derive(Args, Debug)]
pub(crate) struct DoctorArgs {
    /// A process that is to be recorded
    #[arg(value_parser = pid)]
    pub pid: Option<Pid>,
    /// The format of the output
    #[arg(short, long, value_enum, default_value_t = Format::Text)]
    pub format: Format,
}

/// The oldest kernel that prof supports.
const OLDEST: (u32, u32) = (5, 4);

/// Capabilities that matter to prof, with their numbers (capabilities(7)).
const CAPABILITIES: [(&str, u32); 3] =
    [("CAP_SYS_PTRACE", 19), ("CAP_SYS_ADMIN", 21), ("CAP_DAC_READ_SEARCH", 2)];

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    /// The user has nothing to do.
    Good,
    /// Some processes can't be recorded.
    Limited,
    /// prof can record nothing here.
    Bad,
}

/// One check and its result.
#[derive(Debug, Serialize)]
struct Check {
    name: &'static str,
    verdict: Verdict,
    /// The state that was found.
    found: String,
    /// The consequences for prof, and what to change.
    #[serde(skip_serializing_if = "String::is_empty")]
    advice: String,
}

impl Check {
    fn good(name: &'static str, found: impl Into<String>) -> Self {
        Self { name, verdict: Verdict::Good, found: found.into(), advice: String::new() }
    }

    fn but(self, verdict: Verdict, advice: impl Into<String>) -> Self {
        Self { verdict, advice: advice.into(), ..self }
    }
}

/// Prints the results. The exit code is 1 if a recording would fail.
pub(crate) fn run(args: &DoctorArgs) -> Result<ExitCode> {
    let mut checks = environment();
    checks.push(trial());
    if let Some(pid) = args.pid {
        checks.push(process(pid));
    }
    super::report::print(&match args.format {
        Format::Text => text(&checks),
        Format::Json => serde_json::to_string_pretty(&checks).context("JSON")? + "\n",
    })?;
    let bad = checks.iter().any(|c| c.verdict == Verdict::Bad);
    Ok(if bad { ExitCode::from(FAILED) } else { ExitCode::SUCCESS })
}

/// Returns the text of `prof --version -v`: the version, how it was built, and what the kernel allows.
pub(crate) fn version() -> String {
    let features = if cfg!(feature = "parquet") { "parquet" } else { "none" };
    let mut all = format!(
        "prof {}\nfeatures      {features}\narchitecture  {}, {}-endian\n",
        env!("CARGO_PKG_VERSION"),
        std::env::consts::ARCH,
        if cfg!(target_endian = "big") { "big" } else { "little" },
    );
    all += &text(&environment());
    all
}

fn text(checks: &[Check]) -> String {
    let mut all = String::new();
    for c in checks {
        let mark = match c.verdict {
            Verdict::Good => "",
            Verdict::Limited => "limited: ",
            Verdict::Bad => "fails: ",
        };
        let _ = writeln!(all, "{:<13} {mark}{}", c.name, term::plain(&c.found));
        if !c.advice.is_empty() {
            let _ = writeln!(all, "{:<13} {}", "", term::plain(&c.advice));
        }
    }
    all
}

/// Makes the checks that change nothing.
fn environment() -> Vec<Check> {
    let status = fs::read_to_string("/proc/self/status");
    let Ok(status) = status else {
        return vec![
            Check::good("/proc", "nothing is there").but(Verdict::Bad, super::process::NO_PROC),
        ];
    };
    vec![
        kernel(),
        rights(&status),
        yama(&status),
        seccomp(&status),
        processes(),
        executable_memory(),
        cgroup(),
        tracing(),
    ]
}

fn kernel() -> Check {
    let release = line("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split(['.', '-']).map_while(|n| n.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let check = Check::good("kernel", format!("Linux {release}"));
    if version < OLDEST {
        return check.but(Verdict::Limited, "prof is tried with Linux 5.4 and later only");
    }
    check
}

fn rights(status: &str) -> Check {
    let uid = nix::unistd::geteuid().as_raw();
    let has: Vec<&str> =
        CAPABILITIES.iter().filter(|(_, bit)| capable(status, *bit)).map(|(n, _)| *n).collect();
    let list = if has.is_empty() { "no capability that helps".into() } else { has.join(", ") };
    let check = Check::good("rights", format!("uid {uid}, {list}"));
    if !capable(status, 19) {
        let advice = format!(
            "only processes of uid {uid} that are dumpable; for others run prof as root or with CAP_SYS_PTRACE"
        );
        return check.but(Verdict::Limited, advice);
    }
    check
}

fn yama(status: &str) -> Check {
    let scope = line("/proc/sys/kernel/yama/ptrace_scope").and_then(|t| t.parse::<u32>().ok());
    let Some(scope) = scope else { return Check::good("yama", "not in this kernel") };
    let check = Check::good("yama", format!("kernel.yama.ptrace_scope is {scope}"));
    match scope {
        0 => check,
        3 => check.but(Verdict::Bad, "nobody may trace until the next boot"),
        _ if capable(status, 19) => check,
        1 => check.but(
            Verdict::Limited,
            "only what `prof run` has started; `sudo sysctl kernel.yama.ptrace_scope=0`, or run prof as root",
        ),
        _ => check.but(Verdict::Bad, "run prof as root or with CAP_SYS_PTRACE"),
    }
}

fn seccomp(status: &str) -> Check {
    let mode = field(status, "Seccomp").unwrap_or("0");
    let admin = capable(status, 21);
    let check = match mode {
        "0" => Check::good("seccomp", "prof has no filter"),
        _ => Check::good("seccomp", "prof runs under a filter, as in most containers"),
    };
    match (mode, admin) {
        ("0", true) => check,
        ("0", false) => check.but(
            Verdict::Limited,
            "processes with a filter may be refused; CAP_SYS_ADMIN allows prof to suspend it",
        ),
        _ => check.but(
            Verdict::Limited,
            "processes with a filter may be refused; run prof outside of the container, or start that with --security-opt seccomp=unconfined",
        ),
    }
}

/// Checks how many of the machine's processes are visible.
fn processes() -> Check {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let n = entries.filter(|e| e.file_name().to_string_lossy().parse::<u32>().is_ok()).count();
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let hides =
        |l: &&str| l.contains(" - proc ") && l.contains("hidepid=") && !l.contains("hidepid=0");
    let check = Check::good("processes", format!("{n} can be seen"));
    if mounts.lines().find(hides).is_some() {
        let advice = "/proc is mounted with hidepid: processes of other users can't be seen";
        return check.but(Verdict::Limited, advice);
    }
    check
}

fn executable_memory() -> Check {
    let Some(value) = line("/proc/sys/vm/memfd_noexec") else {
        return Check::good("memfd", "no restriction in this kernel");
    };
    // prof creates its memfd as not executable, so any setting will do.
    Check::good("memfd", format!("vm.memfd_noexec is {value}"))
}

fn cgroup() -> Check {
    let pid = Pid::this();
    let levels = prof_inject::process::cgroup::levels(pid, pid);
    match levels.iter().filter(|l| l.limit.is_some()).min_by_key(|l| l.left()) {
        Some(level) => {
            let (left, max) = (bytes(level.left()), level.limit.map_or(0, |l| l.1));
            Check::good("cgroup", format!("prof may use {}, of which {left} are left", bytes(max)))
        }
        None => Check::good("cgroup", "no limit of memory for prof itself"),
    }
}

/// Reports tracing facilities that prof does not need, but users expect here.
fn tracing() -> Check {
    let paranoid = line("/proc/sys/kernel/perf_event_paranoid");
    let paranoid = paranoid.map_or("no perf events".into(), |p| format!("perf_event_paranoid {p}"));
    let tracefs = ["/sys/kernel/tracing/trace", "/sys/kernel/debug/tracing/trace"];
    let there = tracefs.iter().any(|p| Path::new(p).exists());
    let tracefs = if there { "tracefs mounted" } else { "no tracefs" };
    Check::good("tracing", format!("{paranoid}, {tracefs}; prof needs neither"))
}

/// Records a process made for that purpose, and detaches from it.
fn trial() -> Check {
    let began = Instant::now();
    match super::demo::with_target(record_shortly) {
        Ok(events) => {
            let (events, took) = (count(events, "event", "events"), time(began.elapsed()));
            Check::good("trial", format!("recorded a process of its own: {events}, {took}"))
        }
        Err(e) => Check::good("trial", "a process of its own can't be recorded")
            .but(Verdict::Bad, format!("{e:#}")),
    }
}

fn record_shortly(pid: Pid) -> Result<u64> {
    // A container's root may have no folder for temporary files.
    let folder = Some(std::env::temp_dir()).filter(|d| d.is_dir()).unwrap_or_else(|| ".".into());
    let path = folder.join(format!("prof.doctor.{pid}.prof"));
    let record = RecordArgs::unlogged(path.clone(), 1 << 20);
    let recorded = || -> Result<u64> {
        let mut attached = session::attach(pid, &record, &Settings::default())?;
        std::thread::sleep(std::time::Duration::from_millis(100));
        let detached = session::detach(pid, DETACH_TIMEOUT, false, crate::audit::Audit::Off)?;
        let _ = attached.collector.wait();
        anyhow::ensure!(detached.is_clean(), "left in the process: {}", detached.left.join("; "));
        let mut follower = prof_analyze::Follower::open(&path)?;
        Ok(follower.poll()?.events)
    };
    let events = recorded();
    let _ = fs::remove_file(&path);
    events
}

/// Checks whether a process would be refused; nothing in it is touched.
fn process(pid: Pid) -> Check {
    match prof_inject::preflight(pid) {
        Ok(target) => {
            let check =
                Check::good("process", format!("{pid} ({}) can be attached to", target.name));
            match prof_inject::process::translated::note(pid) {
                Some(note) => check.but(Verdict::Limited, note),
                None => check,
            }
        }
        Err(e) => Check::good("process", format!("{pid} would be refused"))
            .but(Verdict::Bad, e.to_string()),
    }
}

fn line(path: impl AsRef<Path>) -> Option<String> {
    fs::read_to_string(path).ok().map(|t| t.trim().to_owned())
}

fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

fn capable(status: &str, bit: u32) -> bool {
    let set = field(status, "CapEff").and_then(|t| u64::from_str_radix(t, 16).ok());
    set.is_some_and(|set| set >> bit & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const USER: &str = "Name:\tx\nSeccomp:\t2\nCapEff:\t0000000000000000\n";
    const ROOT: &str = "Seccomp:\t0\nCapEff:\t000001ffffffffff\n";

    #[test]
    fn what_limits_a_user_does_not_limit_root() {
        assert_eq!(rights(ROOT).verdict, Verdict::Good);
        assert_eq!(rights(USER).verdict, Verdict::Limited);
        assert_eq!(seccomp(ROOT).verdict, Verdict::Good);
        assert!(seccomp(USER).advice.contains("seccomp=unconfined"));
        let all = text(&[rights(USER)]);
        assert!(all.contains("limited: uid") && all.contains("CAP_SYS_PTRACE"), "{all}");
    }
}
