//! Reports errors: one line on standard error, and an exit code.

use anyhow::anyhow;
use prof_inject::Error;
use prof_os::Pid;
use std::process::ExitCode;

/// Exit code of general failures.
pub(crate) const FAILED: u8 = 1;
/// Exit code of wrong usage, or a file that can't be used.
pub(crate) const USAGE: u8 = 2;
/// Exit code if the target is gone, or can't be recorded.
pub(crate) const REFUSED: u8 = 3;

/// An error with an exit code of its own.
#[derive(Debug)]
pub(crate) struct Coded {
    code: u8,
    message: String,
}

impl std::fmt::Display for Coded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Coded {}

/// Creates an error: the target is gone, or can't be recorded.
pub(crate) fn refused(message: impl Into<String>) -> anyhow::Error {
    Coded { code: REFUSED, message: message.into() }.into()
}

/// Creates an error: wrong usage.
pub(crate) fn usage(message: impl Into<String>) -> anyhow::Error {
    Coded { code: USAGE, message: message.into() }.into()
}

/// Converts an error of the injector to one with the right exit code.
pub(crate) fn failed(pid: Pid, e: Error) -> anyhow::Error {
    let e = e.explained(pid);
    if is_refusal(&e) { refused(e.to_string()) } else { anyhow!(e) }
}

fn is_refusal(e: &Error) -> bool {
    match e {
        // Something of prof is left in the process.
        Error::Unfinished { .. } => false,
        _ => matches!(
            e,
            Error::Refused(_)
                | Error::Gone(_)
                | Error::Replaced(_)
                | Error::AddressSpace { .. }
                | Error::Mappings { .. }
                | Error::Descriptors { .. }
                | Error::LockedMemory { .. }
        ),
    }
}

/// Prints an error, and returns its exit code.
pub(crate) fn report(e: &anyhow::Error) -> ExitCode {
    crate::term::say(&format!("{e:#}"));
    ExitCode::from(code_of(e))
}

fn code_of(e: &anyhow::Error) -> u8 {
    e.chain().find_map(|c| c.downcast_ref::<Coded>()).map_or(FAILED, |c| c.code)
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    #[test]
    fn codes_survive_context() {
        let e = Err::<(), _>(refused("gone")).context("attach").expect_err("an error");
        assert_eq!(code_of(&e), REFUSED);
        assert_eq!(format!("{e:#}"), "attach: gone");
        assert_eq!(code_of(&anyhow::anyhow!("x")), FAILED);
        assert_eq!(code_of(&usage("y")), USAGE);
    }
}
