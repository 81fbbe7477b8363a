//! Reads the state of a stopped thread outside of memory, as words that may be pointers.

use crate::Result;
use crate::stopped::tracee::Tracee;
use prof_arch::generic::stopped::StoppedRegs;
use prof_arch::native::UserRegs;
use prof_os::Pid;

/// The registers of a stopped thread.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ThreadState {
    /// Id of the thread.
    pub tid: Pid,
    /// The general registers.
    pub regs: UserRegs,
    /// The stack pointer.
    pub sp: u64,
    /// The thread pointer.
    pub thread_pointer: u64,
    /// The general and the vector registers, as the kernel lays them out: whole words in the machine's byte order.
    pub bytes: Vec<u8>,
}

impl Tracee {
    /// Returns what the stopped thread has in its registers. Vector registers count, too: a compiler may keep pointers
    /// in them, and copies of memory pass through them.
    ///
    /// # Errors
    /// If it is not stopped, or gone.
    pub fn state(&mut self) -> Result<ThreadState> {
        let regs = self.regs()?;
        let from = std::ptr::from_ref(&regs).cast::<u8>();
        // SAFETY: the struct begins with the kernel's, which consists of integers and has this length.
        let general = unsafe { std::slice::from_raw_parts(from, UserRegs::KERNEL_LEN) };
        let mut bytes = general.to_vec();
        bytes.resize(bytes.len().next_multiple_of(size_of::<u64>()), 0);
        bytes.extend(self.vector_state()?);
        Ok(ThreadState {
            tid: self.tid,
            regs,
            sp: regs.sp(),
            thread_pointer: regs.thread_pointer(),
            bytes,
        })
    }
}
