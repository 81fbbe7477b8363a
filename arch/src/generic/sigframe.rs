//! Parts of a signal frame's construction that all architectures share.

use core::fmt;

/// Invalid mode for `sigaltstack`: with it, the kernel leaves the thread's alternate stack as it is.
pub(crate) const SS_INVALID: u32 = 4;

/// Reason why no frame could be built.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum SigframeError {
    /// The vector state (on MIPS64 the floating point state) is shorter than it must be.
    BadVector,
    /// The buffer is too small.
    NoRoom {
        /// Bytes needed.
        need: usize,
    },
    /// The frame's address is not aligned.
    Misaligned {
        /// Number of bytes that the address must be a multiple of.
        align: u64,
    },
}

impl fmt::Display for SigframeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SigframeError::BadVector => {
                write!(f, "the thread's vector state is too short to be one")
            }
            SigframeError::NoRoom { need } => write!(f, "the signal frame needs {need} bytes"),
            SigframeError::Misaligned { align } => {
                write!(f, "the signal frame's address is not a multiple of {align}")
            }
        }
    }
}

impl core::error::Error for SigframeError {}

/// A signal frame that was built.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Sigframe {
    /// Bytes of the buffer that are to be written to the frame's address.
    pub len: usize,
    /// Stack pointer of the thread that is sent to the system call gadget: the frame's address.
    pub sp: u64,
}

/// Layout of the vector state where it is the same on all machines.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct VectorLayout;

impl VectorLayout {
    /// Returns this machine's layout.
    #[must_use]
    pub fn native() -> Self {
        VectorLayout
    }
}

/// Lengths and alignment of the signal frames of an architecture whose vector state has one length.
pub(crate) struct Fixed {
    /// Number of bytes that a frame's address must be a multiple of.
    pub align: u64,
    /// Length of a frame, in bytes.
    pub len: usize,
    /// Length of the vector state that the frame holds, in bytes.
    pub vector_len: usize,
}

impl Fixed {
    /// Builds a frame in `out` with `fill`, which gets a zeroed frame and the part of `vector` that the frame holds.
    ///
    /// # Errors
    ///
    /// See [`SigframeError`].
    pub(crate) fn build(
        &self,
        out: &mut [u8],
        frame_addr: u64,
        vector: &[u8],
        fill: impl FnOnce(&mut [u8], &[u8]) -> Option<()>,
    ) -> Result<Sigframe, SigframeError> {
        if !frame_addr.is_multiple_of(self.align) {
            return Err(SigframeError::Misaligned { align: self.align });
        }
        let vector = vector.get(..self.vector_len).ok_or(SigframeError::BadVector)?;
        let no_room = SigframeError::NoRoom { need: self.len };
        let frame = out.get_mut(..self.len).ok_or(no_room)?;
        frame.fill(0);
        fill(frame, vector).ok_or(no_room)?;
        Ok(Sigframe { len: self.len, sp: frame_addr })
    }
}

/// Writes `bytes` at `offset`; returns `None` if they do not fit.
pub(crate) fn put(out: &mut [u8], offset: usize, bytes: impl AsRef<[u8]>) -> Option<()> {
    let bytes = bytes.as_ref();
    out.get_mut(offset..offset.checked_add(bytes.len())?)?.copy_from_slice(bytes);
    Some(())
}

/// Defines the test of an architecture's `build_sigframe` for what it refuses: `$bad` is an address that is not
/// aligned, `$good` one that is, `$vector` the length of the vector state, `$mask` an empty signal set.
#[cfg(test)]
macro_rules! test_refusals {
    ($bad:literal, $good:literal, $vector:literal, $mask:expr) => {
        #[test]
        fn refusals() {
            let (regs, layout) = (UserRegs::default(), VectorLayout::native());
            let mut out = [0; LEN];
            let mut build = |at, vector: &[u8], len: usize| {
                build_sigframe(&mut out[..len], at, &regs, vector, &layout, $mask, 0).err()
            };
            let misaligned = Some(SigframeError::Misaligned { align: $good });
            assert_eq!(build($bad, &[0; $vector], LEN), misaligned);
            assert_eq!(build($good, &[0; $vector - 1], LEN), Some(SigframeError::BadVector));
            let no_room = Some(SigframeError::NoRoom { need: LEN });
            assert_eq!(build($good, &[0; $vector], LEN - 1), no_room);
            assert_eq!(build($good, &[0; $vector], LEN), None);
            assert_eq!(sigframe_len($vector), LEN);
        }
    };
}
#[cfg(test)]
pub(crate) use test_refusals;
