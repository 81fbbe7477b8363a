//! The unwind tables of a module, from the target's memory or from its file.

use crate::process::debug_frame::Frames;
use crate::process::elf::Module;
use crate::{RemoteAddr, RemoteMemory};
use prof_arch::unwind::CfiModule;

/// Maximum number of bytes of one table that are read.
const MAX_TABLE: u64 = 64 << 20;

/// The unwind tables of one module.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    hdr: (u64, Vec<u8>),
    eh_frame: (u64, Vec<u8>),
    exidx: (u64, Vec<u8>),
    extab: (u64, Vec<u8>),
}

impl Tables {
    /// Reads the tables of a module.
    pub(crate) fn of(mem: &RemoteMemory, m: &Module) -> Self {
        let bytes = |(a, n): (RemoteAddr, u64)| {
            let bytes =
                if n == 0 { Vec::new() } else { mem.read_some(a, n.min(MAX_TABLE) as usize) };
            (a.0, bytes)
        };
        let (mut hdr, mut eh_frame) = (bytes(m.eh_frame_hdr), bytes(m.eh_frame));
        if m.eh_frame.1 == 0
            && let Some(frames) = Frames::of(mem, m)
        {
            // These tables are not in the target, so any address serves.
            let at = m.start.0;
            let made = frames.at(at);
            let (head, rest) = made.split_at(frames.hdr_len());
            (hdr, eh_frame) = ((at, head.to_vec()), (at + head.len() as u64, rest.to_vec()));
        }
        Self { hdr, eh_frame, exidx: bytes(m.exidx), extab: bytes(m.extab) }
    }

    /// Returns each table with its address: `.eh_frame_hdr`, `.eh_frame`, `.ARM.exidx`, and the table to which that
    /// refers.
    pub(crate) fn parts(&self) -> [(u64, &[u8]); 4] {
        [&self.hdr, &self.eh_frame, &self.exidx, &self.extab].map(|(at, bytes)| (*at, &bytes[..]))
    }

    /// Returns the number of bytes that copies of the tables take.
    pub(crate) fn copied(&self) -> usize {
        self.parts().iter().map(|(_, bytes)| bytes.len().next_multiple_of(8)).sum()
    }

    /// Returns the number of bytes that reading a module's tables takes at most.
    pub(crate) fn len_of(m: &Module) -> u64 {
        [m.eh_frame_hdr, m.eh_frame, m.exidx, m.extab].iter().map(|t| t.1.min(MAX_TABLE)).sum()
    }

    /// Returns the tables in the form that the unwinder takes.
    pub(crate) fn cfi(&self) -> CfiModule<'_> {
        CfiModule {
            hdr: &self.hdr.1,
            hdr_addr: self.hdr.0,
            eh_frame: &self.eh_frame.1,
            eh_frame_addr: self.eh_frame.0,
            narrow: size_of::<usize>() == 4,
            exidx: &self.exidx.1,
            exidx_addr: self.exidx.0,
            extab: &self.extab.1,
            extab_addr: self.extab.0,
            ..CfiModule::default()
        }
    }
}
