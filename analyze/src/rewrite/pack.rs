//! Adds everything to a recording that is needed to read it on another machine: names of all code addresses (with
//! inlined functions, files and lines), the symbols of all modules, and on request their files; all compressed as well
//! as possible.

use super::RewriteError;
use super::anonymous::{Anonymize, Names};
use super::out::{Out, Passes};
use crate::load::{ChunkFile, Item};
use crate::progress::Step;
use crate::symbols::{Frame, Symbolizer, paths};
use crate::{Analysis, Error};
use prof_os::files::{open_below, open_regular};
use prof_trace::chunk::MAX_PAYLOAD;
use prof_trace::derived::{Frames, NamedAddress, NamedFrame, Zipped};
use prof_trace::event::Event;
use prof_trace::pack::{self, Unpacker};
use prof_trace::records::{
    Allocators, CallFile, Calls, CensusClasses, Events, FilePart, Hooks, Mappings, Module, Pass,
    Scan, ScanRoots, Symbols, Target, Thread, kind,
};
use std::collections::{HashMap, HashSet};
use std::io::{Read, Write};

/// Number of bytes of a piece of a file.
const PIECE: usize = 8 << 20;
/// Number of code addresses of a chunk.
const ADDRESSES: usize = 100_000;

/// Options of packing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PackOptions {
    /// The degree to which names are removed.
    pub anonymize: Anonymize,
    /// Add the files of the modules, and their debug files.
    pub files: bool,
}

/// Result of packing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Packed {
    /// Length of the recording before.
    pub bytes_before: u64,
    /// Length of the packed recording.
    pub bytes: u64,
    /// Number of code addresses.
    pub addresses: u64,
    /// Number of code addresses without a function.
    pub unknown: u64,
    /// Number of files added.
    pub files: u64,
    /// Bytes of these files.
    pub file_bytes: u64,
}

/// Packs a recording.
///
/// # Errors
/// If the recording can't be read, or the output can't be written.
pub fn pack(
    analysis: &Analysis,
    options: &PackOptions,
    out: &mut dyn Write,
) -> Result<Packed, RewriteError> {
    let mut packer = Packer {
        to: Out::new(out)?,
        names: Names::new(options.anonymize),
        passes: Passes::new(&analysis.meta().target),
        unpacker: Unpacker::default(),
        last: Vec::new(),
        done: Packed::default(),
    };
    packer.copy(analysis)?;
    if let Some(losses) = analysis.unrecorded_losses() {
        packer.to.put(kind::JOINED, &losses.encode())?;
    }
    packer.name(analysis)?;
    if options.files && packer.names.keeps_files() {
        packer.files(analysis)?;
    }
    packer.to.flush()?;
    for (kind, payload) in std::mem::take(&mut packer.last) {
        packer.to.put(kind, &payload)?;
    }
    packer.done.bytes_before = std::fs::metadata(analysis.path()).map_or(0, |m| m.len());
    packer.done.bytes = packer.to.bytes;
    Ok(packer.done)
}

struct Packer<'a> {
    to: Out<'a>,
    names: Names,
    passes: Passes,
    unpacker: Unpacker,
    /// Chunks that are written at the end.
    last: Vec<(u16, Vec<u8>)>,
    done: Packed,
}

impl Packer<'_> {
    /// Copies all chunks, in their order.
    fn copy(&mut self, analysis: &Analysis) -> Result<(), RewriteError> {
        let mut file = ChunkFile::open(&analysis.path())?;
        let step = Step::begin("copying the recording", analysis.bytes());
        while file.position() < analysis.bytes() {
            step.set(file.position());
            let Item::Chunk(kind, payload, _) = file.next()? else { break };
            if kind != kind::ZIPPED {
                self.chunk(kind, payload, analysis)?;
            } else if let Some(z) = Zipped::decode(payload)
                && let Some(inner) = z.unzip()
            {
                self.chunk(z.kind, &inner, analysis)?;
            }
        }
        Ok(())
    }

    fn chunk(&mut self, kind: u16, payload: &[u8], all: &Analysis) -> Result<(), RewriteError> {
        let names = &mut self.names;
        match kind {
            kind::EVENTS => return self.events(payload),
            kind::PACKED => return self.packed(payload),
            // These are generated anew.
            kind::FRAMES => {}
            // The names of other recordings are those of programs.
            kind::FILE | kind::FORKED if !names.keeps_files() => {}
            kind::PASS => match Pass::decode(payload) {
                Some(p) if !self.passes.keep(&p) => {}
                _ => self.to.put(kind, payload)?,
            },
            kind::TARGET => {
                let Some(mut t) = Target::decode(payload) else { return Ok(()) };
                names.target(&mut t);
                self.to.put(kind, &t.encode())?;
            }
            kind::THREAD => {
                let Some(mut t) = Thread::decode(payload) else { return Ok(()) };
                names.thread(&mut t);
                self.to.put_zipped(kind, &t.encode())?;
            }
            kind::MODULE => {
                let Some(mut m) = Module::decode(payload) else { return Ok(()) };
                names.module(&mut m);
                self.to.put_zipped(kind, &m.encode())?;
            }
            kind::MAPPINGS => {
                let Some(mut m) = Mappings::decode(payload) else { return Ok(()) };
                names.mappings(&mut m);
                self.to.put_zipped(kind, &m.encode())?;
            }
            kind::ALLOCATORS => {
                let Some(mut a) = Allocators::decode(payload) else { return Ok(()) };
                names.allocators(&mut a);
                return Ok(self.to.put(kind, &a.encode())?);
            }
            kind::CALL_FILE => {
                let Some(mut f) = CallFile::decode(payload) else { return Ok(()) };
                names.call_file(&mut f);
                self.to.put_zipped(kind, &f.encode())?;
            }
            kind::CALLS => {
                let Some(mut c) = Calls::decode(payload) else { return Ok(()) };
                names.calls(&mut c);
                self.to.put_zipped(kind, &c.encode())?;
            }
            kind::CENSUS_CLASSES => {
                let Some(mut c) = CensusClasses::decode(payload) else { return Ok(()) };
                names.census_classes(&mut c);
                self.to.put_zipped(kind, &c.encode())?;
            }
            kind::SCAN => {
                let Some(mut s) = Scan::decode(payload) else { return Ok(()) };
                names.scan(&mut s);
                self.to.put(kind, &s.encode())?;
            }
            kind::SCAN_ROOTS => {
                let Some(mut r) = ScanRoots::decode(payload) else { return Ok(()) };
                names.scan_roots(&mut r);
                self.to.put_zipped(kind, &r.encode())?;
            }
            kind::HOOKS => {
                let Some(mut h) = Hooks::decode(payload) else { return Ok(()) };
                names.hooks(&mut h);
                self.to.put_zipped(kind, &h.encode())?;
            }
            kind::SYMBOLS => match Symbols::decode(payload) {
                Some(s) if names.keeps(&s) => self.to.put_zipped(kind, payload)?,
                _ => {}
            },
            // The last chunk of a kind counts. An incomplete recording gets no end.
            kind::COUNTERS | kind::END | kind::STRIPPED => self.keep_for_end(kind, payload, all),
            // Kinds of a newer prof may contain names.
            kind if kind::name(kind).is_none() && !names.keeps_files() => {}
            _ => self.to.put_zipped(kind, payload)?,
        }
        Ok(())
    }

    /// Keeps a chunk that is written after all events.
    fn keep_for_end(&mut self, kind: u16, payload: &[u8], all: &Analysis) {
        if kind != kind::STRIPPED {
            self.last.retain(|c| c.0 != kind);
        }
        if kind != kind::END || all.was_finished() {
            self.last.push((kind, payload.to_vec()));
            // The end comes last.
            self.last.sort_by_key(|c| c.0 == kind::END);
        }
    }

    fn events(&mut self, payload: &[u8]) -> Result<(), RewriteError> {
        let Some(e) = Events::decode(payload) else { return Ok(()) };
        match e.decoded() {
            Some(events) => Ok(self.to.events(e.thread, &events)?),
            // Damaged events are copied, so that the reader notices.
            None => Ok(self.to.put(kind::EVENTS, payload)?),
        }
    }

    fn packed(&mut self, payload: &[u8]) -> Result<(), RewriteError> {
        let Some(packed) = pack::Packed::read(payload) else { return Ok(()) };
        let mut runs: Vec<Vec<Event>> = vec![Vec::new(); packed.runs.len()];
        if self.unpacker.unpack(&packed, |run, event| runs[run].push(event)).is_none() {
            return Ok(self.to.put(kind::PACKED, payload)?);
        }
        for (run, events) in packed.runs.iter().zip(runs) {
            self.to.events(run.thread, &events)?;
        }
        Ok(())
    }

    /// Symbolises all code addresses.
    fn name(&mut self, analysis: &Analysis) -> Result<(), RewriteError> {
        let mut symbols = Symbolizer::new(analysis);
        let addresses: Vec<_> = analysis.meta().code_addresses().into_iter().collect();
        for part in addresses.chunks(ADDRESSES) {
            let mut known: HashMap<String, u32> = HashMap::new();
            let mut all = Frames::default();
            for pc in part {
                let frames = symbols.frames(*pc);
                self.done.addresses += 1;
                self.done.unknown += u64::from(frames.iter().all(|f| f.function.is_none()));
                let mut number = |name: String| {
                    let next = all.strings.len() as u32 + 1;
                    *known.entry(name).or_insert_with_key(|name| {
                        all.strings.push(name.clone());
                        next
                    })
                };
                let frame = |f: &Frame| NamedFrame {
                    function: f.function.as_deref().map_or(0, |n| number(self.names.function(n))),
                    file: f.file.as_deref().map_or(0, |n| number(self.names.file(n))),
                    offset: f.function_offset,
                    line: f.line,
                    inlined: f.inlined,
                };
                let frames = frames.iter().map(frame).collect();
                let (address, module, exact) = (pc.address, pc.module, pc.exact);
                all.addresses.push(NamedAddress { address, module, exact, frames });
            }
            let payload = all.encode();
            // Names that make a chunk too large are not real names.
            if payload.len() <= MAX_PAYLOAD {
                self.to.put_zipped(kind::FRAMES, &payload)?;
            }
        }
        Ok(())
    }

    /// Adds the files of the modules, each once.
    fn files(&mut self, analysis: &Analysis) -> Result<(), RewriteError> {
        let meta = analysis.meta();
        let step = Step::begin("adding the files of modules", meta.modules.len() as u64);
        let mut seen = HashSet::new();
        for m in meta.modules.values() {
            step.add(1);
            for (root, path) in paths(analysis, m) {
                if !seen.insert(path.clone()) {
                    continue;
                }
                let file = match &root {
                    Some(root) => open_below(root, &path),
                    None => open_regular(&path),
                };
                let file = file.map_err(|e| Error::open(&path, e))?;
                let length = file.metadata().map_err(|e| Error::read(&path, e))?.len();
                let mut from = file.take(length);
                let mut offset = 0;
                let name = path.to_string_lossy().into_owned();
                loop {
                    let mut bytes = Vec::new();
                    let piece = (&mut from).take(PIECE as u64).read_to_end(&mut bytes);
                    piece.map_err(|e| Error::read(&path, e))?;
                    if bytes.is_empty() && offset > 0 {
                        break;
                    }
                    let n = bytes.len() as u64;
                    let part = FilePart { path: name.clone(), length, offset, bytes };
                    self.to.put_zipped(kind::FILE, &part.encode())?;
                    offset += n;
                    if offset >= length || n == 0 {
                        break;
                    }
                }
                self.done.files += 1;
                self.done.file_bytes += length;
            }
        }
        Ok(())
    }
}
