//! System calls in which threads were asleep just before they were stopped.

/// A system call in which a thread sleeps, as `/proc/PID/task/TID/syscall` shows it. It is needed where the
/// registers of a stopped thread do not say which call the stop has interrupted.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct Blocked {
    /// Number of the call.
    pub number: u64,
    /// Arguments of the call.
    pub args: [u64; 6],
    /// Stack pointer.
    pub sp: u64,
    /// Program counter, behind the system call instruction.
    pub pc: u64,
}

impl Blocked {
    /// Parses the file's text: number, six arguments, stack pointer, program counter. Returns `None` for a
    /// thread that runs, or sleeps outside of a call.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut words = text.split_ascii_whitespace();
        let number = words.next()?.parse().ok()?;
        let mut hex = || u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok();
        let mut args = [0; 6];
        for arg in &mut args {
            *arg = hex()?;
        }
        Some(Blocked { number, args, sp: hex()?, pc: hex()? })
    }

    /// Returns whether a `clock_nanosleep` with these arguments sleeps for a time, and not until one.
    #[must_use]
    pub fn is_relative_sleep(&self) -> bool {
        const TIMER_ABSTIME: u64 = 1;
        self.args[1] & TIMER_ABSTIME == 0
    }

    /// Returns whether a `futex` with these arguments waits with a timeout for which the kernel keeps a restart block.
    #[must_use]
    pub fn is_timed_futex_wait(&self) -> bool {
        const FUTEX_WAIT: u64 = 0;
        const FUTEX_WAIT_BITSET: u64 = 9;
        const FUTEX_COMMAND: u64 = 0x7f;
        let command = self.args[1] & FUTEX_COMMAND;
        (command == FUTEX_WAIT || command == FUTEX_WAIT_BITSET) && self.args[3] != 0
    }
}

/// Place of a system call's timeout, counted from when the call is made.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Timeout {
    /// This argument is milliseconds, a 32-bit number; no timeout if negative.
    Milliseconds(usize),
    /// This argument points to seconds and nanoseconds as two numbers of 32 bits; no timeout if null.
    Narrow(usize),
    /// This argument points to two numbers of 64 bits; no timeout if null.
    Wide(usize),
    /// `io_uring_enter`: this argument points to a structure that points to two numbers of 64 bits, if the
    /// flags in the argument before it say so.
    Ring(usize),
}

impl Timeout {
    /// Returns the index of the argument, from 0.
    #[must_use]
    pub fn argument(self) -> usize {
        match self {
            Timeout::Milliseconds(n) | Timeout::Narrow(n) | Timeout::Wide(n) | Timeout::Ring(n) => {
                n
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_prints() {
        let text = "101 0xffffd5c0 0x0 0x1 0x2 0x3 0x4 0xffffd5b0 0xffffaabb2304\n";
        let call = Blocked {
            number: 101,
            args: [0xffff_d5c0, 0, 1, 2, 3, 4],
            sp: 0xffff_d5b0,
            pc: 0xffff_aabb_2304,
        };
        assert_eq!(Blocked::parse(text), Some(call));
        for other in ["running\n", "-1 0xffffd5b0 0xffffaabb2304\n", "", "101 0x1", "x 0x1"] {
            assert_eq!(Blocked::parse(other), None, "{other}");
        }
    }
}
