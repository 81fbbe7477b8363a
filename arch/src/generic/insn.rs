//! Answers about code on architectures where the question does not arise, under the names that all have.

use crate::unwind::CfiRule;
use alloc::vec::Vec;
use core::ops::Range;

/// Returns whether the program has no more use for the value of an argument of a system call, whatever it is, by the
/// code behind the call. Only what is certain counts: nothing, as no code is known that forgets one.
#[must_use]
pub fn argument_is_forgotten(_code: &[u8], _index: usize) -> bool {
    false
}

/// Returns `None`: addresses in a module's own code are not loaded from tables. (On 32-bit ARM, a value that is loaded
/// from a global offset table is no such address.)
#[must_use]
pub fn find_reference_by_table(_: &[u8], _: u64, _: u64, _table: &[u8]) -> Option<u64> {
    None
}

/// Returns nothing: calls through a table go by the table's stubs.
#[must_use]
pub fn called_slots(_: &[u8], _table: u64) -> Vec<u64> {
    Vec::new()
}

/// Returns `None`: functions are known from tables.
#[must_use]
pub fn function_around(_: &[u8], _: u64, _at: u64) -> Option<Range<u64>> {
    None
}

/// Returns nothing: functions without names are not looked for by their system calls, since where they begin is not
/// certain enough.
#[must_use]
pub fn find_calls(_: &[u8], _number: u64) -> Vec<usize> {
    Vec::new()
}

/// Returns the rule for code without tables at `pc`: of an instruction that was interrupted (`exact`), or where a call returns
/// to. `read` reads code, and returns `false` where there is none. Returns `None` if the code does not show the rule.
#[must_use]
pub fn rule_by_code<R: CfiRule>(
    pc: u64,
    exact: bool,
    read: &mut dyn FnMut(u64, &mut [u8]) -> bool,
) -> Option<R> {
    R::from_code(pc.wrapping_add(exact.into()), None, read)
}
