//! Lists the modules of the test process as the unwinder needs them.

use prof_arch::unwind::{CfiModule, eh_frame_address};
use std::ffi::CStr;

/// A loaded module that has call frame information.
pub(crate) struct Module {
    #[allow(dead_code)]
    pub name: String,
    pub cfi: CfiModule<'static>,
    /// Executable segments of the module.
    pub text: Vec<std::ops::Range<u64>>,
}

impl Module {
    #[allow(dead_code)]
    pub(crate) fn contains(&self, pc: u64) -> bool {
        self.text.iter().any(|range| range.contains(&pc))
    }
}

/// Returns all modules of this process: the test binary, libc, ld.so, the vDSO and so on.
pub(crate) fn modules() -> Vec<Module> {
    let mut list: Vec<Module> = Vec::new();
    // SAFETY: `list` outlives the call, and the callback casts the pointer back to its type.
    unsafe { libc::dl_iterate_phdr(Some(add), (&raw mut list).cast()) };
    assert!(list.len() >= 3, "{}", list.len());
    list
}

fn slice(address: u64, end: u64) -> &'static [u8] {
    // SAFETY: the addresses are within a mapped segment of a module that stays loaded.
    unsafe { std::slice::from_raw_parts(address as *const u8, (end - address) as usize) }
}

extern "C" fn add(
    info: *mut libc::dl_phdr_info,
    _: libc::size_t,
    list: *mut libc::c_void,
) -> libc::c_int {
    // SAFETY: the dynamic linker passes the description of a loaded module and the list that `modules` has
    // passed.
    let (info, list, name) = unsafe {
        let info = &*info;
        (info, &mut *list.cast::<Vec<Module>>(), CStr::from_ptr(info.dlpi_name))
    };
    // SAFETY: the dynamic linker's description has the address and number of these headers.
    let headers =
        unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    let range = |h: &libc::Elf64_Phdr| {
        let start = info.dlpi_addr + h.p_vaddr;
        start..start + h.p_memsz
    };
    let loads = || headers.iter().filter(|h| h.p_type == libc::PT_LOAD);
    let Some(hdr) = headers.iter().find(|h| h.p_type == libc::PT_GNU_EH_FRAME).map(range) else {
        return 0;
    };
    let bytes = slice(hdr.start, hdr.end);
    let eh_frame_addr = eh_frame_address(bytes, hdr.start).unwrap();
    let Some(segment) = loads().map(range).find(|r| r.contains(&eh_frame_addr)) else { return 0 };
    let cfi = CfiModule {
        hdr: bytes,
        hdr_addr: hdr.start,
        eh_frame: slice(eh_frame_addr, segment.end),
        eh_frame_addr,
        ..CfiModule::default()
    };
    let text = loads().filter(|h| h.p_flags & libc::PF_X != 0).map(range).collect();
    list.push(Module { name: name.to_string_lossy().into_owned(), cfi, text });
    0
}
