//! Calls that change mappings: gathers them from the ring, and finds the files that they have mapped.

use crate::maps::Maps;
use crate::output::Output;
use prof_os::maps::Map;
use prof_trace::call::{CallKind, MAX_NAME, Part, TEXT_BYTES};
use prof_trace::records::{Call, CallFile, Calls, kind};
use prof_trace::ticks::Ticks;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Shortest interval between two reads of the mappings for the sake of files.
const EVERY: Duration = Duration::from_millis(5);
/// Part of the time that reading the mappings may take.
const PART: u32 = 50;
/// Number of calls in a chunk.
const MOST: usize = 1 << 16;
/// Greatest number of files that are remembered. Further ones get new numbers each time.
const FILES: usize = 1 << 14;

/// Calls that wait to be written.
#[derive(Debug, Default)]
pub(crate) struct Gathered {
    calls: Vec<(u32, Call)>,
    /// Last bytes of the texts since each thread's last call.
    names: HashMap<u32, Vec<u8>>,
}

impl Gathered {
    /// Adds what a segment of a thread holds.
    pub(crate) fn add(&mut self, thread: u32, parts: impl Iterator<Item = Part>) {
        for part in parts {
            match part {
                Part::Text(bytes, n) => {
                    let name = self.names.entry(thread).or_default();
                    name.extend_from_slice(&bytes[..n.min(TEXT_BYTES)]);
                    name.drain(..name.len().saturating_sub(MAX_NAME));
                }
                Part::Call(raw, node) => {
                    let text = match self.names.is_empty() {
                        true => Vec::new(),
                        false => self.names.remove(&thread).unwrap_or_default(),
                    };
                    // What precedes the name belongs to a call that the hook has lost.
                    let len = usize::try_from(raw.second).ok().filter(|_| raw.kind.has_name());
                    let name = len.and_then(|n| text.get(text.len().checked_sub(n)?..));
                    let name = String::from_utf8_lossy(name.unwrap_or(&[])).into_owned();
                    self.calls.push((thread, Call::from_raw(&raw, node, name)));
                }
            }
        }
    }

    /// Returns the number of calls.
    pub(crate) fn len(&self) -> usize {
        self.calls.len()
    }

    /// Removes the calls and returns them as payloads of chunks.
    pub(crate) fn take(&mut self) -> Vec<Vec<u8>> {
        let calls = std::mem::take(&mut self.calls);
        calls.chunks(MOST).map(|part| Calls { calls: part.to_vec() }.encode()).collect()
    }
}

/// Returns whether a call has mapped a file, or a shared segment, which the kernel lists as one.
fn maps_file(call: &Call) -> bool {
    let has_file = match call.kind {
        CallKind::Mmap => call.fd >= 0,
        kind => kind == CallKind::Shmat,
    };
    has_file && call.errno == 0
}

/// Returns whether something else is at a call's address from then on.
fn replaces(call: &Call) -> bool {
    use CallKind::{Mmap, Mremap, Munmap, Shmat, Shmdt};
    call.errno == 0 && matches!(call.kind, Mmap | Munmap | Mremap | Shmat | Shmdt)
}

/// Device, inode and name of a mapped file.
type FileKey = ((u32, u32), u64, Vec<u8>);

/// The files that calls have mapped.
#[derive(Debug, Default)]
pub(crate) struct Files {
    /// Numbers, by device, inode and path.
    known: HashMap<FileKey, u32>,
    last: u32,
    read: Option<(Instant, Duration)>,
}

impl Files {
    /// Looks the files of the gathered calls up in the list of mappings, which is read if that is due. An older list may
    /// show another file that was mapped at the same address before. So a mapping that is gone by then, replaced, or made
    /// too soon after the last read, has no file in the recording.
    pub(crate) fn find(&mut self, maps: &mut Maps, out: &mut Output) {
        if !out.calls.calls.iter().any(|c| maps_file(&c.1)) || !self.is_due() {
            return;
        }
        let began = Instant::now();
        let there = maps.read();
        self.read = Some((began, began.elapsed()));
        if !there {
            return;
        }
        let mut calls = std::mem::take(&mut out.calls.calls);
        // Of several mappings that were at an address, the list shows the last.
        let mut last: HashMap<u64, Ticks> = HashMap::new();
        for (_, call) in calls.iter().filter(|c| replaces(&c.1)) {
            let end = last.entry(call.addr).or_default();
            *end = call.end.max(*end);
        }
        for (_, call) in calls.iter_mut().filter(|c| maps_file(&c.1)) {
            if last.get(&call.addr) == Some(&call.end)
                && let Some(m) = place(maps, call)
            {
                call.file = self.number(m, out);
                if call.kind == CallKind::Shmat {
                    // The call does not say how long the segment is.
                    call.len = m.end.0 - call.addr;
                }
            }
        }
        out.calls.calls = calls;
    }

    fn is_due(&self) -> bool {
        self.read.is_none_or(|(at, took)| at.elapsed() > EVERY.max(took * PART))
    }

    /// Returns the number of a mapping's file; announces it in the recording if it is new.
    fn number(&mut self, m: &Map, out: &mut Output) -> u32 {
        let key = (m.device, m.inode, m.name.clone());
        if let Some(id) = self.known.get(&key) {
            return *id;
        }
        self.last = self.last.wrapping_add(1).max(1);
        let (id, path) = (self.last, m.text().into_owned());
        let file = CallFile { id, device: device(m), inode: m.inode, path };
        out.put(kind::CALL_FILE, &file.encode());
        if self.known.len() < FILES {
            self.known.insert(key, id);
        }
        id
    }

    /// Continues the numbers of a recording.
    pub(crate) fn continue_from(&mut self, last: u32) {
        self.last = last;
    }
}

/// Returns the mapping that a call has made, if there is one that continues its file's offsets.
fn place<'a>(maps: &'a Maps, call: &Call) -> Option<&'a Map> {
    let m = maps.at(call.addr).filter(|m| m.inode != 0)?;
    (m.offset.checked_add(call.addr - m.start.0)? == call.offset).then_some(m)
}

/// Returns the number of a mapped file's device as CALL_FILE and MAPPINGS have it.
pub(crate) fn device(m: &Map) -> u64 {
    let (major, minor) = m.device;
    u64::from(major) << 32 | u64::from(minor)
}

#[cfg(test)]
mod tests {
    use super::*;
    use prof_trace::call::RawCall;

    #[test]
    fn names_belong_to_the_next_call_of_their_thread() {
        let mut all = Gathered::default();
        let text = |s: &str| {
            let mut bytes = [0; TEXT_BYTES];
            bytes[..s.len()].copy_from_slice(s.as_bytes());
            Part::Text(bytes, s.len())
        };
        let named = |addr, len| {
            let kind = CallKind::NameVma;
            Part::Call(RawCall { kind, addr, second: len, ..RawCall::default() }, 3)
        };
        let call = |addr| Part::Call(RawCall { addr, ..RawCall::default() }, 3);
        all.add(1, [text("first "), text("name")].into_iter());
        all.add(2, [call(20)].into_iter());
        all.add(1, [named(10, 10), call(11)].into_iter());
        assert_eq!(all.len(), 3);
        let payloads = all.take();
        let calls = Calls::decode(&payloads[0]).expect("calls").calls;
        let names: Vec<_> = calls.iter().map(|(t, c)| (*t, c.addr, c.name.as_str())).collect();
        assert_eq!(names, [(2, 20, ""), (1, 10, "first name"), (1, 11, "")]);
        assert_eq!((all.len(), payloads.len(), calls[0].1.node), (0, 1, 3));
        // A target may write any number of texts.
        all.add(7, std::iter::repeat_n(text("0123456789"), 100).chain([named(1, 79)]));
        all.add(7, std::iter::repeat_n(text("0123456789"), 100).chain([named(1, 800)]));
        let calls = Calls::decode(&all.take()[0]).expect("calls").calls;
        assert_eq!((calls[0].1.name.len(), calls[1].1.name.len()), (MAX_NAME, 0));
    }

    #[test]
    fn the_name_of_a_lost_call_is_no_other_calls() {
        let text = |s: &str| {
            let mut bytes = [0; TEXT_BYTES];
            bytes[..s.len()].copy_from_slice(s.as_bytes());
            Part::Text(bytes, s.len())
        };
        let of = |kind, len| Part::Call(RawCall { kind, second: len, ..RawCall::default() }, 1);
        let mut all = Gathered::default();
        // The calls of the first two texts were lost.
        let named = [text("lost"), text("too"), text("its own"), of(CallKind::NameVma, 7)];
        all.add(1, named.into_iter());
        all.add(1, [text("lost"), of(CallKind::Mmap, 4), of(CallKind::NameVma, 0)].into_iter());
        // The text was lost, and the call was not.
        all.add(1, [of(CallKind::Mallctl, 9)].into_iter());
        let calls = Calls::decode(&all.take()[0]).expect("calls").calls;
        let names: Vec<&str> = calls.iter().map(|(_, c)| c.name.as_str()).collect();
        assert_eq!(names, ["its own", "", "", ""]);
    }

    #[test]
    fn devices_are_numbers() {
        let m = Map::parse(b"1000-2000 r--p 0 fe:01 7 /x").expect("a mapping");
        assert_eq!(device(&m), 0xfe << 32 | 1);
    }
}
