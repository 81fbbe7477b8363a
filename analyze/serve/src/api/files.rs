//! Exports, source lines, and the filter as a command line.

use crate::ask::Ask;
use crate::data;
use crate::reply::{Answer, Failure, Writer};
use prof_analyze::export::{Cost, ExportError, Format, Source};
use prof_analyze::query::{Filter, Query};
use prof_trace::ticks::Ticks;
use serde_json::json;
use std::fmt::Write as _;
use std::path::{Component, Path, PathBuf};

/// The policy of files that may have scripts of their own: they run without our origin.
pub(crate) const SANDBOX: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; \
    img-src data:; sandbox allow-scripts";

/// Returns a name for a downloaded file: nothing that a shell or a header has a meaning for.
pub(crate) fn file_name(name: &str, extension: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' };
    let stem: String = name.trim_end_matches(".prof").chars().map(plain).take(100).collect();
    let stem = stem.trim_start_matches('.');
    format!("{}.{extension}", if stem.is_empty() { "recording" } else { stem })
}

/// Begins an export of the selected blocks.
pub(crate) fn export_of(
    ask: Ask,
    filter: Filter,
    at: Option<Ticks>,
    (format, kind): (Format, &'static str),
    cost: Cost,
) -> Result<(Answer, Writer), Failure> {
    drop(data::query(&ask, &filter)?);
    if !format.is_built() {
        return Err(Failure::bad(
            "this prof was built without Parquet; csv and json have the same columns",
        ));
    }
    if format.needs_every_block() && !ask.index().analysis().capture().is_everything() {
        return Err(Failure::bad(ExportError::Partial.to_string()));
    }
    let open = ask.open.clone();
    let writer: Writer = Box::new(move |out| {
        let query = Query::new(&open.index, &filter).map_err(|e| e.to_string())?;
        let given = data::given(&filter);
        let source =
            Source { index: &open.index, query: &query, at, cost, filter: given, held: None };
        source.write(format, &mut Out(out)).map_err(|e| e.to_string())
    });
    let answer = Answer::new(kind, "").with("content-security-policy", SANDBOX);
    Ok((answer, writer))
}

/// Writes through a reference.
struct Out<'a>(&'a mut dyn std::io::Write);

impl std::io::Write for Out<'_> {
    fn write(&mut self, buf: &[u8]) -> std::io::Result<usize> {
        self.0.write(buf)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.0.flush()
    }
}

/// An export in one of the formats.
pub(crate) fn export(mut ask: Ask) -> Result<(Answer, Writer), Failure> {
    let name = ask.variable("format").to_owned();
    let format = Format::ALL.into_iter().find(|f| f.name() == name).ok_or_else(|| {
        let all = Format::ALL.map(Format::name);
        Failure::missing(format!("there is no format {name:?}; give one of {}", all.join(", ")))
    })?;
    let words: Vec<(&str, Cost)> = data::METRICS.iter().map(|m| (m.0, m.3)).collect();
    let cost = ask.params.one_of("cost", &words)?.unwrap_or_default();
    let file = file_name(&ask.recording.name(), format.ending());
    let at = data::moment(ask.open.index.analysis(), &mut ask.params, "at")?;
    let filter = ask.params.filter()?;
    let (answer, writer) = export_of(ask, filter, at, (format, data::mime(format)), cost)?;
    Ok((answer.with("content-disposition", format!("attachment; filename=\"{file}\"")), writer))
}

/// Returns the command line that shows what a filter selects.
pub(crate) fn to_command(ask: &mut Ask) -> Result<Answer, Failure> {
    let views = [
        ("report", "report"),
        ("leaks", "leaks"),
        ("tree", "report --tree"),
        ("threads", "report --threads"),
        ("histogram", "report --histogram"),
        ("stats", "report --stats"),
        ("fragmentation", "fragmentation"),
    ];
    let view = ask.params.one_of("view", &views)?.unwrap_or("report");
    let filter = ask.params.filter()?;
    let mut command = format!("prof {view} {}", quoted(&ask.recording.path.to_string_lossy()));
    for (name, value) in filter.given() {
        let _ = write!(command, " --{name} {}", quoted(value));
    }
    Answer::json(&json!({ "command": command }))
}

/// Quotes a word for a shell, if it needs that. A control character would be one for the terminal that it is pasted to.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_./=,:+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) && !word.starts_with('-') {
        return word.to_owned();
    }
    if word.chars().any(char::is_control) {
        let escaped: String = word
            .chars()
            .map(|c| match c {
                '\'' | '\\' => format!("\\{c}"),
                c if c.is_control() => format!("\\u{:04x}", c as u32),
                c => c.to_string(),
            })
            .collect();
        return format!("$'{escaped}'");
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Lines before and behind the one that is asked for.
const AROUND: u64 = 30;
/// Greatest length of a source file.
const LONGEST: u64 = 8 << 20;

/// Returns lines of a source file. It must be one of those that the recording's stacks name, and is looked for below
/// the folder that the server was given: no path of a request is ever opened.
pub(crate) fn source(ask: &mut Ask) -> Result<Answer, Failure> {
    let root = ask.shared.options.sources.clone();
    let root = root.ok_or_else(|| {
        Failure::missing(
            "source files are not shown; prof serve --sources DIR shows those below a folder",
        )
    })?;
    let file = ask.params.take("file")?.ok_or_else(|| Failure::of("file", "is needed"))?;
    let line = ask.params.number("line", u64::from(u32::MAX))?.unwrap_or(1).max(1);
    let names = ask.open.names();
    let frames = names.profile.locations.iter().flat_map(|l| l.frames.iter());
    let known = frames.filter_map(|f| f.file.as_deref()).find(|f| **f == *file);
    let known =
        known.ok_or_else(|| Failure::missing("no stack of this recording names that file"))?;
    let text = read_below(&root, Path::new(known))
        .ok_or_else(|| Failure::missing("the file is not below the folder of --sources"))?;
    let first = line.saturating_sub(AROUND).max(1);
    let lines: Vec<&str> =
        text.lines().skip(first as usize - 1).take(2 * AROUND as usize + 1).collect();
    Answer::json(&json!({ "file": known, "first_line": first, "lines": lines }))
}

/// Reads a file below a folder: with its whole path, or with the last parts of it, as the program may have been built
/// elsewhere.
fn read_below(root: &Path, path: &Path) -> Option<String> {
    use std::io::Read;
    let parts: Vec<_> = path.components().filter(|c| matches!(c, Component::Normal(_))).collect();
    for skip in 0..parts.len() {
        let below: PathBuf = parts[skip..].iter().collect();
        if let Ok(file) = prof_os::files::open_below(root, &below) {
            let mut bytes = Vec::new();
            file.take(LONGEST).read_to_end(&mut bytes).ok()?;
            return Some(String::from_utf8_lossy(&bytes).into_owned());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_files_are_harmless() {
        assert_eq!(file_name("prof.x.1.prof", "csv"), "prof.x.1.csv");
        assert_eq!(file_name("../a\"b\r\nc.prof", "csv"), "_a_b__c.csv");
        assert_eq!(file_name("", "csv"), "recording.csv");
    }

    #[test]
    fn words_are_quoted_for_a_shell() {
        assert_eq!(quoted("a/b.prof"), "a/b.prof");
        assert_eq!(quoted("it's"), r"'it'\''s'");
        assert_eq!(quoted("$(rm x)"), "'$(rm x)'");
        assert_eq!(quoted("a\nb'"), r"$'a\u000ab\''");
        assert_eq!(quoted("-x"), "'-x'");
    }
}
