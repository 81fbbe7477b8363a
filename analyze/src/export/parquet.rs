//! Writes Parquet, for engines that query more than one machine holds: a file of blocks, and one of stacks.
//!
//! `parquet` has a row for each block (or each mapping), with the columns of the CSV and the index of its stack. `parquet-stacks` has a
//! row for each frame of each stack, `depth` 0 being the innermost. The two are joined by `stack`. Both are written a
//! row group at a time, compressed by zstd. The file's metadata has `prof.version` and, if not all blocks are recorded,
//! `prof.capture` as JSON.

use super::graph::Graph;
use super::rows::{self, Row};
use super::{ExportError, GroupRow, Source, mapped};
use crate::index::ScanError;
use crate::maps::Held;
use crate::report::CaptureData;
use crate::{Analysis, Job};
use ::parquet::basic::{Compression, ZstdLevel};
use ::parquet::data_type::Int64Type;
use ::parquet::data_type::{BoolType, ByteArray, ByteArrayType, DataType, DoubleType, Int32Type};
use ::parquet::errors::ParquetError;
use ::parquet::file::metadata::KeyValue;
use ::parquet::file::properties::WriterProperties;
use ::parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use ::parquet::schema::parser::parse_message_type;
use std::collections::HashSet;
use std::io::{self, Write};
use std::sync::{Arc, Mutex};

/// Rows of a row group, which is held in memory while it is built.
pub(super) const GROUP: usize = 1 << 17;

const BLOCKS: &str = "message block {
    required int64 address (INTEGER(64,false));
    required int64 size (INTEGER(64,false));
    required int64 allocated_at_ns (INTEGER(64,false));
    optional int64 freed_at_ns (INTEGER(64,false));
    required int32 stack (INTEGER(32,false));
    required int32 thread (INTEGER(32,false));
    optional int32 free_stack (INTEGER(32,false));
    optional int32 free_thread (INTEGER(32,false));
    required boolean temporary;
    required boolean by_realloc;
    required boolean to_realloc;
    required boolean implied_free;
    optional int64 chain (INTEGER(64,false));
    required int64 chain_position (INTEGER(64,false));
    optional int64 usable_size (INTEGER(64,false));
    optional int32 mmapped (INTEGER(32,false));
    optional int32 main_arena (INTEGER(32,false));
    required double weight;
}";

const MAPPINGS: &str = "message mapping {
    required int64 id (INTEGER(64,false));
    required int64 address (INTEGER(64,false));
    required int64 size (INTEGER(64,false));
    required int64 peak_size (INTEGER(64,false));
    required int64 mapped_at_ns (INTEGER(64,false));
    optional int64 unmapped_at_ns (INTEGER(64,false));
    optional int32 stack (INTEGER(32,false));
    optional int32 thread (INTEGER(32,false));
    optional int32 unmap_stack (INTEGER(32,false));
    optional int32 unmap_thread (INTEGER(32,false));
    required boolean before;
    required int64 rss (INTEGER(64,false));
    required int64 peak_rss (INTEGER(64,false));
    required int64 anonymous (INTEGER(64,false));
    required int64 dirty (INTEGER(64,false));
    required int64 clean (INTEGER(64,false));
    required int64 swap (INTEGER(64,false));
    required int64 huge (INTEGER(64,false));
    required int64 allocator_rss (INTEGER(64,false));
    required byte_array kind (STRING);
    required byte_array permissions (STRING);
    required byte_array name (STRING);
}";

const GROUPS: &str = "message group {
    required int64 size (INTEGER(64,false));
    required int64 count (INTEGER(64,false));
    required int64 leaked_size (INTEGER(64,false));
    required int64 leaked_count (INTEGER(64,false));
    required int64 first_allocated_at_ns (INTEGER(64,false));
    required int32 stack (INTEGER(32,false));
    required byte_array function (STRING);
    required byte_array backtrace (STRING);
}";

const STACKS: &str = "message frame {
    required int32 stack (INTEGER(32,false));
    required int32 depth (INTEGER(32,false));
    required int64 address (INTEGER(64,false));
    optional byte_array function (STRING);
    optional byte_array file (STRING);
    optional int32 line (INTEGER(32,false));
    optional byte_array module (STRING);
    optional int64 offset (INTEGER(64,false));
    required boolean inlined;
}";

const NODES: &str = "message node {
    required int64 id (INTEGER(64,false));
    optional int64 address (INTEGER(64,false));
    optional int64 size (INTEGER(64,false));
    optional int32 stack (INTEGER(32,false));
    required byte_array kind (STRING);
    optional byte_array name (STRING);
    optional byte_array class (STRING);
    optional byte_array allocated_by (STRING);
}";

const POINTERS: &str = "message pointer {
    required int64 from_id (INTEGER(64,false));
    required int64 to_id (INTEGER(64,false));
    optional int64 address (INTEGER(64,false));
}";

/// Returns what the file says of itself.
pub(super) fn about(analysis: Option<&Analysis>) -> io::Result<Vec<KeyValue>> {
    let mut about =
        vec![KeyValue::new("prof.version".to_owned(), env!("CARGO_PKG_VERSION").to_owned())];
    if let Some(c) = analysis.and_then(CaptureData::new) {
        about.push(KeyValue::new("prof.capture".to_owned(), serde_json::to_string(&c)?));
    }
    Ok(about)
}

pub(super) fn properties(about: Vec<KeyValue>) -> io::Result<WriterProperties> {
    let level = ZstdLevel::try_new(3).map_err(failed)?;
    Ok(WriterProperties::builder()
        .set_compression(Compression::ZSTD(level))
        .set_key_value_metadata(Some(about))
        .build())
}

/// The bytes written by the Parquet writer and not yet passed on.
#[derive(Clone, Default)]
pub(super) struct Buffer(Arc<Mutex<Vec<u8>>>);

impl Write for Buffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(|e| e.into_inner()).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Buffer {
    pub(super) fn pass_on(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut bytes = self.0.lock().unwrap_or_else(|e| e.into_inner());
        out.write_all(&bytes)?;
        bytes.clear();
        Ok(())
    }
}

/// A column of a row group: its values, and definition levels that say which rows have one.
pub(super) enum Column {
    Int64(Vec<i64>, Vec<i16>),
    Int32(Vec<i32>, Vec<i16>),
    Bool(Vec<bool>, Vec<i16>),
    Double(Vec<f64>, Vec<i16>),
    Text(Vec<ByteArray>, Vec<i16>),
}

impl Column {
    fn long() -> Self {
        Column::Int64(Vec::new(), Vec::new())
    }

    fn int() -> Self {
        Column::Int32(Vec::new(), Vec::new())
    }

    fn bool() -> Self {
        Column::Bool(Vec::new(), Vec::new())
    }

    fn text() -> Self {
        Column::Text(Vec::new(), Vec::new())
    }

    fn put(&mut self, v: Option<u64>) {
        let there = i16::from(v.is_some());
        match self {
            Column::Int64(values, levels) => {
                values.extend(v.map(|v| v as i64));
                levels.push(there);
            }
            Column::Int32(values, levels) => {
                values.extend(v.map(|v| v as u32 as i32));
                levels.push(there);
            }
            Column::Bool(values, _) => values.push(v.unwrap_or(0) != 0),
            Column::Double(..) | Column::Text(..) => {}
        }
    }

    fn put_text(&mut self, v: Option<&str>) {
        if let Column::Text(values, levels) = self {
            values.extend(v.map(|v| ByteArray::from(v.as_bytes().to_vec())));
            levels.push(i16::from(v.is_some()));
        }
    }

    fn put_double(&mut self, v: f64) {
        if let Column::Double(values, _) = self {
            values.push(v);
        }
    }

    pub(super) fn write<W: Write + Send>(
        &mut self,
        group: &mut SerializedRowGroupWriter<'_, W>,
    ) -> Result<(), ParquetError> {
        match self {
            Column::Int64(values, levels) => write::<Int64Type, W>(group, values, levels),
            Column::Int32(values, levels) => write::<Int32Type, W>(group, values, levels),
            Column::Bool(values, levels) => write::<BoolType, W>(group, values, levels),
            Column::Double(values, levels) => write::<DoubleType, W>(group, values, levels),
            Column::Text(values, levels) => write::<ByteArrayType, W>(group, values, levels),
        }
    }
}

/// Writes the next column of a row group, and empties it. The definition levels of a required column are ignored.
fn write<T: DataType, W: Write + Send>(
    group: &mut SerializedRowGroupWriter<'_, W>,
    values: &mut Vec<T::T>,
    levels: &mut Vec<i16>,
) -> Result<(), ParquetError> {
    let missing = || ParquetError::General("the schema has fewer columns".into());
    let mut column = group.next_column()?.ok_or_else(missing)?;
    let there = (!levels.is_empty()).then_some(&levels[..]);
    column.typed::<T>().write_batch(values, there, None)?;
    column.close()?;
    values.clear();
    levels.clear();
    Ok(())
}

pub(super) fn failed(e: ParquetError) -> io::Error {
    match e {
        ParquetError::External(e) => io::Error::other(e),
        e => io::Error::other(e.to_string()),
    }
}

/// A file being written.
struct Table<'a> {
    writer: SerializedFileWriter<Buffer>,
    buffer: Buffer,
    out: &'a mut dyn Write,
    columns: Vec<Column>,
    rows: usize,
}

impl<'a> Table<'a> {
    fn new(
        source: &Source<'_>,
        schema: &str,
        columns: Vec<Column>,
        out: &'a mut dyn Write,
    ) -> io::Result<Self> {
        Self::of(source.index.analysis(), schema, columns, out)
    }

    fn of(
        analysis: &Analysis,
        schema: &str,
        columns: Vec<Column>,
        out: &'a mut dyn Write,
    ) -> io::Result<Self> {
        let properties = properties(about(Some(analysis))?)?;
        let schema = Arc::new(parse_message_type(schema).map_err(failed)?);
        let buffer = Buffer::default();
        let writer = SerializedFileWriter::new(buffer.clone(), schema, Arc::new(properties));
        Ok(Self { writer: writer.map_err(failed)?, buffer, out, columns, rows: 0 })
    }

    fn end_row(&mut self) -> io::Result<()> {
        self.rows += 1;
        if self.rows < GROUP { Ok(()) } else { self.end_group() }
    }

    fn end_group(&mut self) -> io::Result<()> {
        let mut group = self.writer.next_row_group().map_err(failed)?;
        for c in &mut self.columns {
            // Packing all columns takes a tenth of a second and more.
            if Job::is_current_cancelled() {
                return Err(io::Error::other(ScanError::Cancelled));
            }
            c.write(&mut group).map_err(failed)?;
        }
        group.close().map_err(failed)?;
        self.rows = 0;
        self.buffer.pass_on(self.out)
    }

    fn finish(mut self) -> io::Result<()> {
        if self.rows > 0 {
            self.end_group()?;
        }
        self.writer.close().map_err(failed)?;
        self.buffer.pass_on(self.out)
    }
}

pub(super) fn blocks(source: &Source<'_>, out: &mut dyn Write) -> Result<(), ExportError> {
    let mut columns: Vec<Column> = (0..17)
        .map(|i| match i {
            4..=7 | 15 | 16 => Column::int(),
            8..=11 => Column::bool(),
            _ => Column::long(),
        })
        .collect();
    columns.push(Column::Double(Vec::new(), Vec::new()));
    let mut table = Table::new(source, BLOCKS, columns, out)?;
    rows::each(source, |r: &Row| {
        let values = [
            Some(r.address),
            Some(r.size),
            Some(r.allocated_at_ns),
            r.freed_at_ns,
            Some(r.stack.into()),
            Some(r.thread.into()),
            r.free_stack.map(u64::from),
            r.free_thread.map(u64::from),
            Some(r.temporary.into()),
            Some(r.by_realloc.into()),
            Some(r.to_realloc.into()),
            Some(r.implied_free.into()),
            r.chain,
            Some(r.chain_position),
            r.usable_size,
            r.mmapped.map(u64::from),
            r.main_arena.map(u64::from),
        ];
        table.columns.iter_mut().zip(values).for_each(|(c, v)| c.put(v));
        table.columns[17].put_double(r.weight);
        table.end_row()
    })?;
    Ok(table.finish()?)
}

/// Writes the nodes of a graph, a row for each.
pub(super) fn nodes(
    analysis: &Analysis,
    graph: &dyn Graph,
    out: &mut dyn Write,
) -> Result<(), ExportError> {
    let numbers = (0..4).map(|i| if i == 3 { Column::int() } else { Column::long() });
    let columns = numbers.chain((0..4).map(|_| Column::text())).collect();
    let mut table = Table::of(analysis, NODES, columns, out)?;
    graph.each_node(&mut |n| {
        let numbers = [Some(n.id), n.address, n.size, n.stack.map(u64::from)];
        let texts = [Some(n.kind), n.name, n.class, n.allocated_by];
        table.columns[..4].iter_mut().zip(numbers).for_each(|(c, v)| c.put(v));
        table.columns[4..].iter_mut().zip(texts).for_each(|(c, v)| c.put_text(v));
        table.end_row()
    })?;
    Ok(table.finish()?)
}

/// Writes the pointers of a graph, a row for each.
pub(super) fn pointers(
    analysis: &Analysis,
    graph: &dyn Graph,
    out: &mut dyn Write,
) -> Result<(), ExportError> {
    let columns = (0..3).map(|_| Column::long()).collect();
    let mut table = Table::of(analysis, POINTERS, columns, out)?;
    graph.each_pointer(&mut |p| {
        let values = [Some(p.from), Some(p.to), p.at];
        table.columns.iter_mut().zip(values).for_each(|(c, v)| c.put(v));
        table.end_row()
    })?;
    Ok(table.finish()?)
}

pub(super) fn mappings(
    source: &Source<'_>,
    held: &Held<'_>,
    out: &mut dyn Write,
) -> Result<(), ExportError> {
    const NUMBERS: usize = 19;
    let mut columns: Vec<Column> = (0..NUMBERS)
        .map(|i| match i {
            6..=9 => Column::int(),
            10 => Column::bool(),
            _ => Column::long(),
        })
        .collect();
    columns.extend((0..3).map(|_| Column::text()));
    let mut table = Table::new(source, MAPPINGS, columns, out)?;
    mapped::each(source, held, |r| {
        let values: [Option<u64>; NUMBERS] = [
            Some(r.id.into()),
            Some(r.address),
            Some(r.size),
            Some(r.peak_size),
            Some(r.mapped_at_ns),
            r.unmapped_at_ns,
            r.stack.map(u64::from),
            r.thread.map(u64::from),
            r.unmap_stack.map(u64::from),
            r.unmap_thread.map(u64::from),
            Some(r.before.into()),
            Some(r.rss),
            Some(r.peak_rss),
            Some(r.anonymous),
            Some(r.dirty),
            Some(r.clean),
            Some(r.swap),
            Some(r.huge),
            Some(r.allocator_rss),
        ];
        let (numbers, texts) = table.columns.split_at_mut(NUMBERS);
        numbers.iter_mut().zip(values).for_each(|(c, v)| c.put(v));
        let words = [r.kind, &r.permissions, r.name];
        texts.iter_mut().zip(words).for_each(|(c, t)| c.put_text(Some(t)));
        table.end_row()
    })?;
    Ok(table.finish()?)
}

/// Writes a row for each group, with its stack as a text.
pub(super) fn groups(
    source: &Source<'_>,
    rows: &[GroupRow],
    mut backtrace: impl FnMut(&GroupRow) -> String,
    out: &mut dyn Write,
) -> Result<(), ExportError> {
    let mut columns: Vec<Column> = (0..5).map(|_| Column::long()).collect();
    columns.extend([Column::int(), Column::text(), Column::text()]);
    let mut table = Table::new(source, GROUPS, columns, out)?;
    for r in rows {
        let numbers = [
            r.size,
            r.count,
            r.leaked_size,
            r.leaked_count,
            r.first_allocated_at_ns,
            u64::from(r.stack),
        ];
        let (all, texts) = table.columns.split_at_mut(numbers.len());
        all.iter_mut().zip(numbers).for_each(|(c, n)| c.put(Some(n)));
        let words = [r.function.clone(), backtrace(r)];
        texts.iter_mut().zip(&words).for_each(|(c, t)| c.put_text(Some(t)));
        table.end_row()?;
    }
    Ok(table.finish()?)
}

pub(super) fn stacks(source: &Source<'_>, out: &mut dyn Write) -> Result<(), ExportError> {
    let mut profile = source.profile_of(&source.query.analysis(source.at)?, source.at);
    let mut known = HashSet::new();
    profile.stacks.retain(|s| (s.node != 0 || !s.of_maps) && known.insert(s.node));
    let columns = vec![
        Column::int(),
        Column::int(),
        Column::long(),
        Column::text(),
        Column::text(),
        Column::int(),
        Column::text(),
        Column::long(),
        Column::bool(),
    ];
    let mut table = Table::new(source, STACKS, columns, out)?;
    for s in &profile.stacks {
        for (depth, f) in profile.frames(s).enumerate() {
            let [stack, at, address, function, file, line, module, offset, inlined] =
                &mut table.columns[..]
            else {
                break;
            };
            stack.put(Some(s.node.into()));
            at.put(Some(depth as u64));
            address.put(Some(f.address));
            function.put_text(f.function.as_deref());
            file.put_text(f.file.as_deref());
            line.put(f.line.map(u64::from));
            module.put_text(f.module.as_deref());
            offset.put(f.offset);
            inlined.put(Some(f.inlined.into()));
            table.end_row()?;
        }
    }
    Ok(table.finish()?)
}
