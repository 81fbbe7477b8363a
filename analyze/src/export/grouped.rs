//! Writes groups of blocks, each of one stack, as tables: CSV, JSON and Parquet.

use super::mapped::field;
use super::{ExportError, Format, Source};
use crate::maps::Shower;
use crate::progress::Step;
use crate::report::{CaptureData, FrameData};
use serde::Serialize;
use std::io::{self, Write};

/// The blocks of one stack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GroupRow {
    /// Bytes ever allocated.
    pub size: u64,
    /// Number of blocks.
    pub count: u64,
    /// Bytes that are live at the end.
    pub leaked_size: u64,
    /// Number of blocks that are live at the end.
    pub leaked_count: u64,
    /// Time of the first block, in nanoseconds since the start of the recording.
    pub first_allocated_at_ns: u64,
    /// Number of the stack.
    pub stack: u32,
    /// The function that asked for the blocks.
    pub function: String,
}

/// A group with its frames, innermost first.
#[derive(Serialize)]
struct Framed<'a> {
    #[serde(flatten)]
    row: &'a GroupRow,
    frames: Vec<FrameData>,
}

fn label(f: &FrameData) -> String {
    let base = |path: &str| super::profile::base(path).to_owned();
    let name = match (&f.function, &f.module, &f.offset) {
        (Some(name), ..) => name.clone(),
        (None, Some(module), Some(offset)) => format!("{}+{offset}", base(module)),
        _ => f.address.clone(),
    };
    name.replace(';', ":")
}

impl Source<'_> {
    /// Writes groups in their order as CSV, JSON or Parquet, a row each. All other formats are made of the blocks that
    /// the source selects.
    ///
    /// # Errors
    /// As [`Source::write`].
    pub fn write_groups(
        &self,
        rows: &[GroupRow],
        format: Format,
        out: &mut dyn Write,
    ) -> Result<(), ExportError> {
        let mut shower = Shower::new(self.index.analysis());
        let step = Step::begin("looking names up", rows.len() as u64);
        let mut frames = |r: &GroupRow| {
            step.add(1);
            shower.frames(r.stack)
        };
        let mut backtrace = |r: &GroupRow| {
            let labels: Vec<String> = frames(r).iter().rev().map(label).collect();
            labels.join(";")
        };
        match format {
            Format::Csv => csv(rows, &mut backtrace, out)?,
            Format::Json | Format::JsonObjects => {
                let capture = CaptureData::new(self.index.analysis());
                let capture = serde_json::to_string(&capture).map_err(io::Error::from)?;
                write!(out, "{{\"version\":1,\"capture\":{capture},\n\"groups\":[")?;
                for (i, row) in rows.iter().enumerate() {
                    let group = Framed { row, frames: frames(row) };
                    let group = serde_json::to_string(&group).map_err(io::Error::from)?;
                    write!(out, "{}\n{group}", if i == 0 { "" } else { "," })?;
                }
                writeln!(out, "]}}")?;
            }
            #[cfg(feature = "parquet")]
            Format::Parquet => super::parquet::groups(self, rows, backtrace, out)?,
            format => return self.write(format, out),
        }
        out.flush()?;
        Ok(())
    }
}

fn csv(
    rows: &[GroupRow],
    backtrace: &mut impl FnMut(&GroupRow) -> String,
    out: &mut dyn Write,
) -> io::Result<()> {
    const NAMES: &str =
        "size,count,leaked_size,leaked_count,first_allocated_at_ns,stack,function,backtrace";
    writeln!(out, "{NAMES}")?;
    for r in rows {
        let GroupRow { size, count, leaked_size, leaked_count, stack, .. } = r;
        let (function, first) = (field(&r.function), r.first_allocated_at_ns);
        let trace = field(&backtrace(r));
        writeln!(
            out,
            "{size},{count},{leaked_size},{leaked_count},{first},{stack},{function},{trace}"
        )?;
    }
    Ok(())
}
