//! The system call `bpf`: makes maps, loads programs, and lets tracepoints run them.

use super::asm::Insn;
use crate::sys::checked;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

const MAP_CREATE: libc::c_long = 0;
const MAP_LOOKUP_ELEM: libc::c_long = 1;
const MAP_UPDATE_ELEM: libc::c_long = 2;
const PROG_LOAD: libc::c_long = 5;
const OBJ_GET_INFO_BY_FD: libc::c_long = 15;
const RAW_TRACEPOINT_OPEN: libc::c_long = 17;

const PROG_TYPE_RAW_TRACEPOINT: u32 = 17;
/// Bytes for what the kernel's verifier says.
const LOG: usize = 1 << 16;

/// A kind of map.
#[derive(Clone, Copy, Debug)]
pub(super) enum MapType {
    /// An array that all processors share.
    Array = 2,
    /// An array that each processor has.
    PerCpuArray = 6,
    /// An array of maps.
    ArrayOfMaps = 12,
    /// A ring of records.
    RingBuf = 27,
}

/// The content of an array may be mapped.
pub(super) const MMAPABLE: u32 = 1 << 10;

/// What `bpf` is told of a new map.
#[repr(C)]
#[derive(Debug, Default)]
struct NewMap {
    kind: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    flags: u32,
    inner_map: u32,
    numa_node: u32,
    name: [u8; 16],
}

/// What `bpf` is told of an element.
#[repr(C)]
#[derive(Debug)]
struct Element {
    map: u32,
    pad: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// What `bpf` is told of a new program.
#[repr(C)]
#[derive(Debug, Default)]
struct NewProgram {
    kind: u32,
    insns: u32,
    code: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
}

/// What `bpf` is told of a question about a program.
#[repr(C)]
#[derive(Debug)]
struct Info {
    program: u32,
    len: u32,
    info: u64,
}

/// Words of what the kernel tells of a program, up to the number of times that it was passed over.
const PROGRAM_INFO: usize = 27;

/// What `bpf` is told of a program for a tracepoint.
#[repr(C)]
#[derive(Debug)]
struct RawTracepoint {
    name: u64,
    program: u32,
    pad: u32,
}

fn call<T>(command: libc::c_long, attr: &mut T) -> io::Result<libc::c_long> {
    // SAFETY: the structure is the one of the command, and its length goes with it. The pointers in it are valid, as
    // each caller below shows.
    checked(unsafe { libc::syscall(libc::SYS_bpf, command, &raw mut *attr, size_of::<T>()) })
}

fn owned(fd: libc::c_long) -> OwnedFd {
    // SAFETY: the descriptor is new, and nobody else has it.
    unsafe { OwnedFd::from_raw_fd(fd as i32) }
}

fn named(text: &str) -> [u8; 16] {
    let mut name = [0; 16];
    let n = text.len().min(15);
    name[..n].copy_from_slice(&text.as_bytes()[..n]);
    name
}

/// The size of a map.
#[derive(Clone, Copy, Debug)]
pub(super) struct Size {
    /// Bytes of an element; 0 for a ring.
    pub value: u32,
    /// Number of elements, or bytes of a ring.
    pub entries: u32,
}

/// Makes a map, whose keys are numbers. `inner` is a map of the kind that an array of maps has.
pub(super) fn map(
    kind: MapType,
    size: Size,
    flags: u32,
    inner: Option<&OwnedFd>,
) -> io::Result<OwnedFd> {
    let key_size = if matches!(kind, MapType::RingBuf) { 0 } else { 4 };
    let mut attr = NewMap {
        kind: kind as u32,
        key_size,
        value_size: size.value,
        max_entries: size.entries,
        flags,
        inner_map: inner.map_or(0, |m| m.as_raw_fd() as u32),
        numa_node: 0,
        name: named("prof_kernel"),
    };
    call(MAP_CREATE, &mut attr).map(owned)
}

/// Puts a map into an array of maps.
pub(super) fn put_map(array: &OwnedFd, index: u32, map: &OwnedFd) -> io::Result<()> {
    let value = map.as_raw_fd() as u32;
    let mut attr = Element {
        map: array.as_raw_fd() as u32,
        pad: 0,
        key: (&raw const index) as u64,
        value: (&raw const value) as u64,
        flags: 0,
    };
    call(MAP_UPDATE_ELEM, &mut attr).map(drop)
}

/// Reads the first element of an array that each processor has: `values` is filled with those of all processors, one
/// after the other, and must be long enough for every processor that there may be.
pub(super) fn read_each(map: &OwnedFd, values: &mut [u64]) -> io::Result<()> {
    let key = 0u32;
    let mut attr = Element {
        map: map.as_raw_fd() as u32,
        pad: 0,
        key: (&raw const key) as u64,
        value: values.as_mut_ptr() as u64,
        flags: 0,
    };
    call(MAP_LOOKUP_ELEM, &mut attr).map(drop)
}

/// Writes the same element as [`read_each`] reads it.
pub(super) fn write_each(map: &OwnedFd, values: &[u64]) -> io::Result<()> {
    let key = 0u32;
    let mut attr = Element {
        map: map.as_raw_fd() as u32,
        pad: 0,
        key: (&raw const key) as u64,
        value: values.as_ptr() as u64,
        flags: 0,
    };
    call(MAP_UPDATE_ELEM, &mut attr).map(drop)
}

/// Loads a program for tracepoints. An error has the last lines of what the verifier says.
pub(super) fn program(name: &str, code: &[Insn]) -> Result<OwnedFd, (io::Error, String)> {
    let load = |log: &mut [u8]| {
        let mut attr = NewProgram {
            kind: PROG_TYPE_RAW_TRACEPOINT,
            insns: code.len() as u32,
            code: code.as_ptr() as u64,
            license: c"GPL".as_ptr() as u64, // reading the kernel's memory and stacks demands it
            log_level: u32::from(!log.is_empty()),
            log_size: log.len() as u32,
            log: if log.is_empty() { 0 } else { log.as_mut_ptr() as u64 },
            name: named(name),
            ..NewProgram::default()
        };
        call(PROG_LOAD, &mut attr).map(owned)
    };
    load(&mut []).map_err(|first| {
        let mut log = vec![0u8; LOG];
        // The first error counts: the second may be one of a log that is too short.
        drop(load(&mut log));
        let text = String::from_utf8_lossy(&log[..log.iter().position(|b| *b == 0).unwrap_or(LOG)])
            .into_owned();
        let lines: Vec<&str> = text.lines().filter(|l| !l.starts_with("processed ")).collect();
        (first, lines[lines.len().saturating_sub(2)..].join("; "))
    })
}

/// Returns how often the kernel passed over a program because it was running on that processor; `None` if it does not say
/// (before Linux 5.12).
pub(super) fn passed_over(program: &OwnedFd) -> io::Result<Option<u64>> {
    let mut info = [0u64; PROGRAM_INFO];
    let mut attr = Info {
        program: program.as_raw_fd() as u32,
        len: size_of_val(&info) as u32,
        info: info.as_mut_ptr() as u64,
    };
    call(OBJ_GET_INFO_BY_FD, &mut attr)?;
    Ok((attr.len as usize >= size_of_val(&info)).then_some(info[PROGRAM_INFO - 1]))
}

/// Lets a tracepoint run a program, as long as the descriptor is open.
pub(super) fn attach(tracepoint: &str, program: &OwnedFd) -> io::Result<OwnedFd> {
    let name = std::ffi::CString::new(tracepoint)?;
    let mut attr =
        RawTracepoint { name: name.as_ptr() as u64, program: program.as_raw_fd() as u32, pad: 0 };
    call(RAW_TRACEPOINT_OPEN, &mut attr).map(owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_are_the_kernels() {
        assert_eq!(std::mem::offset_of!(NewMap, name), 28);
        assert_eq!(std::mem::offset_of!(NewProgram, log), 32);
        assert_eq!(std::mem::offset_of!(NewProgram, name), 48);
        assert_eq!((size_of::<Element>(), size_of::<RawTracepoint>()), (32, 16));
        assert_eq!(size_of::<Insn>(), 8);
        assert_eq!(&named("abcdefghijklmnopqrstuvwxyz"), b"abcdefghijklmno\0");
    }
}
