//! Messages of the commands on processes, for ids that are no process.

use prof_os::Pid;

/// The error of commands that work on processes, if `/proc` is not mounted.
pub(crate) const NO_PROC: &str =
    "/proc is not mounted, and prof reads processes there: mount it (`mount -t proc proc /proc`)";

/// Returns the message that an id is that of a thread, with the command line for its process; `None` if it is not.
pub(crate) fn thread(tid: Pid) -> Option<String> {
    let pid = prof_os::process::process_of(tid).filter(|pid| *pid != tid)?;
    let args = std::env::args_os().skip(1).map(|a| a.to_string_lossy().into_owned());
    Some(format!("{tid} is a thread of process {pid}; type `{}`", retyped(args, tid, pid)))
}

/// Returns a command line with one number in place of another.
fn retyped(args: impl Iterator<Item = String>, old: Pid, new: Pid) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "-_./=,:+@%".contains(c);
    let word = |arg: String| match arg {
        a if a == old.to_string() => new.to_string(),
        a if !a.is_empty() && a.chars().all(is_plain) => a,
        a => format!("'{}'", a.replace('\'', r"'\''")),
    };
    let words: Vec<String> = std::iter::once("prof".into()).chain(args.map(word)).collect();
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_line_is_repeated_with_another_number() {
        let args = ["export", "html", "77", "-o", "it's here.html", "--top=77", ""];
        assert_eq!(
            retyped(args.map(String::from).into_iter(), Pid::from_raw(77), Pid::from_raw(5)),
            r"prof export html 5 -o 'it'\''s here.html' --top=77 ''"
        );
    }
}
