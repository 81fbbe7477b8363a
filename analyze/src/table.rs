//! Formats tables: columns of numbers, with a name in the last column.

use crate::style::{BOLD, DIM, Style, chars as width, shorten};
use std::fmt::{self, Write};

/// A table of text: all columns but the last are numbers.
#[derive(Debug, Default)]
pub struct Table {
    head: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Creates a table with the titles of its columns.
    #[must_use]
    pub fn new(head: Vec<&'static str>) -> Self {
        Self { head, rows: Vec::new() }
    }

    /// Adds a row, with a cell for each column.
    pub fn row(&mut self, cells: Vec<String>) {
        debug_assert_eq!(cells.len(), self.head.len());
        self.rows.push(cells);
    }

    /// Writes the table.
    ///
    /// # Errors
    /// If writing fails.
    pub fn write(&self, style: Style, out: &mut String) -> fmt::Result {
        let last = self.head.len().saturating_sub(1);
        let widths: Vec<usize> = (0..last)
            .map(|c| {
                let cells = self.rows.iter().filter_map(|r| r.get(c)).map(|s| width(s));
                cells.chain([width(self.head[c])]).max().unwrap_or(0)
            })
            .collect();
        let numbers = widths.iter().map(|w| w + 2).sum::<usize>();
        let head: Vec<String> = self.head.iter().map(|h| (*h).to_owned()).collect();
        for (i, cells) in std::iter::once(&head).chain(&self.rows).enumerate() {
            let mut line = String::new();
            for (cell, w) in cells.iter().zip(&widths) {
                let pad = w.saturating_sub(width(cell));
                write!(line, "{:pad$}{cell}  ", "")?;
            }
            let mut name = cells.get(last).cloned().unwrap_or_default();
            if let Some(columns) = style.width {
                name = shorten(&name, columns.saturating_sub(numbers).max(20));
            }
            let text = format!("{line}{name}");
            let text = if i == 0 { style.paint(DIM, text.trim_end()) } else { text };
            writeln!(out, "{}", text.trim_end())?;
        }
        Ok(())
    }
}

/// Writes a title above a table or a list.
pub(crate) fn title(style: Style, text: &str, out: &mut String) -> fmt::Result {
    writeln!(out, "\n{}", style.paint(BOLD, text))
}
