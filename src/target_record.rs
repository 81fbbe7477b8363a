//! The record of the process with which a recording begins.

use prof_collect::Clock;
use prof_inject::Target;
use prof_os::pid_namespace::PidNamespace;
use prof_trace::capture::Capture;
use prof_trace::records::Target as Record;
use prof_trace::shared::Shared;

const ARCH: &str = if cfg!(all(target_arch = "mips64", target_endian = "little")) {
    "mips64el"
} else {
    std::env::consts::ARCH
};

/// Describes a process that is about to be recorded, at this moment.
pub(crate) fn of(target: &Target, shared: &Shared, capture: &Capture) -> Record {
    let clock = Clock::of(shared);
    Record {
        pid: target.pid.as_u32(),
        exe: target.exe.display().to_string(),
        cmdline: target.cmdline.clone(),
        comm: target.name.clone(),
        arch: ARCH.into(),
        pointer_size: size_of::<usize>() as u32,
        page_size: prof_os::page_size() as u32,
        wall_ns: prof_os::clock::wall_ns(),
        start_ticks: clock.now(),
        ticks_per_sec: clock.ticks_per_sec(),
        prof_version: env!("CARGO_PKG_VERSION").into(),
        sample_bytes: capture.sample_bytes,
        adapts: capture.adapts.into(),
        sample_every: capture.sample_every,
        min_size: capture.min_size,
        max_size: capture.max_size,
        early: clock.early(),
        pid_namespace: PidNamespace::own().as_raw(),
    }
}
