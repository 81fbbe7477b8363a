//! `prof detach`

use super::family::WhoArgs;
use super::record::parse_duration;
use crate::audit::Audit;
use crate::failure::{FAILED, refused};
use crate::family::again;
use crate::family::control::{Who, each};
use crate::family::find::Seen;
use crate::family::supervise;
use crate::notes;
use crate::session::{self, Detached};
use crate::term::say as say_line;
use anyhow::Result;
use clap::Args;
use prof_os::Pid;
use serde_json::json;
use std::process::ExitCode;
use std::time::Duration;

/// Take prof out of a process, or of each process of a family, and finish its recording
///
/// Restores the process to what it was and verifies that. The path of the recording is printed.
#[derive(Args, Debug)]
pub(crate) struct DetachArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub who: WhoArgs,
    /// Time to wait for threads to leave the hook
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = parse_duration)]
    pub timeout: Duration,
    /// Take prof out of children, too, that were forked while the process was recorded and have run no other program
    /// since: without it they keep prof's patches and code, inactive, and are named
    #[arg(long)]
    pub children: bool,
    /// Take your word for it that the seccomp filter of the process lets prof's calls pass, where prof cannot
    /// find out, as in a container: memfd_create, mmap, mremap, munmap, munlock, mprotect, madvise,
    /// rt_sigaction, rt_sigprocmask, rt_sigreturn, sigaltstack and close. If one does not, that kills the
    /// process
    #[arg(long)]
    pub filter_allows: bool,
    /// Write no line to the system's log (authpriv)
    #[arg(long)]
    pub no_log: bool,
}

/// Runs `prof detach`, and reports anything that is left in the process.
pub(crate) fn run(args: &DetachArgs) -> Result<ExitCode> {
    if args.filter_allows {
        prof_inject::sandbox::take_word(None);
    }
    match args.who.who()? {
        Who::One(pid) => one(args, pid),
        who => {
            let ended = matches!(&who, Who::Folder(path) if supervise::end(path));
            if let Who::Folder(path) = &who {
                again::finish_left(path);
            }
            let all = match who.recorded() {
                Err(_) if ended => return Ok(ExitCode::SUCCESS),
                all => all?,
            };
            let mut journal = who.journal();
            Ok(each(&all, |pid| {
                say_line(&format!("{}, pid {pid}:", prof_os::process::comm(pid)));
                let seen = Seen::of(pid);
                let clean = one(args, pid)? == ExitCode::SUCCESS;
                if let Some(journal) = &mut journal {
                    journal.note("detached", seen.as_ref(), json!({ "clean": clean }));
                }
                Ok(clean)
            }))
        }
    }
}

/// Takes prof out of one process.
fn one(args: &DetachArgs, pid: Pid) -> Result<ExitCode> {
    let audit = Audit::unless(args.no_log);
    let leave = || session::leave(pid, args.timeout, args.children, audit);
    prof_inject::wait_until_idle(pid);
    let detached = match leave() {
        Err(e) if session::was_busy(pid, &e) => leave(),
        detached => detached,
    };
    let mut detached = detached.map_err(|e| match notes::last(pid) {
        Some(note) => {
            crate::term::path(&note.path());
            refused(format!("{e:#}; {}", note.text()))
        }
        None => e,
    })?;
    // Report on the process first, as users wait for that; its recording may take longer.
    say(&detached);
    detached.messages.clear();
    detached.finish();
    detached.messages.iter().for_each(|line| say_line(line));
    if !detached.path.as_os_str().is_empty() {
        crate::term::path(&detached.path);
    }
    Ok(if detached.is_clean() && detached.whole {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(FAILED)
    })
}

/// Reports the result of a detach.
pub(crate) fn say(d: &Detached) {
    d.messages.iter().for_each(|line| say_line(line));
    if d.gone {
        return;
    }
    if d.is_clean() {
        say_line("the process is as it was before");
        return;
    }
    d.left.iter().for_each(|line| say_line(&format!("left in the process: {line}")));
    if d.stays {
        say_line(&format!(
            "what is left does nothing any more, and stays: {}",
            session::stays(d.pid)
        ));
    } else if prof_inject::process::rings::has_parts(d.pid) {
        say_line("what is left does nothing any more; `prof detach` again removes it");
    } else {
        say_line(&format!(
            "`prof detach` does not find what is left; it goes when process {} ends or runs another program",
            d.pid
        ));
    }
}
