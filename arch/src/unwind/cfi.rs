//! Finds the row of the unwind table for a code address: `.eh_frame_hdr`, `.eh_frame`.
//!
//! Formats: Linux Standard Base, "Exception Frames" (both sections), and DWARF 5, section 6.4.
//!
//! The data comes from the memory of a process that may be in any state, so nothing is trusted: every offset
//! is checked, every loop is bounded by the length of the slices.

use gimli::{
    BaseAddresses, CieOrFde, EhFrame, EndianSlice, NativeEndian, RegisterRule, UnwindContext,
    UnwindContextStorage, UnwindSection, UnwindTableRow, Vendor,
};

pub(super) type Slice<'a> = EndianSlice<'a, NativeEndian>;
type Fde<'a> = gimli::FrameDescriptionEntry<Slice<'a>>;

/// Fixed storage for gimli, so that nothing is allocated.
///
/// 24 registers: a signal frame names 17; a function of the Microsoft convention up to 19. 6 rows:
/// the current one, the CIE's initial rules where there are two or more of them, and 4 nested
/// `remember_state`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FixedStorage;

impl<T: gimli::ReaderOffset> UnwindContextStorage<T> for FixedStorage {
    type Rules = [(gimli::Register, RegisterRule<T>); 24];
    type Stack = [UnwindTableRow<T, Self>; 6];
}

/// One row of the unwind table: how to find the caller's registers, for a range of code addresses.
pub type Row = UnwindTableRow<usize, FixedStorage>;

/// Working memory of the evaluation: no allocation, less than 6 KiB, to be reused.
pub struct CfiContext(UnwindContext<usize, FixedStorage>);

impl CfiContext {
    /// Makes an empty context.
    #[must_use]
    pub fn new() -> Self {
        CfiContext(UnwindContext::new_in())
    }
}

impl Default for CfiContext {
    fn default() -> Self {
        Self::new()
    }
}

/// The call frame information of one loaded module, as slices of memory with their addresses.
#[derive(Copy, Clone, Debug, Default)]
pub struct CfiModule<'a> {
    /// `.eh_frame_hdr` (the segment `PT_GNU_EH_FRAME`); empty if the module has none.
    pub hdr: &'a [u8],
    /// Address of `hdr` in the process.
    pub hdr_addr: u64,
    /// `.eh_frame` from its start. It may run past the section's end, say to the end of the
    /// segment: the section ends at its terminator.
    pub eh_frame: &'a [u8],
    /// Address of `eh_frame` in the process, see [`eh_frame_address`].
    pub eh_frame_addr: u64,
    /// Base of text-relative pointers (hardly ever used; 0 if not known).
    pub text_addr: u64,
    /// Base of data-relative pointers in `.eh_frame`, the GOT on AMD64 (hardly ever used; 0 if not
    /// known).
    pub data_addr: u64,
    /// Whether pointers have 4 bytes.
    pub narrow: bool,
    /// `.ARM.exidx`, if a module has it: used for what call frame information does not cover.
    pub exidx: &'a [u8],
    /// Address of `exidx` in the process.
    pub exidx_addr: u64,
    /// `.ARM.extab`, which `exidx` leads to, or the segment that it is in.
    pub extab: &'a [u8],
    /// Address of `extab` in the process.
    pub extab_addr: u64,
}

/// The data that are needed beside a row to interpret it.
#[derive(Copy, Clone, Debug)]
pub struct FrameInfo<'a> {
    /// Section that the row's expressions point into.
    pub(super) section: EhFrame<Slice<'a>>,
    /// Whether the function is marked as a signal trampoline (augmentation `S`).
    pub signal: bool,
    /// Number of the return address column.
    pub ra: u16,
}

impl<'a> FrameInfo<'a> {
    /// Returns the bytes of an expression of this frame's row; empty if it points nowhere.
    #[must_use]
    pub fn expression(&self, expression: &gimli::UnwindExpression<usize>) -> &'a [u8] {
        expression.get(&self.section).map_or(&[], |e| e.0.slice())
    }
}

/// Reason why there is no row.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum NoRow {
    /// No function of the module covers the address.
    NotCovered,
    /// A function covers it, but its information cannot be read.
    Malformed,
}

/// Returns the 4- or 8-byte field in this machine's byte order at `offset`, sign-extended if `signed`.
fn field(bytes: &[u8], offset: usize, size: usize, signed: bool) -> Option<u64> {
    let bytes = bytes.get(offset..offset.checked_add(size)?)?;
    match size {
        4 => {
            let value = u32::from_ne_bytes(bytes.try_into().ok()?);
            Some(if signed { value as i32 as i64 as u64 } else { u64::from(value) })
        }
        8 => Some(u64::from_ne_bytes(bytes.try_into().ok()?)),
        _ => None,
    }
}

/// Returns size and signedness of the fixed-size pointer formats (`DW_EH_PE_absptr`, `udata4`, `sdata4`,
/// `udata8`, `sdata8`).
fn fixed_format(encoding: u8) -> Option<(usize, bool)> {
    match encoding & 0x0f {
        0x00 | 0x04 | 0x0c => Some((8, false)),
        0x03 => Some((4, false)),
        0x0b => Some((4, true)),
        _ => None,
    }
}

/// Returns the base address for the pointer applications that occur in `.eh_frame_hdr`: absolute,
/// pc-relative, data-relative.
fn application_base(encoding: u8, hdr_addr: u64, field_offset: usize) -> Option<u64> {
    match encoding & 0xf0 {
        0x00 => Some(0),
        0x10 => Some(hdr_addr.wrapping_add(field_offset as u64)),
        0x30 => Some(hdr_addr),
        _ => None,
    }
}

/// The search table of `.eh_frame_hdr`.
struct HdrTable<'a> {
    hdr: &'a [u8],
    hdr_addr: u64,
    encoding: u8,
    size: usize,
    signed: bool,
    start: usize,
    count: usize,
}

impl<'a> HdrTable<'a> {
    /// Parses the head of the table; returns `None` if there is no table, or one that cannot be searched.
    fn parse(hdr: &'a [u8], hdr_addr: u64) -> Option<Self> {
        let &[1, ptr_enc, count_enc, table_enc] = hdr.first_chunk()? else { return None };
        if count_enc == 0xff || table_enc == 0xff || count_enc & 0xf0 != 0 {
            return None;
        }
        let (ptr_size, _) = fixed_format(ptr_enc)?;
        let count_at = 4_usize.checked_add(ptr_size)?;
        let (count_size, _) = fixed_format(count_enc)?;
        let start = count_at.checked_add(count_size)?;
        let (size, signed) = fixed_format(table_enc)?;
        let room = hdr.len().checked_sub(start)? / size.checked_mul(2)?;
        let count = usize::try_from(field(hdr, count_at, count_size, false)?).ok()?.min(room);
        // Only bases that are the same for all entries leave the table sorted by its raw fields.
        matches!(table_enc & 0xf0, 0x00 | 0x30).then_some(())?;
        (count > 0).then_some(HdrTable {
            hdr,
            hdr_addr,
            encoding: table_enc,
            size,
            signed,
            start,
            count,
        })
    }

    /// Returns field `column` (0: function start, 1: FDE) of entry `index`.
    fn entry(&self, index: usize, column: usize) -> Option<u64> {
        let nth = index.checked_mul(2)?.checked_add(column)?;
        let offset = nth.checked_mul(self.size)?.checked_add(self.start)?;
        let base = application_base(self.encoding, self.hdr_addr, offset)?;
        Some(base.wrapping_add(field(self.hdr, offset, self.size, self.signed)?))
    }

    /// Returns the address of the FDE of the last function that starts at or below `pc`.
    fn lookup(&self, pc: u64) -> Option<u64> {
        let (mut low, mut high) = (0, self.count);
        while low < high {
            let middle = low.wrapping_add(high.wrapping_sub(low) / 2);
            if self.entry(middle, 0)? <= pc {
                low = middle.wrapping_add(1);
            } else {
                high = middle;
            }
        }
        self.entry(low.checked_sub(1)?, 1)
    }
}

/// Returns the address of `.eh_frame` that `.eh_frame_hdr` names: a loaded module has a program header for
/// the latter alone.
#[must_use]
pub fn eh_frame_address(hdr: &[u8], hdr_addr: u64) -> Option<u64> {
    let &[1, encoding] = hdr.first_chunk()? else { return None };
    let (size, signed) = fixed_format(encoding)?;
    let base = application_base(encoding, hdr_addr, 4)?;
    Some(base.wrapping_add(field(hdr, 4, size, signed)?))
}

impl<'a> CfiModule<'a> {
    pub(super) fn bases(&self) -> BaseAddresses {
        BaseAddresses::default()
            .set_eh_frame_hdr(self.hdr_addr)
            .set_eh_frame(self.eh_frame_addr)
            .set_text(self.text_addr)
            .set_got(self.data_addr)
    }

    fn section(&self) -> EhFrame<Slice<'a>> {
        let mut section = EhFrame::new(self.eh_frame, NativeEndian);
        section.set_address_size(if self.narrow { 4 } else { 8 });
        section
    }

    /// Returns whether an FDE covers `pc`.
    #[must_use]
    pub fn covers(&self, pc: u64) -> bool {
        self.find_fde(pc).is_ok()
    }

    /// Returns whether the function that covers `pc` has a language's handler for exceptions.
    #[must_use]
    pub fn has_handler(&self, pc: u64) -> bool {
        self.find_fde(pc).is_ok_and(|fde| fde.personality().is_some() || fde.lsda().is_some())
    }

    /// Returns the FDE that covers `pc`.
    pub(super) fn find_fde(&self, pc: u64) -> Result<Fde<'a>, NoRow> {
        let (section, bases) = (self.section(), self.bases());
        let Some(table) = HdrTable::parse(self.hdr, self.hdr_addr) else {
            return self.scan(&section, &bases, pc);
        };
        let fde_addr = table.lookup(pc).ok_or(NoRow::NotCovered)?;
        let offset = fde_addr.checked_sub(self.eh_frame_addr).ok_or(NoRow::Malformed)?;
        let offset = usize::try_from(offset).map_err(|_| NoRow::Malformed)?;
        let fde = section
            .fde_from_offset(&bases, offset.into(), EhFrame::cie_from_offset)
            .map_err(|_| NoRow::Malformed)?;
        if fde.contains(pc) { Ok(fde) } else { Err(NoRow::NotCovered) }
    }

    /// Finds the FDE without a search table, by a scan of the whole section.
    fn scan(
        &self,
        section: &EhFrame<Slice<'a>>,
        bases: &BaseAddresses,
        pc: u64,
    ) -> Result<Fde<'a>, NoRow> {
        let mut entries = section.entries(bases);
        // Each entry takes four bytes at least, so this ends.
        while let Ok(Some(entry)) = entries.next() {
            if let CieOrFde::Fde(partial) = entry
                && let Ok(fde) = partial.parse(EhFrame::cie_from_offset)
                && fde.contains(pc)
            {
                return Ok(fde);
            }
        }
        Err(NoRow::NotCovered)
    }

    /// Returns the row for `pc`.
    pub(super) fn row<'c>(
        &self,
        pc: u64,
        ctx: &'c mut CfiContext,
        vendor: Vendor,
    ) -> Result<(&'c Row, FrameInfo<'a>), NoRow> {
        let fde = self.find_fde(pc)?;
        let mut section = self.section();
        section.set_vendor(vendor);
        let row = fde
            .unwind_info_for_address(&section, &self.bases(), &mut ctx.0, pc)
            .map_err(|_| NoRow::Malformed)?;
        let ra = fde.cie().return_address_register().0;
        Ok((row, FrameInfo { section, signal: fde.is_signal_trampoline(), ra }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_context_is_small() {
        assert!(size_of::<CfiContext>() <= 6 * 1024, "{}", size_of::<CfiContext>());
    }
}
