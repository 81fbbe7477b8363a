//! The terminal that events are read from.

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::fs::File;
use std::io::{self, IsTerminal, Stdin};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

/// The state of the terminal's input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Input {
    /// Nothing, for the time that was waited.
    None,
    /// Events, or a signal that may be one.
    Some,
    /// The terminal is gone: its window was closed, or the connection to it is lost.
    Gone,
}

/// The terminal that crossterm reads, too: standard input or, if that is none, the controlling one. crossterm reads a
/// terminal that is gone again and again, without an end, so it may only be asked for events while there is one.
pub(crate) enum Tty {
    Stdin(Stdin),
    Controlling(File),
}

impl Tty {
    /// Opens it.
    ///
    /// # Errors
    /// If there is no terminal.
    pub(crate) fn new() -> io::Result<Self> {
        let stdin = io::stdin();
        match stdin.is_terminal() {
            true => Ok(Self::Stdin(stdin)),
            false => File::open("/dev/tty").map(Self::Controlling),
        }
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        match self {
            Self::Stdin(stdin) => stdin.as_fd(),
            Self::Controlling(file) => file.as_fd(),
        }
    }

    /// Waits for events, for a time at most.
    pub(crate) fn wait(&self, most: Duration) -> Input {
        wait(self.descriptor(), most)
    }
}

fn wait(fd: BorrowedFd<'_>, most: Duration) -> Input {
    let mut all = [PollFd::new(fd, PollFlags::POLLIN)];
    let most = PollTimeout::try_from(most).unwrap_or(PollTimeout::ZERO);
    match poll(&mut all, most) {
        Ok(0) => return Input::None,
        Ok(_) => {}
        // The window may have another size.
        Err(Errno::EINTR) => return Input::Some,
        Err(_) => return Input::Gone,
    }
    let gone = PollFlags::POLLHUP | PollFlags::POLLERR | PollFlags::POLLNVAL;
    match all[0].revents().is_some_and(|events| events.intersects(gone)) {
        true => Input::Gone,
        false => Input::Some,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn what_is_gone_is_told_from_what_waits() {
        let (keys, mut typed) = io::pipe().expect("a pipe");
        let at = |most| wait(keys.as_fd(), most);
        assert_eq!(at(Duration::ZERO), Input::None);
        typed.write_all(b"q").expect("written");
        assert_eq!(at(Duration::from_secs(60)), Input::Some);
        drop(typed);
        assert_eq!(at(Duration::ZERO), Input::Gone);
    }
}
