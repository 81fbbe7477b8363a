//! Writes every mapping as CSV or as a part of the JSON, in the order in which they ended; those that are
//! there at the end come last, in the order in which they were made.

use super::{ExportError, Source};
use crate::maps::{Held, Map, What};
use serde::Serialize;
use std::io::{self, Write};

/// A mapping with the columns of the exports. Figures of use are those that were seen last up to the exported moment.
#[derive(Serialize)]
pub(super) struct MapRow<'a> {
    pub id: u32,
    pub address: u64,
    /// Address space: now, or last.
    pub size: u64,
    pub peak_size: u64,
    pub mapped_at_ns: u64,
    pub unmapped_at_ns: Option<u64>,
    /// Number of the stack; none: the call was not recorded.
    pub stack: Option<u32>,
    pub thread: Option<u32>,
    pub unmap_stack: Option<u32>,
    pub unmap_thread: Option<u32>,
    pub kind: &'static str,
    /// Permissions in the form of `/proc/PID/maps`.
    pub permissions: String,
    pub name: &'a str,
    /// Whether the mapping is from before the recording.
    pub before: bool,
    pub rss: u64,
    pub peak_rss: u64,
    pub anonymous: u64,
    pub dirty: u64,
    pub clean: u64,
    pub swap: u64,
    pub huge: u64,
    /// Resident bytes that are an allocator's: its blocks lie in them.
    pub allocator_rss: u64,
}

/// Names of the columns of CSV.
const NAMES: &str = "id,address,size,peak_size,mapped_at_ns,unmapped_at_ns,stack,thread,unmap_stack,unmap_thread,kind,\
                     permissions,before,rss,peak_rss,anonymous,dirty,clean,swap,huge,allocator_rss,name";

/// Calls `take` with each mapping that the export is about, until it fails.
pub(super) fn each(
    source: &Source<'_>,
    held: &Held<'_>,
    mut take: impl FnMut(&MapRow<'_>) -> io::Result<()>,
) -> Result<(), ExportError> {
    let (meta, until) = (source.index.analysis().meta(), source.until());
    let tid = |number: u32| meta.threads.get(&number).map_or(0, |t| t.tid);
    let node = |n: u32| (n != 0).then_some(n);
    let mut failed = None;
    held.each(|m: &Map, theirs| {
        if m.begun > until || failed.is_some() || (held.what == What::All && theirs.1 == u64::MAX) {
            return;
        }
        let end = m.end.filter(|e| e.ticks <= until);
        let by = end.and_then(|e| e.source);
        let u = if end.is_some() { Default::default() } else { m.usage_at(until) };
        let bit = |is: bool, c: char| if is { c } else { '-' };
        let p = m.perms;
        let letters = [bit(p.read, 'r'), bit(p.write, 'w'), bit(p.execute, 'x')];
        let shared = if p.shared { 's' } else { 'p' };
        let row = MapRow {
            id: m.id,
            address: m.address,
            size: m.size,
            peak_size: m.peak_size,
            mapped_at_ns: meta.clock.ns(m.begun),
            unmapped_at_ns: end.map(|e| meta.clock.ns(e.ticks)),
            stack: m.source.and_then(|s| node(s.node)),
            thread: m.source.map(|s| tid(s.thread)),
            unmap_stack: by.and_then(|s| node(s.node)),
            unmap_thread: by.map(|s| tid(s.thread)),
            kind: m.kind.name(),
            permissions: letters.into_iter().chain([shared]).collect(),
            name: &m.name,
            before: m.before,
            rss: u.rss,
            peak_rss: m.peak_rss,
            anonymous: u.anonymous,
            dirty: u.shared_dirty.saturating_add(u.private_dirty),
            clean: u.shared_clean.saturating_add(u.private_clean),
            swap: u.swap,
            huge: u.huge,
            allocator_rss: theirs.1.min(u.rss),
        };
        failed = take(&row).err();
    });
    failed.map_or(Ok(()), |e| Err(e.into()))
}

/// Returns a text as a field of CSV.
pub(super) fn field(text: &str) -> String {
    let text = super::one_line(text);
    match text.contains([',', '"']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text,
    }
}

pub(super) fn csv(
    source: &Source<'_>,
    held: &Held<'_>,
    out: &mut dyn Write,
) -> Result<(), ExportError> {
    writeln!(out, "{NAMES}")?;
    let some = |v: Option<u64>| v.map_or(String::new(), |v| v.to_string());
    let of = |v: Option<u32>| some(v.map(u64::from));
    each(source, held, |r| {
        write!(
            out,
            "{},{:#x},{},{},{},{},",
            r.id,
            r.address,
            r.size,
            r.peak_size,
            r.mapped_at_ns,
            some(r.unmapped_at_ns)
        )?;
        let (stack, thread) = (of(r.stack), of(r.thread));
        write!(out, "{stack},{thread},{},{},", of(r.unmap_stack), of(r.unmap_thread))?;
        write!(out, "{},{},{},", r.kind, r.permissions, u8::from(r.before))?;
        let use_of =
            [r.rss, r.peak_rss, r.anonymous, r.dirty, r.clean, r.swap, r.huge, r.allocator_rss];
        use_of.iter().try_for_each(|n| write!(out, "{n},"))?;
        writeln!(out, "{}", field(r.name))
    })
}

/// Writes the member `mappings` of the JSON: an array of objects.
pub(super) fn json(
    source: &Source<'_>,
    held: &Held<'_>,
    out: &mut dyn Write,
) -> Result<(), ExportError> {
    write!(out, "\"mappings\":[")?;
    let mut first = true;
    each(source, held, |r| {
        let comma = if std::mem::take(&mut first) { "" } else { "," };
        write!(out, "{comma}\n{}", serde_json::to_string(r).map_err(io::Error::from)?)
    })?;
    writeln!(out, "],")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::field;

    #[test]
    fn names_do_not_break_a_line_of_csv() {
        assert_eq!(field("/lib/a.so"), "/lib/a.so");
        assert_eq!(field("a,\"b\"\nc"), "\"a,\"\"b\"\" c\"");
    }
}
