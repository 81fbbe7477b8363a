//! Properties of the terminal: whether standard output is one, its width, and whether colours are wanted; and output to
//! it.

use std::io::{IsTerminal, Write};
use std::path::Path;

/// Returns whether to colour standard output: only on a terminal that supports it, and never if `NO_COLOR` is set to
/// anything.
pub(crate) fn color() -> bool {
    let unset = |name| std::env::var_os(name).is_none_or(|v| v.is_empty());
    std::io::stdout().is_terminal()
        && unset("NO_COLOR")
        && std::env::var_os("TERM").is_none_or(|t| t != "dumb")
}

/// Returns the width of the terminal in columns; `None` if standard output is not a terminal. `COLUMNS` takes
/// precedence.
pub(crate) fn width() -> Option<usize> {
    if !std::io::stdout().is_terminal() {
        return None;
    }
    let columns = std::env::var("COLUMNS").ok().and_then(|c| c.trim().parse().ok());
    columns.filter(|c| *c > 0).or_else(ask)
}

fn ask() -> Option<usize> {
    let mut size = libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: TIOCGWINSZ writes a `winsize` to its argument, which is one.
    let rc = unsafe { libc::ioctl(libc::STDOUT_FILENO, libc::TIOCGWINSZ, &mut size) };
    (rc == 0 && size.ws_col > 0).then_some(size.ws_col as usize)
}

/// Returns whether standard output is a pipe or socket whose reader has closed it.
pub(crate) fn is_closed() -> bool {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    use std::os::fd::AsFd;
    let out = std::io::stdout();
    let mut one = [PollFd::new(out.as_fd(), PollFlags::empty())];
    let closed = PollFlags::POLLERR | PollFlags::POLLHUP;
    poll(&mut one, PollTimeout::ZERO).is_ok_and(|n| n > 0)
        && one[0].revents().is_some_and(|e| e.intersects(closed))
}

/// Escapes control characters but newlines: names come from recorded processes, and must not move the cursor or change
/// the title of the terminal.
pub(crate) fn plain(text: &str) -> String {
    escape(text, |c| c.is_control() && c != '\n')
}

/// Escapes newlines, too: names must not begin lines of their own.
pub(crate) fn one_line(text: &str) -> String {
    escape(text, char::is_control)
}

fn escape(text: &str, which: impl Fn(char) -> bool) -> String {
    if !text.contains(&which) {
        return text.to_owned();
    }
    text.chars().map(|c| if which(c) { c.escape_default().to_string() } else { c.into() }).collect()
}

/// Writes `prof: TEXT` and a newline to standard error.
pub(crate) fn say(text: &str) {
    line(&format!("prof: {}", one_line(text)));
}

/// Writes a line to standard error, unchanged. Errors are ignored, as a closed terminal or a full file is no reason to
/// stop: the exit code tells the result.
pub(crate) fn line(text: &str) {
    // One write, so that lines of several processes do not mix.
    let _ = std::io::stderr().write_all(format!("{text}\n").as_bytes());
}

/// Writes the path of a recording to standard output: escaped on a terminal, as it is for programs. If that fails, the path goes to standard error, with the reason,
/// as the recording could not be found otherwise.
pub(crate) fn path(path: &Path) {
    let mut out = std::io::stdout();
    let bytes = match out.is_terminal() {
        true => one_line(&path.to_string_lossy()).into_bytes(),
        false => path.as_os_str().as_encoded_bytes().to_vec(),
    };
    let written = out.write_all(&[&bytes[..], b"\n"].concat()).and_then(|()| out.flush());
    if let Err(e) = written {
        say(&format!("cannot write to standard output ({e}); the recording is {}", path.display()));
    }
}

#[cfg(test)]
mod tests {
    use super::{one_line, plain};

    #[test]
    fn nothing_reaches_the_terminal_but_text() {
        assert_eq!(one_line("a\nb\té"), "a\\nb\\té");
        assert_eq!(plain("a \u{1b}[2J b\r\nc \u{9b}é"), "a \\u{1b}[2J b\\r\nc \\u{9b}é");
    }
}
