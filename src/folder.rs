//! Has the oldest part of a recording folded when it meets its bound, by a process of its own: that takes memory and time
//! which the collector needs, and may fail. Figures by stack the collector makes itself, as it needs what they rely on.

use crate::audit::Audit;
use crate::daemon::prepare_helper;
use crate::memory::NO_MEMORY;
use crate::notes;
use anyhow::{Context, Result, bail};
use clap::Args;
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use prof_analyze::rewrite::fold;
use prof_collect::{Copied, Folder, create_recording, new_path, remove_left};
use prof_os::Pid;
use prof_os::stat::Stat;
use prof_trace::records::FoldFailed;
use prof_trace::values::text::bytes;
use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::{FileExt, MetadataExt, fchown};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode};
use std::time::Duration;

/// Priority of the process: it has to come to its end, but may take its time.
const NICE: i32 = 5;
/// Bytes that are copied at a time.
const PIECE: usize = 1 << 20;
/// When so much is left, the collector appends it.
const LITTLE: u64 = 1 << 20;
/// Greatest number of times that what has come meanwhile is copied.
const ROUNDS: usize = 8;

/// Arguments of the process that folds a recording.
#[derive(Args, Debug)]
pub(crate) struct FoldArgs {
    /// The recording
    #[arg(long)]
    pub recording: PathBuf,
    /// Descriptor of the new file
    #[arg(long)]
    pub out_fd: i32,
    /// Bytes at the end of the recording that stay as they are
    #[arg(long)]
    pub keep: u64,
    /// Memory that this process may take
    #[arg(long)]
    pub memory: u64,
}

/// The kernel ends this process first where memory runs out: it can be tried again, and the target or the collector can't.
const OOM_SCORE: &str = "1000";

/// `prof fold`: writes the folded recording, appends the rest of it, and prints how far that is.
pub(crate) fn run(args: &FoldArgs) -> Result<ExitCode> {
    // SAFETY: the collector has opened this descriptor for this process, and nothing else here owns it.
    let to = unsafe { File::from_raw_fd(args.out_fd) };
    let _ = fs::write("/proc/self/oom_score_adj", OOM_SCORE);
    let memory = args.memory as libc::rlim_t;
    let most = libc::rlimit { rlim_cur: memory, rlim_max: memory };
    // SAFETY: the kernel only reads the value.
    Errno::result(unsafe { libc::setrlimit(libc::RLIMIT_DATA, &raw const most) })
        .context("cannot bound the memory of the fold")?;
    let path = args.recording.display();
    let mut out = BufWriter::with_capacity(PIECE, &to);
    let done = fold(&args.recording, args.keep, &mut out)?;
    out.flush().context("cannot write the folded recording")?;
    drop(out);
    let all = File::open(&args.recording).with_context(|| format!("cannot open {path}"))?;
    let (mut from, mut len) = (done.cut, done.bytes);
    for _ in 0..ROUNDS {
        let end = all.metadata().with_context(|| format!("cannot read {path}"))?.len();
        append(&all, from..end, &to, len).with_context(|| format!("cannot copy {path}"))?;
        (from, len) = (end, len + (end - from));
        // A machine that fails later has one file or the other.
        to.sync_data().context("cannot write the folded recording")?;
        if all.metadata().is_ok_and(|m| m.len().saturating_sub(end) < LITTLE) {
            break;
        }
    }
    crate::commands::report::print(&format!("{from} {len}\n"))?;
    Ok(ExitCode::SUCCESS)
}

fn append(all: &File, range: std::ops::Range<u64>, to: &File, mut at: u64) -> io::Result<()> {
    let (mut from, mut piece) = (range.start, vec![0; PIECE]);
    while from < range.end {
        let want = (range.end - from).min(PIECE as u64) as usize;
        all.read_exact_at(&mut piece[..want], from)?;
        to.write_all_at(&piece[..want], at)?;
        (from, at) = (from + want as u64, at + want as u64);
    }
    Ok(())
}

/// The facts about a recording that its folds need.
#[derive(Debug)]
pub(crate) struct About {
    /// The recorded process.
    pub pid: Pid,
    /// Absolute path of the recording.
    pub path: PathBuf,
    /// Descriptor of the recording.
    pub recording: i32,
    /// Memory that the process which folds may take.
    pub memory: u64,
    /// The note of the recording.
    pub note: Option<PathBuf>,
    /// Whether the system's log is written to.
    pub audit: Audit,
}

/// Folds the recording of this collector.
#[derive(Debug)]
pub(crate) struct Folds {
    about: About,
    /// Descriptor by which the recording is saved if it is deleted.
    kept: Option<i32>,
    work: Option<(Child, File)>,
    /// Processor time of the processes that have ended, and of the one that is at work.
    spent: [Duration; 2],
    /// The new file has a name.
    has_name: bool,
}

impl Folds {
    /// Creates it for a recording, given another descriptor that leads to it.
    pub(crate) fn of(about: About, kept: Option<i32>) -> Self {
        Self { about, kept, work: None, spent: Default::default(), has_name: false }
    }

    /// Returns the status of the open recording, if it is still at its path.
    fn in_place(&self) -> Result<fs::Metadata> {
        let held = fs::metadata(format!("/proc/self/fd/{}", self.about.recording))?;
        let there = fs::symlink_metadata(&self.about.path)
            .with_context(|| format!("{} is gone", self.about.path.display()))?;
        if (held.dev(), held.ino()) != (there.dev(), there.ino()) {
            bail!("{} was moved or replaced", self.about.path.display());
        }
        Ok(held)
    }

    /// Creates the new file, of the recording's owner.
    fn try_create(&mut self) -> Result<File> {
        let held = self.in_place()?;
        let new = new_path(&self.about.path);
        // A collector that was killed may have left it.
        remove_left(&self.about.path, &held);
        let file =
            create_recording(&new).with_context(|| format!("cannot create {}", new.display()))?;
        self.has_name = true;
        // Where the owner can't be given away, prof is not root, and the file is its own.
        let _ = fchown(&file, Some(held.uid()), Some(held.gid()));
        Ok(file)
    }

    fn try_begin(&mut self, keep: u64) -> Result<()> {
        let file = self.try_create()?;
        let mut command = Command::new("/proc/self/exe");
        command.arg0("prof").args(["fold", "--keep", &keep.to_string()]);
        command.args(["--out-fd", &file.as_raw_fd().to_string()]);
        command.args(["--memory", &self.about.memory.to_string()]);
        command.arg("--recording").arg(&self.about.path);
        prepare_helper(&mut command, NICE, Some(file.as_raw_fd()), true);
        let child = command.spawn().context("there is no process for it (`ulimit -u`?)")?;
        self.work = Some((child, file));
        Ok(())
    }

    /// Notes the processor time of the process that is at work.
    fn look_at_time(&mut self) {
        let pid = self.work.as_ref().map(|(child, _)| Pid::from_u32(child.id()));
        if let Some(stat) = pid.and_then(Stat::of) {
            self.spent[1] = Duration::from_millis(stat.cpu_ms());
        }
    }

    /// Notes that the process has ended.
    fn has_spent(&mut self) {
        self.spent = [self.spent[0] + self.spent[1], Duration::ZERO];
    }

    /// Returns what the process has written, which has ended.
    fn result(mut child: Child, file: File, memory: u64) -> Result<Copied> {
        let (mut said, mut why) = (String::new(), String::new());
        if let Some(out) = &mut child.stdout {
            out.read_to_string(&mut said)?;
        }
        if let Some(err) = &mut child.stderr {
            err.read_to_string(&mut why)?;
        }
        let mut numbers = said.split_whitespace().map(str::parse::<u64>);
        match (numbers.next(), numbers.next()) {
            (Some(Ok(from)), Some(Ok(len))) => Ok(Copied { file, len, from }),
            _ if why.contains(NO_MEMORY) => bail!(
                "the process that folds it has no more memory; --fold-memory lets it take {}",
                bytes(memory)
            ),
            _ => match why.lines().last() {
                Some(line) => bail!("{}", line.strip_prefix("prof: ").unwrap_or(line)),
                None => bail!("the process that folds it was killed"),
            },
        }
    }

    fn try_replace(&mut self, new: &File) -> Result<()> {
        let held = self.in_place()?;
        let from = new_path(&self.about.path);
        let failed =
            || format!("cannot rename {} to {}", from.display(), self.about.path.display());
        let exchange =
            || renameat2(AT_FDCWD, &from, AT_FDCWD, &self.about.path, RenameFlags::RENAME_EXCHANGE);
        match exchange() {
            Ok(()) => {
                let out = fs::symlink_metadata(&from).with_context(failed)?;
                if (out.dev(), out.ino()) != (held.dev(), held.ino()) {
                    // Somebody has put another file there since it was looked at: that must not be lost.
                    exchange().with_context(failed)?;
                    bail!("{} was moved or replaced", self.about.path.display());
                }
                let _ = fs::remove_file(&from);
            }
            // Not every kernel and file system has this.
            Err(Errno::EINVAL | Errno::ENOSYS | Errno::EOPNOTSUPP) => {
                fs::rename(&from, &self.about.path).with_context(failed)?;
            }
            Err(e) => return Err(e).with_context(failed),
        }
        self.has_name = false;
        if let Some(kept) = self.kept {
            // SAFETY: both descriptors are open, and `record` keeps the second open as long as it collects.
            unsafe { libc::dup3(new.as_raw_fd(), kept, libc::O_CLOEXEC) };
        }
        Ok(())
    }
}

impl Folder for Folds {
    fn begin(&mut self, keep: u64) -> Result<(), String> {
        self.try_begin(keep).map_err(|e| format!("{e:#}"))
    }

    fn written(&self) -> u64 {
        self.work.as_ref().and_then(|w| w.1.metadata().ok()).map_or(0, |m| m.len())
    }

    fn poll(&mut self) -> Option<Result<Copied, String>> {
        self.look_at_time();
        let ended = match &mut self.work.as_mut()?.0.try_wait() {
            Ok(status) => status.is_some(),
            Err(_) => true,
        };
        let (child, file) = self.work.take_if(|_| ended)?;
        self.has_spent();
        Some(Self::result(child, file, self.about.memory).map_err(|e| format!("{e:#}")))
    }

    fn spent(&self) -> Duration {
        self.spent.iter().sum()
    }

    fn replace(&mut self, new: &File) -> Result<(), String> {
        self.try_replace(new).map_err(|e| format!("{e:#}"))
    }

    fn give_up(&mut self) {
        self.look_at_time();
        if let Some((mut child, _)) = self.work.take() {
            let _ = child.kill();
            let _ = child.wait();
            self.has_spent();
        }
        if std::mem::take(&mut self.has_name) {
            let _ = fs::remove_file(new_path(&self.about.path));
        }
    }

    fn tell(&mut self, failed: &FoldFailed) {
        self.about.audit.fold_failed(self.about.pid, failed);
        if let Some(note) = self.about.note.as_deref().and_then(notes::Open::again) {
            note.folds(failed);
        }
    }

    fn create(&mut self) -> Result<File, String> {
        self.try_create().map_err(|e| format!("{e:#}"))
    }

    fn went_over(&mut self) {
        self.about.audit.went_over(self.about.pid);
        if let Some(note) = self.about.note.as_deref().and_then(notes::Open::again) {
            note.went_over();
        }
    }
}
