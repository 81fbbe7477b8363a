//! A table whose columns are only known when it is written, as those of objects, and its page.

use crate::Job;
use crate::index::ScanError;
use crate::style::escaped;
use std::io::{self, Write};

/// The values of a column, by row. `None`: the row has none.
#[derive(Clone, Debug, PartialEq)]
pub enum Values {
    /// Whole numbers.
    Integers(Vec<Option<i64>>),
    /// Numbers.
    Floats(Vec<Option<f64>>),
    /// Yes or no.
    Flags(Vec<Option<bool>>),
    /// Texts.
    Texts(Vec<Option<String>>),
}

/// A column.
#[derive(Clone, Debug, PartialEq)]
pub struct TableColumn {
    /// The name, which no other column has.
    pub name: String,
    /// The values: as many as the table has rows.
    pub values: Values,
}

const STYLE: &str = "\
:root { color-scheme: light dark; --back: #fbfbfa; --text: #1d1f21; --soft: #666c72; --line: #dcdfe2; --head: #eef0f1; }
@media (prefers-color-scheme: dark) {
  :root { --back: #16181a; --text: #e4e6e8; --soft: #9aa1a8; --line: #33383d; --head: #24282c; }
}
body { margin: 0; padding: 1.5rem 1rem 4rem; background: var(--back); color: var(--text); font: 14px/1.5 system-ui, sans-serif; }
p { margin: 0 0 .8rem; color: var(--soft); }
table { border-collapse: collapse; }
th { position: sticky; top: 0; background: var(--head); text-align: left; font-weight: 600; white-space: nowrap; }
th, td { padding: .2rem .7rem; border-bottom: 1px solid var(--line); vertical-align: top; }
td { overflow-wrap: anywhere; }
.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
";

/// Writes the table as a page of its own, without scripts, which any browser shows.
///
/// # Errors
/// If `out` can't be written to, or the job of this thread is cancelled.
pub fn html_table(columns: &[TableColumn], rows: usize, out: &mut dyn Write) -> io::Result<()> {
    use prof_trace::values::text::count;
    let title = count(rows as u64, "row", "rows");
    out.write_all(b"<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n")?;
    out.write_all(b"<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n")?;
    writeln!(out, "<title>{title}</title>\n<style>{STYLE}</style></head>")?;
    writeln!(out, "<body><p>{title}</p>\n<table><thead><tr>")?;
    for c in columns {
        let class = class(&c.values);
        writeln!(out, "<th scope=\"col\"{class}>{}</th>", escaped(&c.name))?;
    }
    out.write_all(b"</tr></thead>\n<tbody>\n")?;
    for row in 0..rows {
        if row % 4096 == 0 && Job::is_current_cancelled() {
            return Err(io::Error::other(ScanError::Cancelled));
        }
        out.write_all(b"<tr>")?;
        for c in columns {
            write!(out, "<td{}>{}</td>", class(&c.values), escaped(&cell(&c.values, row)))?;
        }
        out.write_all(b"</tr>\n")?;
    }
    out.write_all(b"</tbody></table></body></html>\n")
}

fn class(values: &Values) -> &'static str {
    match values {
        Values::Integers(_) | Values::Floats(_) => " class=\"n\"",
        Values::Flags(_) | Values::Texts(_) => "",
    }
}

/// Returns the text of a cell, which is empty without a value.
fn cell(values: &Values, row: usize) -> String {
    fn text<T: ToString>(all: &[Option<T>], row: usize) -> String {
        all.get(row).and_then(Option::as_ref).map_or(String::new(), T::to_string)
    }
    match values {
        Values::Integers(all) => text(all, row),
        Values::Floats(all) => text(all, row),
        Values::Flags(all) => text(all, row),
        Values::Texts(all) => text(all, row),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_a_row_for_each_and_names_end_no_element() {
        let column = |name: &str, values| TableColumn { name: name.into(), values };
        let columns = [
            column("a<b", Values::Texts(vec![Some("</td>\"&".into()), None])),
            column("n", Values::Integers(vec![None, Some(-5)])),
        ];
        let mut out = Vec::new();
        html_table(&columns, 2, &mut out).expect("written");
        let text = String::from_utf8(out).expect("text");
        assert!(text.contains("<th scope=\"col\">a&lt;b</th>"), "{text}");
        assert!(
            text.contains("<tr><td>&lt;/td&gt;&quot;&amp;</td><td class=\"n\"></td></tr>"),
            "{text}"
        );
        assert!(text.contains("<tr><td></td><td class=\"n\">-5</td></tr>"), "{text}");
    }
}
