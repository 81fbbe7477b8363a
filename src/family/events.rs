//! Tells a supervisor of new processes: by the kernel's process connector where that is permitted (CAP_NET_ADMIN, first
//! namespaces), and else by looks at `/proc`.

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use prof_os::Pid;
use std::fs;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// Least pause between two looks, and the number of times that a pause is longer than the look before it: looks take at
/// most one part in so many of a processor.
const PAUSE: Duration = Duration::from_millis(2);
const TIMES: u32 = 50;
/// Longest pause between two looks, also if nothing seems to have happened.
const LONGEST: Duration = Duration::from_secs(1);
/// Time in which the connector answers.
const ANSWER: Duration = Duration::from_millis(200);
/// Room for messages that wait, in bytes: on a busy machine the supervisor may wait for a processor for up to a second, in which
/// thousands of processes may come and go, with four messages of some 800 bytes each. The kernel takes memory only for those that wait.
const ROOM: libc::c_int = 16 << 20;

const CONNECTOR: libc::c_int = 11;
const PROC: u32 = 1;
/// Length of the headers in front of an event (`nlmsghdr`, `cn_msg`), and of the event's own (`proc_event`).
const HEADERS: usize = 36;
const HEAD: usize = 16;

/// A change of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A process was made by its parent.
    Fork { parent: Pid, child: Pid },
    /// A process runs another program.
    Exec { pid: Pid },
    /// A process has ended, with this status of waitpid(2). Its parent gets this signal; 0: none.
    Exit { pid: Pid, status: i32, signal: i32 },
    /// Something may have happened that no event tells of: a look at all processes is due.
    Look,
    /// Events were lost: there were more than fit into memory.
    Lost,
}

/// The source of events.
#[derive(Debug)]
pub(crate) enum Source {
    /// The kernel's process connector. Looks are for what it does not tell of: a process that is moved into a cgroup, or gets
    /// another name.
    Connector(OwnedFd, Option<Rounds>),
    /// Looks at `/proc`.
    Looks(Looks),
}

/// Schedule of looks beside events.
#[derive(Debug)]
pub(crate) struct Rounds {
    last: Instant,
    pause: Duration,
}

/// Schedule of looks.
#[derive(Debug)]
pub(crate) struct Looks {
    newest: Option<String>,
    last: Instant,
    pause: Duration,
}

impl Source {
    /// Opens the best source that there is for a tree of processes, or for a family that processes may join later.
    pub(crate) fn open(is_tree: bool) -> Self {
        let rounds = Rounds { last: Instant::now(), pause: LONGEST };
        let rounds = (!is_tree).then_some(rounds);
        connector().map_or_else(|| Self::Looks(Looks::new()), |c| Self::Connector(c, rounds))
    }

    /// Returns whether events tell of what happens to each process.
    pub(crate) fn tells(&self) -> bool {
        matches!(self, Self::Connector(..))
    }

    /// Returns its name for the journal.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Connector(..) => "connector",
            Self::Looks(_) => super::journal::LOOKS,
        }
    }

    /// Waits for events, for `time` at most.
    pub(crate) fn wait(&mut self, time: Duration) -> Vec<Event> {
        match self {
            Self::Connector(socket, rounds) => {
                let mut events = receive(socket, time);
                if let Some(rounds) = rounds.as_mut().filter(|r| r.last.elapsed() > r.pause) {
                    rounds.last = Instant::now();
                    events.push(Event::Look);
                }
                events
            }
            Self::Looks(looks) => {
                std::thread::sleep(looks.pause.min(time));
                if looks.is_due() { vec![Event::Look] } else { Vec::new() }
            }
        }
    }

    /// Tells how long a look took.
    pub(crate) fn looked(&mut self, took: Duration) {
        match self {
            Self::Looks(looks) => looks.pause = (took * TIMES).clamp(PAUSE, LONGEST),
            Self::Connector(_, Some(rounds)) => rounds.pause = (took * TIMES).max(LONGEST),
            Self::Connector(_, None) => {}
        }
    }
}

impl Looks {
    fn new() -> Self {
        Self { newest: None, last: Instant::now(), pause: PAUSE }
    }

    /// Returns whether there may be a new process: the kernel has given another process ID.
    fn is_due(&mut self) -> bool {
        let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let newest = text.split_whitespace().last().map(ToOwned::to_owned);
        let due = newest.is_none() || newest != self.newest || self.last.elapsed() > LONGEST;
        if due {
            (self.newest, self.last) = (newest, Instant::now());
        }
        due
    }
}

/// Subscribes to the process connector; `None` if that is not permitted, or answers nothing.
fn connector() -> Option<OwnedFd> {
    let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: the call takes integers only; the result is a new descriptor, or -1.
    let fd = unsafe { libc::socket(libc::AF_NETLINK, kind, CONNECTOR) };
    if fd < 0 {
        return None;
    }
    // SAFETY: the descriptor is new, and nothing else owns it.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: all zeroes are a valid address.
    let mut address: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
    (address.nl_family, address.nl_groups) = (libc::AF_NETLINK as u16, PROC);
    let words = [(HEADERS + 4) as u32, 3, 0, 0, PROC, 1, 0, 0, 4, 1];
    let mut message: Vec<u8> = words.iter().flat_map(|w: &u32| w.to_ne_bytes()).collect();
    // The type of a netlink message is 16 bits wide, as its flags are: `NLMSG_DONE` and none.
    message[4..8].copy_from_slice(&[3u16.to_ne_bytes(), 0u16.to_ne_bytes()].concat());
    // So are the length of the connector's payload, and its flags.
    message[32..36].copy_from_slice(&[4u16.to_ne_bytes(), 0u16.to_ne_bytes()].concat());
    // SAFETY: the pointers are valid for the lengths that are given.
    let sent = unsafe {
        let at: *const libc::sockaddr_nl = &address;
        let room: *const libc::c_int = &ROOM;
        let len = size_of::<libc::c_int>() as u32;
        libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, room.cast(), len);
        libc::bind(fd, at.cast(), size_of::<libc::sockaddr_nl>() as u32) == 0
            && libc::send(fd, message.as_ptr().cast(), message.len(), 0) == message.len() as isize
    };
    let deadline = Instant::now() + ANSWER;
    while sent && Instant::now() < deadline {
        let mut bytes = [0u8; 512];
        match read(&socket, &mut bytes) {
            // The answer is an event of kind 0 with an error number.
            Some(n) if n >= HEADERS + HEAD + 4 && word(&bytes, HEADERS) == 0 => {
                return (word(&bytes, HEADERS + HEAD) == 0).then_some(socket);
            }
            _ => readable(&socket, Duration::from_millis(10)),
        }
    }
    None
}

/// Receives one message; `None` if there is none.
fn read(socket: &OwnedFd, bytes: &mut [u8]) -> Option<usize> {
    // SAFETY: the pointer is valid for the length.
    let n = unsafe { libc::recv(socket.as_raw_fd(), bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    usize::try_from(n).ok()
}

fn readable(socket: &OwnedFd, time: Duration) {
    let time = PollTimeout::try_from(time).unwrap_or(PollTimeout::MAX);
    let mut one = [PollFd::new(socket.as_fd(), PollFlags::POLLIN)];
    // A signal ends the wait as well.
    let _ = poll(&mut one, time);
}

fn receive(socket: &OwnedFd, time: Duration) -> Vec<Event> {
    let mut events = Vec::new();
    readable(socket, time);
    loop {
        let mut bytes = [0u8; 512];
        match read(socket, &mut bytes) {
            Some(n) => events.extend(event(&bytes[..n])),
            None => {
                // Messages were lost, as there were too many.
                if std::io::Error::last_os_error().raw_os_error() == Some(libc::ENOBUFS) {
                    events.push(Event::Lost);
                    continue;
                }
                return events;
            }
        }
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).map_or(0, |b| u32::from_ne_bytes([b[0], b[1], b[2], b[3]]))
}

/// Decodes a message; `None` if it is about threads, or something else.
fn event(bytes: &[u8]) -> Option<Event> {
    let data = |i: usize| word(bytes, HEADERS + HEAD + 4 * i);
    let id = |i: usize| Pid::from_u32(data(i));
    if bytes.len() < HEADERS + HEAD + 8 {
        return None;
    }
    match word(bytes, HEADERS) {
        1 if data(2) == data(3) => Some(Event::Fork { parent: id(1), child: id(3) }),
        2 => Some(Event::Exec { pid: id(1) }),
        0x8000_0000 if data(0) == data(1) => {
            let [status, signal] = [2, 3].map(|i| data(i).cast_signed());
            Some(Event::Exit { pid: id(1), status, signal })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(what: u32, data: [i32; 4]) -> Vec<u8> {
        let mut bytes = vec![0; HEADERS];
        bytes.extend(what.to_ne_bytes());
        bytes.extend([0; 12]);
        data.iter().for_each(|d| bytes.extend(d.to_ne_bytes()));
        bytes
    }

    #[test]
    fn events_are_those_of_processes_and_not_of_threads() {
        let (parent, child) = (Pid::from_raw(5), Pid::from_raw(9));
        let fork = Event::Fork { parent, child };
        assert_eq!(event(&message(1, [6, 5, 9, 9])), Some(fork));
        assert_eq!(event(&message(1, [6, 5, 10, 9])), None, "a thread");
        assert_eq!(event(&message(2, [6, 5, 0, 0])), Some(Event::Exec { pid: parent }));
        let exit = Event::Exit { pid: parent, status: 256, signal: 17 };
        assert_eq!(event(&message(0x8000_0000, [5, 5, 256, 17])), Some(exit));
        assert_eq!(event(&message(0x8000_0000, [6, 5, 256, 17])), None, "a thread");
        assert_eq!(event(&message(4, [5, 5, 0, 0])), None);
        assert_eq!(event(&[0; 20]), None);
    }

    #[test]
    fn a_new_process_is_heard_of() {
        for mut source in [Source::open(true), Source::Looks(Looks::new())] {
            source.wait(Duration::from_millis(20));
            let mut child = std::process::Command::new("true").spawn().expect("true");
            let pid = Pid::from_u32(child.id());
            let began = Instant::now();
            let is_it = |e: &Event| matches!(e, Event::Look) || *e == Event::Exec { pid };
            while !source.wait(Duration::from_millis(100)).iter().any(is_it) {
                assert!(began.elapsed() < Duration::from_secs(60), "{}", source.name());
            }
            child.wait().expect("wait");
        }
    }
}
