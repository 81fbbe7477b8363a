//! Writes pprof's `profile.proto`, compressed by gzip: alloc_objects, alloc_space, inuse_objects and inuse_space of
//! each stack, with the modules as mappings.

use super::profile::Location;
use super::{ExportError, Source};
use flate2::Compression;
use flate2::write::GzEncoder;
use std::collections::HashMap;
use std::io::Write;

/// A protocol buffer message being built.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut v: u64) {
        while v >= 0x80 {
            self.0.push(v as u8 | 0x80);
            v >>= 7;
        }
        self.0.push(v as u8);
    }

    /// Appends an integer field; 0 is omitted, as in the format.
    fn int(&mut self, field: u64, v: u64) {
        if v != 0 {
            self.varint(field << 3);
            self.varint(v);
        }
    }

    fn bytes(&mut self, field: u64, bytes: &[u8]) {
        self.varint(field << 3 | 2);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    fn message(&mut self, field: u64, m: &Message) {
        self.bytes(field, &m.0);
    }

    fn packed(&mut self, field: u64, values: impl IntoIterator<Item = u64>) {
        let mut m = Message::default();
        values.into_iter().for_each(|v| m.varint(v));
        self.message(field, &m);
    }
}

/// String table; index 0 is the empty string.
struct Strings {
    all: Vec<String>,
    known: HashMap<String, u64>,
}

impl Strings {
    fn new() -> Self {
        Self { all: vec![String::new()], known: HashMap::from([(String::new(), 0)]) }
    }

    fn get(&mut self, s: &str) -> u64 {
        if let Some(n) = self.known.get(s) {
            return *n;
        }
        let n = self.all.len() as u64;
        self.all.push(s.to_owned());
        self.known.insert(s.to_owned(), n);
        n
    }
}

/// Function table, numbered from 1.
#[derive(Default)]
struct Functions {
    known: HashMap<(u64, u64), u64>,
    out: Message,
}

const KINDS: [(&str, &str); 4] = [
    ("alloc_objects", "count"),
    ("alloc_space", "bytes"),
    ("inuse_objects", "count"),
    ("inuse_space", "bytes"),
];

pub(super) fn write(source: &Source<'_>, out: &mut dyn Write) -> Result<(), ExportError> {
    let analysis = source.query.analysis(source.at)?;
    let profile = source.profile_of(&analysis, source.at);
    let meta = analysis.meta();
    let (mut p, mut strings, mut functions) =
        (Message::default(), Strings::new(), Functions::default());
    for (name, unit) in KINDS {
        p.message(1, &value_type(&mut strings, name, unit));
    }
    for s in &profile.stacks {
        let f = &s.figures;
        let mut sample = Message::default();
        sample.packed(1, s.locations.iter().map(|l| u64::from(*l) + 1));
        let values =
            [f.allocations + f.reallocations, f.allocated_bytes, f.live_count, f.live_bytes];
        // pprof's values are signed.
        sample.packed(2, values.map(|v| v.min(i64::MAX as u64)));
        p.message(2, &sample);
    }
    for (i, m) in meta.modules.values().enumerate() {
        let named = profile.locations.iter().any(|l| l.pc.module == m.number);
        let mut mapping = Message::default();
        mapping.int(1, i as u64 + 1);
        mapping.int(2, m.start);
        mapping.int(3, m.end);
        mapping.int(4, m.start.wrapping_sub(m.bias));
        mapping.int(5, strings.get(&m.path));
        let id: String = m.build_id.iter().map(|b| format!("{b:02x}")).collect();
        mapping.int(6, strings.get(&id));
        for field in [7, 8, 9, 10] {
            mapping.int(field, u64::from(named));
        }
        p.message(3, &mapping);
    }
    let mappings: HashMap<u32, u64> =
        meta.modules.keys().enumerate().map(|(i, n)| (*n, i as u64 + 1)).collect();
    for (i, l) in profile.locations.iter().enumerate() {
        let mapping = mappings.get(&l.pc.module).copied().unwrap_or(0);
        let m = location(i as u64 + 1, mapping, l, &mut strings, &mut functions);
        p.message(4, &m);
    }
    p.0.extend_from_slice(&functions.out.0);
    let inuse = strings.get("inuse_space");
    let period = value_type(&mut strings, "space", "bytes");
    let comment = format!("recorded by prof {}", meta.target.prof_version);
    let comment = strings.get(&comment);
    for s in &strings.all {
        p.bytes(6, s.as_bytes());
    }
    p.int(9, meta.target.wall_ns);
    p.int(10, analysis.duration_ns());
    p.message(11, &period);
    p.int(12, 1);
    p.packed(13, [comment]);
    p.int(14, inuse);
    let mut gz = GzEncoder::new(out, Compression::default());
    gz.write_all(&p.0)?;
    gz.finish()?;
    Ok(())
}

fn value_type(strings: &mut Strings, name: &str, unit: &str) -> Message {
    let mut m = Message::default();
    m.int(1, strings.get(name));
    m.int(2, strings.get(unit));
    m
}

fn location(
    id: u64,
    mapping: u64,
    l: &Location,
    strings: &mut Strings,
    functions: &mut Functions,
) -> Message {
    let mut m = Message::default();
    m.int(1, id);
    m.int(2, mapping);
    // pprof wants the address of the call instruction, not the return address behind it.
    m.int(3, l.pc.address.saturating_sub(u64::from(!l.pc.exact)));
    for f in l.frames.iter() {
        let Some(name) = &f.function else { continue };
        let (name, file) = (strings.get(name), strings.get(f.file.as_deref().unwrap_or_default()));
        let next = functions.known.len() as u64 + 1;
        let function = *functions.known.entry((name, file)).or_insert(next);
        if function == next {
            let mut of = Message::default();
            of.int(1, function);
            of.int(2, name);
            of.int(3, name);
            of.int(4, file);
            functions.out.message(5, &of);
        }
        let mut line = Message::default();
        line.int(1, function);
        line.int(2, f.line.unwrap_or(0).into());
        m.message(4, &line);
    }
    m
}
