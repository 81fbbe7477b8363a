//! Goes on reading a recording that grows when its oldest part is folded: then another file takes its place, whose end is
//! that of the file before.

use super::file::{ChunkFile, Item};
use super::meta::Meta;
use super::stream::{OTHER_FILE, Stream, Tail};
use crate::Error;
use prof_trace::records::{FoldEnd, Stripped, Target, kind};

/// The records at a file's front that tell whether it continues another one.
struct Front {
    target: Option<Target>,
    /// Number of times that it was folded, where the file before went on, and where this one does.
    end: Option<(u64, u64, u64)>,
    /// It has figures in place of events.
    has_figures: bool,
}

/// Reads a file up to the end of its folded part.
fn front(file: &mut ChunkFile) -> Result<Front, Error> {
    let mut found = Front { target: None, end: None, has_figures: false };
    file.set_sparse(true);
    loop {
        if file.pass_over(&[kind::EVENTS, kind::PACKED, kind::CALLS, kind::NODE_RUN])? {
            continue;
        }
        let Item::Chunk(kind, payload, _) = file.next()? else { return Ok(found) };
        match kind {
            kind::TARGET => found.target = Target::decode(payload),
            kind::STRIPPED => {
                let how = Stripped::decode(payload).map(|s| s.how);
                if how == Some(Stripped::AGGREGATED) {
                    found.has_figures = true;
                    return Ok(found);
                }
            }
            kind::FOLD_END => {
                let end = FoldEnd::decode(payload);
                found.end = end.map(|e| (e.folds, e.cut, file.position()));
                return Ok(found);
            }
            _ => {}
        }
    }
}

impl Stream {
    /// Returns whether another file has the place of this one, and may be the same recording.
    pub(crate) fn is_replaced(&self) -> bool {
        self.follows && self.file.is_replaced()
    }

    /// Returns whether all was read of a file whose place another one has.
    pub(crate) fn is_over(&self) -> bool {
        let is_read = self.bytes_left() == 0 || matches!(self.tail, Tail::Partial { .. });
        is_read && self.is_replaced()
    }

    /// Goes on in the file that has taken the place of this one, which was read to its end. A file of another recording is
    /// left alone.
    ///
    /// # Errors
    /// If it can't be read, was folded so often meanwhile that events are gone, or has figures in place of events.
    pub(crate) fn turn_to_new_file(&mut self) -> Result<(), Error> {
        let path = self.file.path().to_owned();
        let mut file = ChunkFile::open(&path)?;
        let front = front(&mut file)?;
        if front.has_figures && self.is_of_same(&front.target) {
            if !self.meta.is_aggregated() {
                return Err(Error::WentOver { path });
            }
            // The new file has the oldest figures added up, so all of them are read again.
            self.file = ChunkFile::open(&path)?;
            self.meta = Meta::passing_calls_on();
            (self.tail, self.anew) = (Tail::Whole, true);
            return Ok(());
        }
        let Some((folds, cut, behind)) = front.end.filter(|_| self.is_of_same(&front.target))
        else {
            // The file that is open goes on, or ends.
            self.follows = false;
            return Ok(());
        };
        let known = self.meta.folded.as_ref().map_or(0, |f| f.folds);
        let here = self.file.position();
        let there = here.checked_sub(cut).and_then(|n| n.checked_add(behind));
        let there = there.filter(|at| folds == known + 1 && *at <= file.len());
        let there = there.ok_or(Error::Folded { path: path.clone() })?;
        let old = std::mem::replace(&mut self.file, ChunkFile::open(&path)?);
        // Events that wait in the file before are read from there.
        self.old = Some(old);
        self.tag ^= OTHER_FILE;
        self.meta = Meta::passing_calls_on();
        self.tail = Tail::Whole;
        self.skip_to(there)
    }

    /// Returns whether figures were read from their front on again since the last call.
    pub(crate) fn is_anew(&mut self) -> bool {
        std::mem::take(&mut self.anew)
    }

    fn is_of_same(&self, target: &Option<Target>) -> bool {
        let of = |t: &Target| (t.pid, t.start_ticks, t.exe.clone());
        target.as_ref().is_some_and(|t| of(t) == of(&self.meta.target))
    }
}
