//! The type of moments on a recording's clock.

use core::fmt;
use core::ops::{Add, Sub};

/// A moment on the recording's clock: the processor's counter, or nanoseconds of `CLOCK_MONOTONIC`. The recording's head
/// gives the ticks per second. Distances between moments are plain numbers of ticks.
///
/// The operators are those of the number: callers of `+` and `-` exclude an overflow, others use the named functions.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Ticks(pub u64);

impl Ticks {
    /// The first moment that an event can have.
    pub const ZERO: Self = Self(0);
    /// Later than all events: the end of a block that was not freed.
    pub const MAX: Self = Self(u64::MAX);
    /// The last moment that an event can have.
    pub const LAST: Self = Self(u64::MAX - 1);

    /// Returns the ticks from an earlier moment to this one; 0 if the other is later.
    #[inline(always)]
    #[must_use]
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// Returns the ticks from another moment to this one, modulo 2^64: the way in which formats code times.
    #[inline(always)]
    #[must_use]
    pub const fn wrapping_since(self, other: Self) -> u64 {
        self.0.wrapping_sub(other.0)
    }

    /// Returns the moment a number of ticks later, modulo 2^64.
    #[inline(always)]
    #[must_use]
    pub const fn wrapping_add(self, ticks: u64) -> Self {
        Self(self.0.wrapping_add(ticks))
    }

    /// Returns the moment a number of ticks earlier, modulo 2^64.
    #[inline(always)]
    #[must_use]
    pub const fn wrapping_sub(self, ticks: u64) -> Self {
        Self(self.0.wrapping_sub(ticks))
    }

    /// Returns the moment a number of ticks later, at most [`Ticks::MAX`].
    #[inline(always)]
    #[must_use]
    pub const fn saturating_add(self, ticks: u64) -> Self {
        Self(self.0.saturating_add(ticks))
    }

    /// Returns the moment a number of ticks earlier, at least [`Ticks::ZERO`].
    #[inline(always)]
    #[must_use]
    pub const fn saturating_sub(self, ticks: u64) -> Self {
        Self(self.0.saturating_sub(ticks))
    }
}

impl Add<u64> for Ticks {
    type Output = Self;

    #[inline(always)]
    fn add(self, ticks: u64) -> Self {
        Self(self.0 + ticks)
    }
}

impl Sub<u64> for Ticks {
    type Output = Self;

    #[inline(always)]
    fn sub(self, ticks: u64) -> Self {
        Self(self.0 - ticks)
    }
}

impl Sub for Ticks {
    type Output = u64;

    #[inline(always)]
    fn sub(self, earlier: Self) -> u64 {
        self.0 - earlier.0
    }
}

impl fmt::Debug for Ticks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ticks", self.0)
    }
}

impl fmt::Display for Ticks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
