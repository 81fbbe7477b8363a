//! A program with children, and the recordings of this family.

use crate::build::program;
use crate::{Output, Scene, Target, until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A program with children that count their allocations, and the folder of their recordings.
pub struct Family {
    /// The folder in which it all happens.
    pub scene: Scene,
    /// The parent.
    pub target: Target,
    /// The folder of the recordings.
    pub folder: PathBuf,
}

impl Family {
    /// Starts the program, without children.
    pub fn start(name: &str) -> Self {
        let scene = Scene::new(name);
        let target = Target::start(&program("family.c"), &[]);
        let folder = scene.path("all");
        Self { scene, target, folder }
    }

    /// Has it fork a child; returns its process ID.
    pub fn fork(&mut self) -> i32 {
        self.target.ask("fork")["done ".len()..].trim().parse().expect("a pid")
    }

    /// Has all processes allocate; returns how many blocks each has made and freed since its begin.
    pub fn batch(&mut self) -> HashMap<i32, [u64; 2]> {
        self.target.send("batch");
        let mut all = HashMap::new();
        loop {
            let line = self.target.line();
            let words: Vec<u64> = line.split(' ').filter_map(|w| w.parse().ok()).collect();
            match words[..] {
                [pid, a, f] => _ = all.insert(pid as i32, [a, f]),
                _ => return all,
            }
        }
    }

    /// Attaches to the family, and follows it.
    pub fn attach(&self) -> Output {
        self.attach_with(&[])
    }

    /// Attaches with more options.
    pub fn attach_with(&self, options: &[&str]) -> Output {
        let root = self.target.pid.to_string();
        let args = ["attach", "--children", &root, "-o", "all"];
        self.scene.prof(&[&args[..], options].concat())
    }

    /// Returns the lines of the journal.
    pub fn journal(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.folder.join("family.jsonl")).expect("a journal");
        text.lines().map(|l| serde_json::from_str(l).expect("JSON")).collect()
    }

    /// Returns the lines of the journal with this event about a process, or about the family.
    pub fn noted(&self, event: &str, pid: Option<i32>) -> Vec<Value> {
        let mut lines = self.journal();
        lines.retain(|l| l["event"] == event && l["pid"] == serde_json::json!(pid));
        lines
    }

    /// Waits until a process has a recording; returns it.
    pub fn recording(&self, pid: i32) -> PathBuf {
        let mut name = None;
        until("it is recorded", || {
            let line = self.noted("attached", Some(pid)).pop();
            name = line.and_then(|l| l["recording"].as_str().map(ToOwned::to_owned));
            name.is_some()
        });
        self.folder.join(name.expect("a recording"))
    }

    /// Returns the process ID of the supervisor.
    pub fn supervisor(&self) -> i32 {
        let line = self.noted("follows", None).pop().expect("a supervisor");
        line["supervisor"][0].as_i64().expect("a pid") as i32
    }

    /// Kills the supervisor, and waits until it is gone.
    pub fn kill_supervisor(&self) {
        let pid = self.supervisor();
        kill(Pid::from_raw(pid), Signal::SIGKILL).expect("killed");
        until("it has ended", || {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            !status.contains("State:") || status.contains("State:\tZ")
        });
    }

    /// Waits until the collectors have written what there is.
    pub fn calm(&self, recordings: &[&PathBuf]) {
        let lengths = || -> Vec<u64> {
            recordings.iter().map(|p| std::fs::metadata(p).map_or(0, |m| m.len())).collect()
        };
        until("the collectors have caught up", || {
            let before = lengths();
            std::thread::sleep(Duration::from_millis(100));
            before == lengths()
        });
    }

    /// Returns the allocations and frees of the program's own blocks that a recording has.
    pub fn counted(&self, recording: &Path) -> [u64; 2] {
        let r = self.scene.ended(recording);
        assert_eq!(r.number("/recording/lost_events"), 0, "{:#}", r.brief());
        let own = r.marked("family.c", "family");
        let [a, live] = ["allocations", "live_count"].map(|name| own.number(name));
        [a, a - live]
    }
}
