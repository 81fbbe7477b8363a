//! The bounds of a recording's file: its length, and the room that the file system keeps.

use nix::sys::statvfs::fstatvfs;
use prof_trace::records::Bounds;
use prof_trace::values::parse;
use prof_trace::values::text::bytes;
use std::fmt;
use std::fs::File;
use std::str::FromStr;
use std::time::{Duration, Instant};

/// Time after which the file system's free room is read again, as others use it, too.
const AGAIN: Duration = Duration::from_secs(1);
/// Number of written bytes after which it is read again, and the part of the room that is left which counts, if that is
/// less.
const STEP: u64 = 4 << 20;
const PART: u64 = 8;
/// Greatest part of `max_disk` that is kept for what is in the ring when recording is switched off, and for the end.
const RESERVE: u64 = 4 << 20;
/// Room on the file system for what ends a recording.
const LAST: u64 = 1 << 20;
/// Parts of a whole in a [`Room::Share`].
const MILLION: u64 = 1_000_000;
/// The room that is left to others unless the user says otherwise, as text. On a disk of 20 TB a share alone would
/// refuse a recording although 900 GB are free.
const USUAL: &str = "5%, at most 1GiB";
/// The share of [`Room::Usual`], in millionths, and its greatest size in bytes.
const USUAL_SHARE: u32 = 50_000;
const USUAL_MOST: u64 = 1 << 30;

/// An amount of room on a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// Bytes.
    Bytes(u64),
    /// Millionths of the file system's size.
    Share(u32),
    /// [`USUAL_SHARE`] of the file system's size, but at most [`USUAL_MOST`].
    Usual,
}

impl Room {
    /// Returns the bytes of it on a file system of this size.
    fn of(self, size: u64) -> u64 {
        match self {
            Room::Bytes(n) => n,
            Room::Usual => Room::Share(USUAL_SHARE).of(size).min(USUAL_MOST),
            Room::Share(n) => (u128::from(size) * u128::from(n) / u128::from(MILLION)) as u64,
        }
    }
}

impl FromStr for Room {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == USUAL {
            return Ok(Room::Usual);
        }
        if !text.trim().ends_with('%') {
            return parse::size(text)
                .map(Room::Bytes)
                .map_err(|e| format!("{e}, or a percentage such as 5%"));
        }
        let part = parse::millionths(text).ok().filter(|part| *part <= MILLION);
        let part = part.ok_or_else(|| format!("{text} is no percentage from 0% to 100%"))?;
        Ok(Room::Share(part as u32))
    }
}

impl fmt::Display for Room {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Room::Bytes(n) => write!(f, "{n}"),
            Room::Usual => f.write_str(USUAL),
            Room::Share(n) => write!(f, "{}%", f64::from(*n) * 100.0 / MILLION as f64),
        }
    }
}

/// The bounds of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Greatest length of the file in bytes; `None`: any.
    pub max_disk: Option<u64>,
    /// Room that is left to others on the file system.
    pub keep_free: Room,
}

impl Limits {
    /// No bounds.
    pub const NONE: Self = Self { max_disk: None, keep_free: Room::Bytes(0) };
    /// The least `max_disk` in bytes: a shorter recording could hold little but descriptions of modules.
    pub const LEAST: u64 = 1 << 20;

    /// Returns the record that says this in a recording; `None` if there is no bound.
    pub(crate) fn record(&self) -> Option<Bounds> {
        let (max_disk, keep_free) = (self.max_disk.unwrap_or(0), self.keep_free.to_string());
        (*self != Self::NONE).then_some(Bounds { max_disk, keep_free })
    }

    /// Returns the bounds that a recording states. What can't be read is no bound.
    pub(crate) fn of(record: &Bounds) -> Self {
        let max_disk = Some(record.max_disk).filter(|n| *n >= Self::LEAST);
        Self { max_disk, keep_free: record.keep_free.parse().unwrap_or(Room::Bytes(0)) }
    }

    /// Returns the length that a recording of this length may have at most with what a dead collector has left in memory.
    pub(crate) fn with_rest(&self, file: &File, len: u64) -> u64 {
        let room = self.room(file).unwrap_or(0).saturating_sub(LAST);
        self.hard().min(len.saturating_add(room))
    }

    /// Returns whether a recording of this length may grow; otherwise it ends at once.
    #[must_use]
    pub fn lets_grow(&self, len: u64) -> bool {
        len < self.soft()
    }

    /// Returns whether a recording of this length and what a fold makes of it fit, so that its oldest part can be dropped
    /// without more room than `max_disk`.
    pub(crate) fn has_room_for_fold(&self, len: u64) -> bool {
        self.max_disk.is_none_or(|most| len <= most - most / 3)
    }

    /// Returns whether a recording that was folded to this length may grow until it is folded again.
    pub(crate) fn has_room_after_fold(&self, len: u64) -> bool {
        self.max_disk.is_none_or(|most| len.saturating_mul(2) <= most - most / 8)
    }

    /// Returns the bounds under which a recording of this length is folded at once, as it is longer than these allow.
    pub(crate) fn eased(&self, len: u64) -> Self {
        Self { max_disk: self.max_disk.map(|most| most.max(len.saturating_mul(3))), ..*self }
    }

    /// Returns the length at which recording is switched off.
    fn soft(&self) -> u64 {
        self.max_disk.map_or(u64::MAX, |most| most - RESERVE.min(most / 8))
    }

    /// Returns the length beyond which events are dropped: the rest is for what describes them, and for the end.
    pub(crate) fn hard(&self) -> u64 {
        self.max_disk.map_or(u64::MAX, |most| most - RESERVE.min(most / 8) / 4)
    }

    /// Returns the bytes that a recording of this length may still grow by, or why it may not.
    fn reached(&self, file: &File, len: u64) -> Result<u64, String> {
        if let Some(most) = self.max_disk.filter(|_| len >= self.soft()) {
            return Err(format!("it is as long as --max-disk lets it be ({})", bytes(most)));
        }
        Ok(self.room(file)?.min(self.soft() - len))
    }

    /// Returns why nothing more may be written to the file's file system, if that is so. One that does not tell its size
    /// has no bound.
    pub fn is_full(&self, file: &File) -> Option<String> {
        self.room(file).err()
    }

    /// Returns the bytes that may still be written to the file's file system, or why there are none.
    pub(crate) fn room(&self, file: &File) -> Result<u64, String> {
        if self.keep_free.of(u64::MAX) == 0 {
            return Ok(u64::MAX);
        }
        self.free(file)
    }

    /// Returns the same, also where the user lets the file system get full: another file needs room on it.
    #[allow(clippy::useless_conversion, reason = "the fields have 32 bits on some systems")]
    pub(crate) fn free(&self, file: &File) -> Result<u64, String> {
        let Ok(fs) = fstatvfs(file) else { return Ok(u64::MAX) };
        let unit = u64::from(fs.fragment_size());
        let size = u64::from(fs.blocks()).saturating_mul(unit);
        let free = u64::from(fs.blocks_available()).saturating_mul(unit);
        let keep = self.keep_free.of(size);
        if size == 0 || free > keep {
            return Ok(free.saturating_sub(keep));
        }
        let share = match self.keep_free {
            Room::Bytes(_) | Room::Usual => String::new(),
            share => format!("{share}, "),
        };
        Err(format!(
            "its file system has {} free, and --keep-free leaves {share}{} to others",
            bytes(free),
            bytes(keep)
        ))
    }
}

/// Compares a recording with its bounds from time to time.
#[derive(Debug)]
pub(crate) struct Guard {
    pub limits: Limits,
    /// Time of the last look at the file system, and the length of the recording at which the next is due.
    looked: Option<(Instant, u64)>,
    /// Why the recording may not grow further.
    pub reached: Option<String>,
}

impl Guard {
    pub(crate) fn new(limits: Limits) -> Self {
        Self { limits, looked: None, reached: None }
    }

    /// Returns true if a bound is reached for the first time.
    pub(crate) fn look(&mut self, file: &File, len: u64) -> bool {
        if self.reached.is_some() {
            return false;
        }
        let due = |(at, next): (Instant, u64)| at.elapsed() >= AGAIN || len >= next;
        if !self.looked.is_none_or(due) {
            return false;
        }
        match self.limits.reached(file, len) {
            Ok(room) => {
                self.looked = Some((Instant::now(), len.saturating_add(STEP.min(room / PART))));
            }
            Err(why) => self.reached = Some(why),
        }
        self.reached.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_a_size_or_a_share() {
        for (text, room) in [
            (USUAL, Room::Usual),
            ("5%", Room::Share(50_000)),
            ("0.5 %", Room::Share(5_000)),
            ("100%", Room::Share(1_000_000)),
            ("0", Room::Bytes(0)),
            ("1.5M", Room::Bytes(3 << 19)),
        ] {
            assert_eq!(text.parse(), Ok(room), "{text}");
            assert_eq!(room.to_string().parse(), Ok(room));
        }
        for bad in ["101%", "-1%", "much", "%", ""] {
            assert!(bad.parse::<Room>().is_err(), "{bad}");
        }
        assert_eq!(Room::Share(50_000).of(1 << 40), (1 << 40) / 20);
        assert_eq!(Room::Usual.of(1 << 40), 1 << 30);
        assert_eq!(Room::Usual.of(20 << 20), 1 << 20);
    }

    #[test]
    fn a_recording_states_its_bounds() {
        for keep_free in [Room::Usual, Room::Bytes(7), Room::Share(12_345)] {
            let all = Limits { max_disk: Some(Limits::LEAST), keep_free };
            assert_eq!(all.record().map(|r| Limits::of(&r)), Some(all));
        }
        assert_eq!(Limits::NONE.record(), None);
        let bad = Bounds { max_disk: 3, keep_free: "much".into() };
        assert_eq!(Limits::of(&bad), Limits::NONE);
    }

    #[test]
    fn a_length_and_a_file_system_are_bounds() {
        let path = std::env::temp_dir().join(format!("prof-limits-{}", std::process::id()));
        let file = File::create(&path).expect("a file");
        std::fs::remove_file(&path).expect("remove");
        let most = Limits { max_disk: Some(16 << 20), ..Limits::NONE };
        assert_eq!(most.reached(&file, 1 << 20), Ok(13 << 20));
        assert!(most.reached(&file, (14 << 20) + 1).is_err_and(|why| why.contains("16.0 MiB")));
        assert!(most.soft() < most.hard() && most.hard() < 16 << 20);
        assert_eq!(most.with_rest(&file, 1 << 20), most.hard());
        assert!(most.lets_grow(13 << 20) && !most.lets_grow(14 << 20));
        assert!(most.has_room_for_fold(10 << 20) && !most.has_room_for_fold(11 << 20));
        assert!(most.has_room_after_fold(7 << 20) && !most.has_room_after_fold((7 << 20) + 1));
        assert_eq!(most.eased(40 << 20).max_disk, Some(120 << 20));
        assert!(Limits::NONE.lets_grow(u64::MAX - 1) && Limits::NONE.has_room_for_fold(u64::MAX));
        let all = Limits { keep_free: Room::Share(1_000_000), ..Limits::NONE };
        assert_eq!(all.with_rest(&file, 1 << 20), 1 << 20);
        assert!(all.reached(&file, 0).is_err_and(|why| why.contains("100%")));
        let mut guard = Guard::new(all);
        assert!(guard.look(&file, 0) && !guard.look(&file, 0), "said once");
        assert!(!Guard::new(Limits::NONE).look(&file, u64::MAX - 1));
    }
}
