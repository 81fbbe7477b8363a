//! Pointers that the kernel keeps for the target: some it shows, of others it is only known that there are any.

use prof_os::Pid;
use prof_os::process::folder;
use std::fs;

/// The pointers that the kernel keeps for a process, as far as `/proc` shows them, and the number of places that it hides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Kept {
    /// Words that the program has given to the kernel, and that `/proc` shows.
    pub words: Vec<u64>,
    /// Descriptors of io_uring, whose requests on their way `/proc` does not show.
    pub rings: u64,
}

impl Kept {
    /// Reads what the kernel keeps for a process: the data of its epoll descriptors, and the values of its timers.
    #[must_use]
    pub(crate) fn of(pid: Pid) -> Self {
        let folder = folder(pid);
        let mut kept = Self::default();
        for entry in fs::read_dir(folder.clone() + "/fd").into_iter().flatten().flatten() {
            let Ok(link) = fs::read_link(entry.path()) else { continue };
            let link = link.to_string_lossy();
            let info = || {
                let name = entry.file_name();
                let path = format!("{folder}/fdinfo/{}", name.to_string_lossy());
                fs::read_to_string(path).unwrap_or_default()
            };
            match &*link {
                "anon_inode:[eventpoll]" => kept.words.extend(epoll(&info())),
                "anon_inode:[io_uring]" => kept.rings += 1,
                _ => {}
            }
        }
        let timers = fs::read_to_string(folder + "/timers").unwrap_or_default();
        kept.words.extend(timer_values(&timers));
        kept
    }
}

/// Returns the data of the descriptors that an epoll descriptor watches: lines such as
/// `tfd:        5 events:       1d data: 55d3c0ffee10  pos:0 ino:61af sdev:7`.
fn epoll(text: &str) -> impl Iterator<Item = u64> {
    let data = |line: &str| {
        let word = line.strip_prefix("tfd:")?.split("data:").nth(1)?.split_whitespace().next()?;
        u64::from_str_radix(word, 16).ok()
    };
    text.lines().filter_map(data)
}

/// Returns the values that timers send: lines such as `signal: 60/00007fff9ca5e3c0`.
fn timer_values(text: &str) -> impl Iterator<Item = u64> {
    let value = |line: &str| {
        let word = line.strip_prefix("signal:")?.split('/').nth(1)?.trim();
        u64::from_str_radix(word, 16).ok()
    };
    text.lines().filter_map(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_of_epoll_and_of_timers_are_read() {
        let text = "pos:\t0\nflags:\t02\ntfd:        5 events:       1d data: 55d3c0ffee10  pos:0 ino:61af sdev:7\n\
            tfd: 6 events: 1 data:                0  pos:0\ntfd: 7 data: xyz\ndata: 12\ntfd: 8 data:";
        assert_eq!(epoll(text).collect::<Vec<_>>(), [0x55d3_c0ff_ee10, 0]);
        let text = "ID: 0\nsignal: 60/00007fff9ca5e3c0\nnotify: thread/tid.1\nClockID: 0\nsignal: 1\nsignal: 1/";
        assert_eq!(timer_values(text).collect::<Vec<_>>(), [0x7fff_9ca5_e3c0]);
    }
}
