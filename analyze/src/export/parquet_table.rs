//! Writes a table whose columns are only known when it is written as Parquet.

use super::ExportError;
use super::parquet::{Buffer, Column, GROUP, about, failed, properties};
use super::table::{TableColumn, Values};
use crate::Job;
use crate::index::ScanError;
use ::parquet::basic::{LogicalType, Repetition, Type as PhysicalType};
use ::parquet::data_type::ByteArray;
use ::parquet::errors::ParquetError;
use ::parquet::file::writer::SerializedFileWriter;
use ::parquet::schema::types::Type;
use std::io::{self, Write};
use std::ops::Range;
use std::sync::Arc;

/// Writes the table as Parquet, a row group at a time. Integers and floats have 64 bits, and any value may be missing.
///
/// # Errors
/// If `out` can't be written to, or the job of this thread is cancelled.
pub fn parquet_table(columns: &[TableColumn], out: &mut dyn Write) -> Result<(), ExportError> {
    let field = |c: &TableColumn| {
        let (physical, logical) = match c.values {
            Values::Integers(_) => (PhysicalType::INT64, None),
            Values::Floats(_) => (PhysicalType::DOUBLE, None),
            Values::Flags(_) => (PhysicalType::BOOLEAN, None),
            Values::Texts(_) => (PhysicalType::BYTE_ARRAY, Some(LogicalType::String)),
        };
        let field = Type::primitive_type_builder(&c.name, physical)
            .with_repetition(Repetition::OPTIONAL)
            .with_logical_type(logical);
        Ok(Arc::new(field.build()?))
    };
    let fields = columns.iter().map(field).collect::<Result<_, ParquetError>>().map_err(failed)?;
    let schema = Type::group_type_builder("object").with_fields(fields).build().map_err(failed)?;
    let rows = columns.iter().map(|c| rows_of(&c.values)).max().unwrap_or(0);
    let (buffer, about) = (Buffer::default(), about(None)?);
    let properties = Arc::new(properties(about)?);
    let mut writer =
        SerializedFileWriter::new(buffer.clone(), Arc::new(schema), properties).map_err(failed)?;
    for first in (0..rows).step_by(GROUP) {
        let mut group = writer.next_row_group().map_err(failed)?;
        for c in columns {
            if Job::is_current_cancelled() {
                return Err(io::Error::other(ScanError::Cancelled).into());
            }
            part(&c.values, first..rows.min(first + GROUP)).write(&mut group).map_err(failed)?;
        }
        group.close().map_err(failed)?;
        buffer.pass_on(out)?;
    }
    writer.close().map_err(failed)?;
    Ok(buffer.pass_on(out)?)
}

fn rows_of(values: &Values) -> usize {
    match values {
        Values::Integers(all) => all.len(),
        Values::Floats(all) => all.len(),
        Values::Flags(all) => all.len(),
        Values::Texts(all) => all.len(),
    }
}

/// Returns the values of some rows; a column that is too short has none.
fn part(values: &Values, rows: Range<usize>) -> Column {
    fn of<T, U>(all: &[Option<T>], rows: Range<usize>, to: impl Fn(&T) -> U) -> (Vec<U>, Vec<i16>) {
        let some = || rows.clone().map(|row| all.get(row).and_then(Option::as_ref));
        (some().flatten().map(to).collect(), some().map(|v| i16::from(v.is_some())).collect())
    }
    match values {
        Values::Integers(all) => {
            let (values, levels) = of(all, rows, |n| *n);
            Column::Int64(values, levels)
        }
        Values::Floats(all) => {
            let (values, levels) = of(all, rows, |x| *x);
            Column::Double(values, levels)
        }
        Values::Flags(all) => {
            let (values, levels) = of(all, rows, |is| *is);
            Column::Bool(values, levels)
        }
        Values::Texts(all) => {
            let (values, levels) = of(all, rows, |t| ByteArray::from(t.as_bytes().to_vec()));
            Column::Text(values, levels)
        }
    }
}
