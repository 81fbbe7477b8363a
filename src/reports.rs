//! Reports of a running recording: their formats, and the names of their files.

use crate::new_file::{local_time, plain_name};
use clap::ValueEnum;
use clap::builder::PossibleValue;
use prof_analyze::export::Format;
use prof_os::Pid;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Reports that are written at a signal to the recorded process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reports {
    /// The signal.
    pub signal: u32,
    /// Folder and template of the reports' paths.
    pub to: Template,
    /// The format of the files.
    pub format: DumpFormat,
}

/// A path with words in braces, for which something else stands in each file's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Template {
    /// The folder that relative paths begin in. Braces in it have no meaning.
    pub folder: PathBuf,
    /// The path.
    pub text: String,
}

impl Template {
    /// Returns whether each file has a number in its name, so that no file is replaced.
    pub(crate) fn is_numbered(&self) -> bool {
        self.text.contains(NUMBER)
    }

    /// Returns the path of the next file of a process: the first with a number that does not exist yet. `None`: all
    /// numbers are taken. Without a number in the name all files are one, which may exist.
    pub(crate) fn path(&self, pid: Pid, comm: &str) -> Option<PathBuf> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let time = local_time(now.as_secs().cast_signed());
        let path = |n: u32| self.folder.join(expand(&self.text, pid, comm, n, &time));
        if !self.is_numbered() {
            return Some(path(1));
        }
        (1..=MOST).map(path).find(|p| !is_there(p))
    }
}

/// Parses the template of a file's name.
///
/// # Errors
/// A message that names a word in braces that stands for nothing.
pub(crate) fn template(text: &str) -> Result<String, String> {
    let words = text.split('{').skip(1).filter_map(|rest| rest.split_once('}')).map(|w| w.0);
    let is_name = |w: &&str| !w.is_empty() && w.bytes().all(|b| b.is_ascii_lowercase());
    match words.filter(is_name).find(|w| !["pid", "comm", "n", "time"].contains(w)) {
        Some(word) => Err(format!(
            "{{{word}}} stands for nothing; there are {{pid}}, {{comm}}, {{n}} and {{time}}"
        )),
        None => Ok(text.to_owned()),
    }
}

/// Returns whether there is a file, or a link of that name.
pub(crate) fn is_there(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok()
}

/// Format of a dump: a report's, or one of an export that shows blocks of one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DumpFormat {
    /// The text of `prof report`.
    Text,
    /// The figures of `prof report`, for programs.
    Json,
    /// An export.
    Export(Format),
}

impl ValueEnum for DumpFormat {
    fn value_variants<'a>() -> &'a [Self] {
        use Format::{Csv, Flamegraph, Folded, Html, Pprof, Speedscope};
        &[
            Self::Text,
            Self::Json,
            Self::Export(Folded),
            Self::Export(Flamegraph),
            Self::Export(Html),
            Self::Export(Pprof),
            Self::Export(Speedscope),
            Self::Export(Csv),
        ]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(match self {
            Self::Text => PossibleValue::new("text").help("The text of `prof report`"),
            Self::Json => {
                PossibleValue::new("json").help("The figures of `prof report`, for programs")
            }
            Self::Export(format) => return format.to_possible_value(),
        })
    }
}

impl DumpFormat {
    /// Returns the ending of a file's name.
    pub(crate) fn ending(self) -> &'static str {
        match self {
            Self::Text => "txt",
            Self::Json => "json",
            Self::Export(format) => format.ending(),
        }
    }
}

/// Word in a template for which a number stands.
const NUMBER: &str = "{n}";
/// Greatest number in the name of a file.
const MOST: u32 = 99_999;

/// Returns a template with its words in braces replaced. Other braces stay.
fn expand(template: &str, pid: Pid, comm: &str, n: u32, time: &str) -> String {
    let (pid, n, comm) = (pid.to_string(), n.to_string(), plain_name(comm));
    let words = [("{pid}", &*pid), ("{comm}", &*comm), (NUMBER, &*n), ("{time}", time)];
    let (mut out, mut rest) = (String::new(), template);
    while let Some(c) = rest.chars().next() {
        match words.iter().find(|(word, _)| rest.starts_with(word)) {
            Some((word, value)) => {
                out.push_str(value);
                rest = &rest[word.len()..];
            }
            None => {
                out.push(c);
                rest = &rest[c.len_utf8()..];
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_have_words_in_braces() {
        assert!(template("{pid}-{n}{}{A}{.txt").is_ok());
        assert!(template("a{bogus}").is_err_and(|e| e.starts_with("{bogus} stands for nothing")));
        let text = expand(
            "/x/{comm}.{pid}.{n}.{time}.{other}{",
            Pid::from_raw(7),
            "a/b {n}",
            3,
            "20261121-061500",
        );
        assert_eq!(text, "/x/a_b__n_.7.3.20261121-061500.{other}{");
    }

    #[test]
    fn numbers_are_the_first_free_ones_and_braces_in_the_folder_are_its_own() {
        let dir = std::env::temp_dir().join(format!("prof-reports-{}-{{n}}", std::process::id()));
        fs::create_dir_all(&dir).expect("a folder");
        let template = |text: &str| Template { folder: dir.clone(), text: text.into() };
        let next = |text: &str| template(text).path(Pid::from_raw(7), "a").expect("a path");
        fs::write(dir.join("a.1"), "").expect("a file");
        std::os::unix::fs::symlink("nowhere", dir.join("a.2")).expect("a link");
        assert_eq!(next("{comm}.{n}"), dir.join("a.3"));
        assert_eq!(next("a.1"), dir.join("a.1"));
        assert_eq!(next("/{pid}"), Path::new("/7"));
        fs::remove_dir_all(&dir).expect("removed");
    }
}
