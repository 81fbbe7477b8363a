//! Work for instructions that not every AMD64 processor has.

pub use crate::generic::wide::Task;

/// The instructions that code may be compiled for a second time: AVX2, BMI1, BMI2 and POPCNT.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug)]
pub struct Wide {
    is_there: bool,
}

#[cfg(target_arch = "x86_64")]
impl Wide {
    /// Returns whether this processor and its system have all of them (Intel SDM volume 1, 14.7.1: detection of AVX2). That
    /// takes some microseconds, and more in a virtual machine.
    #[must_use]
    pub fn here() -> Self {
        use core::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};

        const POPCNT: u32 = 1 << 23;
        const OSXSAVE: u32 = 1 << 27;
        const AVX: u32 = 1 << 28;
        /// BMI1, AVX2 and BMI2 in `ebx` of leaf 7.
        const OTHERS: u32 = 1 << 3 | 1 << 5 | 1 << 8;
        /// The states of SSE's and AVX's registers in XCR0.
        const STATES: u64 = 0b110;

        #[target_feature(enable = "xsave")]
        fn states() -> u64 {
            // SAFETY: the system has enabled XSAVE, and so the register exists.
            unsafe { _xgetbv(0) }
        }

        let all = POPCNT | OSXSAVE | AVX;
        if __cpuid(0).eax < 7 || __cpuid(1).ecx & all != all {
            return Self { is_there: false };
        }
        // SAFETY: OSXSAVE says that the instruction exists.
        let states = unsafe { states() };
        let others = __cpuid_count(7, 0).ebx;
        Self { is_there: states & STATES == STATES && others & OTHERS == OTHERS }
    }

    /// Does the work, with these instructions if there are any.
    #[inline]
    pub fn run<T: Task>(self, task: T) -> T::Output {
        #[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
        fn wide<T: Task>(task: T) -> T::Output {
            task.run()
        }
        if !self.is_there {
            return task.run();
        }
        // SAFETY: the processor has them.
        unsafe { wide(task) }
    }
}
