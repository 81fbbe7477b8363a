//! The clock of a recording, as the hook reads it.

use crate::RemoteMemory;
use crate::process::elf;
use prof_arch::native::capture::counter_is_steady;
use prof_os::clock::monotonic_ns;
use prof_trace::shared::clock;
use prof_trace::ticks::Ticks;
use std::time::Duration;

/// Returns the clock that the hook uses, and the address of the vDSO's function for it.
///
/// The hook reads the processor's counter if that runs at one speed on all processors, as shown by the kernel's own
/// choice. Otherwise it calls the vDSO's function for the kernel's time; whether that makes a system call depends on
/// the kernel's clock source. `PROF_CLOCK` (`counter`, `vdso`, `syscall`) is for tests.
pub(crate) fn clock_source(mem: &RemoteMemory, modules: &[elf::Module]) -> (u32, u64) {
    const IN_VDSO: [&str; 6] =
        ["tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter", "MIPS", "GIC"];
    const NAMES: [&str; 2] = ["__vdso_clock_gettime", "__kernel_clock_gettime"];
    let file = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    let kernel = std::fs::read_to_string(file).unwrap_or_default();
    let kernel = kernel.trim();
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let wanted = std::env::var("PROF_CLOCK").unwrap_or_default();
    let counter = match wanted.as_str() {
        "counter" => true,
        "vdso" | "syscall" => false,
        _ => counter_is_steady(kernel, &info),
    };
    if counter && !is_late(now(clock::COUNTER)) {
        return (clock::COUNTER, 0);
    }
    let vdso = modules.iter().find(|m| m.path.as_os_str() == "[vdso]");
    let symbols =
        vdso.map(|m| m.symbols(mem.pid(), mem, |n| NAMES.contains(&n))).unwrap_or_default();
    let at = symbols.first().map_or(0, |s| s.addr.0);
    // With any other source, the vDSO's function makes a system call.
    let within = at != 0 && IN_VDSO.contains(&kernel) && wanted != "syscall";
    (if within { clock::VDSO } else { clock::SYSCALL }, if wanted == "syscall" { 0 } else { at })
}

/// Times from here on do not fit into the first event of a segment: 2^56 ticks, which is 2.28 years in nanoseconds. The rest is
/// room for a long recording.
const LATE: Ticks = Ticks((1 << 56) - (1 << 53));

/// Returns whether a clock has come so far that the hook could not write its times, or not for long.
pub(crate) fn is_late(now: Ticks) -> bool {
    now >= LATE
}

/// Returns the present time in ticks, as the hook counts them.
pub(crate) fn now(source: u32) -> Ticks {
    Ticks(if clock::is_counter(source) {
        prof_arch::native::capture::counter()
    } else {
        monotonic_ns()
    })
}

/// Measures the ticks per second, to about one in ten thousand. The recording gets more exact pairs later.
pub(crate) fn calibrate() -> u64 {
    let (t0, c0) = (monotonic_ns(), now(clock::COUNTER));
    std::thread::sleep(Duration::from_millis(10));
    let (t1, c1) = (monotonic_ns(), now(clock::COUNTER));
    (c1.since(c0) as u128 * 1_000_000_000 / (t1 - t0).max(1) as u128) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_is_late_some_months_before_its_times_do_not_fit() {
        assert!(!is_late(now(clock::SYSCALL)) && !is_late(Ticks(1 << 55)));
        let year = 365 * 86_400 * 1_000_000_000;
        assert!(!is_late(Ticks(year + year / 2)) && is_late(Ticks(9 * year / 4)));
        assert!(is_late(Ticks(u64::MAX)));
    }
}
