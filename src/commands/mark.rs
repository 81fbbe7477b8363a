//! `prof mark`: gives the present moment of a recording a name.

use super::collect::Told;
use super::family::WhoArgs;
use crate::failure::{refused, usage};
use crate::family::control::{Who, each};
use crate::notes;
use crate::session;
use crate::switch::wait_for_collector;
use crate::term::{one_line, say};
use anyhow::Result;
use clap::Args;
use prof_os::Pid;
use prof_trace::records::MARKS;
use prof_trace::shared::MARK_NAME;
use std::process::ExitCode;

/// Set a mark in a running recording, for --since and --between
///
/// The recording goes on. `prof report PID --since NAME` shows what was allocated since the mark, and `--between A,B` what
/// was allocated between two; all commands on recordings have both.
#[derive(Args, Debug)]
pub(crate) struct MarkArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub who: WhoArgs,
    /// The name; without one the mark is called by its number, which is printed, as `#3`
    #[arg(value_parser = name, value_name = "NAME")]
    pub mark: Option<String>,
}

/// Checks the name of a mark.
fn name(text: &str) -> Result<String, String> {
    if text.is_empty() || text.len() > MARK_NAME {
        return Err(format!("a mark's name has 1 to {MARK_NAME} bytes"));
    }
    if text.starts_with('#') {
        return Err("#1 and its like are the numbers of marks".into());
    }
    if text.trim() != text || text.contains(|c: char| c == ',' || c.is_control()) {
        return Err("a mark's name has no commas, line breaks, or blanks at its ends".into());
    }
    Ok(text.to_owned())
}

/// Runs the command.
///
/// # Errors
/// If the process is not recorded, or its collector does not answer.
pub(crate) fn run(args: &MarkArgs) -> Result<ExitCode> {
    let name = args.mark.as_deref().unwrap_or_default();
    let who = args.who.who()?;
    if let Who::One(pid) = who {
        say(&set(pid, name)?);
        return Ok(ExitCode::SUCCESS);
    }
    let all = who.recorded()?;
    if name.is_empty() && all.len() > 1 {
        return Err(usage(
            "the processes of a family count their marks by themselves: give the mark a name",
        ));
    }
    Ok(each(&all, |pid| {
        say(&format!("pid {pid}: {}", set(pid, name)?));
        Ok(true)
    }))
}

/// Sets a mark in the recording of a process; returns what to say.
fn set(pid: Pid, name: &str) -> Result<String> {
    let peek = session::attached(pid)?;
    let path = peek.path.clone();
    let aggregated = Told::of(peek.collector.0).is_some_and(|t| t.aggregate.is_some())
        || notes::about(pid, "figures_since").is_some();
    wait_for_collector(peek)?;
    let number = prof_inject::mark(pid, name).map_err(|e| crate::failure::failed(pid, e))?;
    let Some(number) = number else {
        return Err(refused(format!(
            "pid {pid}: its recording has {MARKS} marks already, and may have no more"
        )));
    };
    let called = if name.is_empty() { format!("\'#{number}\'") } else { quoted(name) };
    let path = one_line(&path.to_string_lossy());
    if aggregated {
        return Ok(format!(
            "mark #{number}: `prof report {path}` shows its time, which --at and --base take; --since can't, as the \
             recording has figures by stack alone"
        ));
    }
    Ok(format!(
        "mark #{number}: `prof report {path} --since {called}` shows what was allocated since"
    ))
}

/// Returns a name as a word of a shell.
fn quoted(name: &str) -> String {
    shlex::try_quote(name).map_or_else(|_| name.to_owned(), |q| q.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_can_not_be_asked_for_are_refused() {
        for good in ["deploy", "v1.2 canary", "a#1", "é"] {
            assert_eq!(name(good), Ok(good.to_owned()));
        }
        for bad in ["", "#1", "a,b", "a\nb", " a", "a ", &"x".repeat(MARK_NAME + 1)] {
            assert!(name(bad).is_err(), "{bad:?}");
        }
    }
}
