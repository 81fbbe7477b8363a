//! Names that every architecture offers to the other crates, with their types.
//!
//! Nothing here is code: a name that is missing, or has another type, ends the compilation on every host, not only on
//! the architecture that lacks it. `native` is one of the modules, so what is listed here can be used through it.

/// Demands the interface of each architecture named.
macro_rules! demand {
    ($($arch:ident)*) => {
        $(const _: () = {
            use crate::$arch::{FullRegs, Regs, Rule, Step, UserRegs};
            use crate::$arch::{bridge, call, capture, jump, rule, sigframe, syscall};
            use crate::blocked::Timeout;
            use crate::generic::stopped::StoppedRegs;
            use crate::registers::Registers;
            use crate::unwind::{CfiModule, CfiRule, FullStep, RegisterSet};
            use core::ops::Range;

            const fn is_rule<R: CfiRule>() {}
            const fn is_register_set<R: RegisterSet + Default + From<Regs>>() {}
            const fn is_stopped<S: StoppedRegs>() {}
            const fn becomes<T, U: From<T>>() {}

            // Registers and unwind rules.
            is_rule::<Rule>();
            is_register_set::<FullRegs>();
            becomes::<&UserRegs, FullRegs>();
            becomes::<&UserRegs, Regs>();
            becomes::<&capture::Call, FullRegs>();
            let _: fn(Rule, &FullRegs, &mut fn(u64) -> Option<u64>) -> FullStep<FullRegs> =
                Rule::step_all;
            let _: fn(Rule, &Regs, &mut fn(u64) -> Option<u64>) -> Step = Rule::step;
            let _: fn(&[u64]) -> bool = rule::is_interrupted_pc;
            let _: fn(&[u8]) -> bool = rule::is_sigreturn_code;

            // Registers of a stopped thread.
            is_stopped::<UserRegs>();
            let _: Registers = call::REGSET;
            let _: Option<Registers> = call::THREAD_POINTER_REGSET;
            let _: Option<i32> = call::SYSTEM_CALL_REGSET;
            let _: bool = call::NEEDS_BLOCKED;
            let _: [fn(u64) -> bool; 2] = [call::is_never_restarted, call::is_remote];
            let _: fn(u64) -> Option<Timeout> = call::timeout;

            // Signal frames.
            let _: i32 = sigframe::VECTOR_REGSET;
            let _: &[i32] = sigframe::SCALABLE_REGSETS;
            let _: fn(&[u8]) -> bool = sigframe::is_scalable_in_use;
            let _: fn(usize) -> usize = sigframe::sigframe_len;
            let _: fn(
                &mut [u8],
                u64,
                &UserRegs,
                &[u8],
                &sigframe::VectorLayout,
                syscall::SignalSet,
                u64,
            ) -> Result<sigframe::Sigframe, sigframe::SigframeError> = sigframe::build_sigframe;

            // System calls.
            let _: [usize; 3] =
                [syscall::LOAD_NUMBER_LEN, syscall::SIGSET_LEN, syscall::SIGACTION_LEN];
            let _: [&[u8]; 2] = [&syscall::SYSCALL_INSN, &syscall::SYSCALL_RET];
            let _: [syscall::SignalSet; 2] = [syscall::ALL_SIGNALS, syscall::ALL_BUT_FAULTS];
            let _: fn(&[u8]) -> usize = syscall::popped;
            let _: fn(u64, u64, u64) -> [u8; syscall::SIGACTION_LEN] = syscall::sigaction;
            let _: fn(&[u8]) -> u64 = syscall::sigaction_handler;
            #[cfg(feature = "relocate")]
            let _: [fn(&[u8]) -> Option<usize>; 3] = [
                syscall::find_pop_number_gadget,
                syscall::find_restorer,
                syscall::find_syscall_ret_gadget,
            ];
            use syscall::nr;
            let _: [u64; 15] = [
                nr::CLOCK_GETTIME,
                nr::CLOCK_NANOSLEEP,
                nr::CLONE,
                nr::CLONE3,
                nr::CLOSE,
                nr::FCNTL,
                nr::FORK,
                nr::FTRUNCATE,
                nr::FUTEX,
                nr::GETPID,
                nr::GETTID,
                nr::MADVISE,
                nr::MEMFD_CREATE,
                nr::MMAP,
                nr::MPROTECT,
            ];
            let _: [u64; 15] = [
                nr::MREMAP,
                nr::MUNLOCK,
                nr::MUNMAP,
                nr::NANOSLEEP,
                nr::PRCTL,
                nr::PROCESS_VM_READV,
                nr::READ,
                nr::RESTART_SYSCALL,
                nr::RT_SIGACTION,
                nr::RT_SIGPROCMASK,
                nr::RT_SIGRETURN,
                nr::SCHED_YIELD,
                nr::SIGALTSTACK,
                nr::TGKILL,
                nr::WRITE,
            ];

            // Entries of the hook.
            let _: Range<i32> = capture::DESCRIPTOR;
            let _: bool = capture::LOADS_IN_ORDER;
            let _: fn(&str, &str) -> bool = capture::counter_is_steady;
            let _: [usize; 2] = [bridge::CALL_AT, bridge::STACK_WORDS];
            let _: [u64; 2] = [bridge::BRIDGE_LEN, bridge::LEAST_FRAME];
            let _: fn(u64, u64) -> (u64, u64) = bridge::places;
            let _: fn(&CfiModule<'_>, &[u8], u64) -> Option<bridge::Bridge> = bridge::bridges;
            let _: unsafe fn(&capture::Call, &bridge::Layout, &mut bridge::Loads, u64, u64) =
                bridge::lay_out;

            // Jumps and breakpoints.
            let _: usize = jump::PATCH_LEN;
            let _: u64 = jump::REACH;
            let _: &[u8] = jump::RETURN;
            let _: fn(u64) -> u64 = jump::code_at;
            let _: fn(u64, u64) -> u64 = jump::place_before_original;
            let _: fn(u64) -> Range<u64> = jump::near_window;
            let _: fn(u64, u64) -> Option<[u8; jump::PATCH_LEN]> = jump::encode_jump;
            let _: fn(u64, &[u8]) -> Option<u64> = jump::decode_jump;
            let _: fn(u64) -> &'static [u8] = jump::breakpoint;
            let _: fn(&[u8], u64) -> Option<usize> = jump::breakpoint_len;
        };)*
    };
}

demand!(aarch64 arm mips64 x86_64);

/// Demands of each architecture named what needs an allocator: plans and relocated code.
#[cfg(feature = "relocate")]
macro_rules! demand_patches {
    ($($arch:ident)*) => {
        $(const _: () = {
            use crate::$arch::{insn, relocate};
            use alloc::vec::Vec;
            use core::ops::Range;
            use insn::{PatchPlan, Probed, Refusal};

            type Plan = fn(&[u8], u64, Option<u64>) -> Result<PatchPlan, Refusal>;
            let _: [Plan; 3] = [insn::plan_patch, insn::plan_at_entry, insn::plan_free];
            let _: fn(u64, &[u8], u64) -> Probed = insn::uprobe;
            let _: fn(&[u8], usize) -> bool = insn::argument_is_forgotten;
            let _: fn(&[u8], u64, u64) -> Option<u64> = insn::find_reference;
            let _: fn(&[u8], u64, u64, &[u8]) -> Option<u64> = insn::find_reference_by_table;
            let _: [fn(&[u8], u64) -> Vec<u64>; 2] = [insn::called_slots, insn::calls];
            let _: fn(&[u8], u64) -> Vec<usize> = insn::find_calls;
            let _: fn(&[u8], u64, u64) -> Option<Range<u64>> = insn::function_around;
            let _: fn(u64, bool, &mut dyn FnMut(u64, &mut [u8]) -> bool) -> Option<crate::$arch::Rule> =
                insn::rule_by_code;
            let _: fn(&[u8], u64) -> Option<u64> = insn::indirect_jump;
            let _: fn(&PatchPlan, &[u8], u64) -> Result<Range<u64>, Refusal> =
                relocate::stub_window;
            let _: fn(&relocate::StubParams<'_>) -> Result<relocate::Stub, Refusal> =
                relocate::build_stub;
        };)*
    };
}

#[cfg(feature = "relocate")]
demand_patches!(aarch64 arm mips64 x86_64);

// Demands of this machine's architecture what can only run on it.
#[cfg(any(
    target_arch = "aarch64",
    target_arch = "arm",
    target_arch = "mips64",
    target_arch = "x86_64"
))]
const _: () = {
    use crate::native::{capture, syscall};

    let _: [fn() -> u64; 3] =
        [capture::counter, capture::counter_after_loads, capture::thread_pointer];
    let _: fn(*const u8) = capture::prefetch;
    let _: unsafe fn(*mut u8, *const u8, usize) = capture::copy_forward;
    let _: unsafe fn(*mut u8, u8, usize) = capture::fill;
    let _: unsafe extern "C" fn(unsafe extern "C" fn(*mut ()), *mut (), *mut u8) =
        capture::call_on_stack;
    let _: unsafe extern "C" fn(*mut u8) -> ! = capture::leave_stack;
    let _: unsafe extern "C" fn() = capture::restorer;
    let _: unsafe extern "C" fn(usize, usize, *const ()) -> *mut u8 = capture::enter_as_stub;
    let _: unsafe fn(u64) -> i64 = syscall::syscall0;
    let _: unsafe fn(u64, u64) -> i64 = syscall::syscall1;
    let _: unsafe fn(u64, u64, u64) -> i64 = syscall::syscall2;
    let _: unsafe fn(u64, u64, u64, u64) -> i64 = syscall::syscall3;
    let _: unsafe fn(u64, u64, u64, u64, u64) -> i64 = syscall::syscall4;
    let _: unsafe fn(u64, u64, u64, u64, u64, u64) -> i64 = syscall::syscall5;
    let _: unsafe fn(u64, u64, u64, u64, u64, u64, u64) -> i64 = syscall::syscall6;
};
