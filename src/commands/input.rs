//! Options that all commands on recordings have in common: which recording, and which of its blocks.

use crate::failure::usage;
use crate::family::folder::Folder;
use crate::family::joined;
use crate::family::journal::Losses;
use crate::term::say;
use anyhow::{Context, Result, bail};
use clap::error::ErrorKind as ClapError;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use prof_analyze::index::{IndexOptions, Keep};
use prof_analyze::query::{FIELDS, Filter, Query};
use prof_analyze::symbols::{Debuginfod, SymbolCache, SymbolOptions};
use prof_analyze::{Analysis, Index, LoadOptions};
use prof_os::Pid;
use prof_trace::values::text::count;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Options that choose the recording, and its blocks.
#[derive(Args, Clone, Debug)]
pub(crate) struct InputArgs {
    /// A recording, the folder of a family, or the id of a process that is being recorded
    /// [default: the newest recording in the current folder]
    #[arg(value_name = "FILE|PID")]
    pub input: Option<String>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub index: IndexArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub filter: FilterArgs,
}

/// Options for the index.
#[derive(Args, Clone, Debug)]
pub(crate) struct IndexArgs {
    /// Don't use or write an index (FILE.idx beside the recording, or in ~/.cache/prof/index where that
    /// can't be written); recordings of less than 32 MiB get none anyway
    #[arg(long, help_heading = "Index")]
    pub no_index: bool,
    /// Write an index however short the recording is
    #[arg(long = "index", help_heading = "Index", conflicts_with = "no_index")]
    pub index: bool,
    /// Of the folder of a family, take this process alone (may be given again)
    #[arg(long, help_heading = "Families", value_name = "PID")]
    pub pid: Vec<Pid>,
    /// With --pid: count the blocks, too, that the process has from its parents, if it was recorded from its fork on
    #[arg(long, help_heading = "Families", requires = "pid")]
    pub inherited: bool,
    /// The folder for the index
    #[arg(long, value_name = "DIR", help_heading = "Index", conflicts_with = "no_index")]
    pub index_dir: Option<PathBuf>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub symbols: SymbolArgs,
}

/// Options that say where to look for symbols, and how to show them.
#[derive(Args, Clone, Debug)]
pub(crate) struct SymbolArgs {
    /// Look for programs, debug files (by build id, by their link, by name) and perf-PID.map in this
    /// folder first (may be given again)
    #[arg(long, help_heading = "Symbols", value_name = "DIR")]
    pub debug_path: Vec<PathBuf>,
    /// Look for the programs and libraries of the recording below this folder: the root of another
    /// machine
    #[arg(long, help_heading = "Symbols", value_name = "DIR")]
    pub sysroot: Option<PathBuf>,
    /// Show names of functions without template arguments and parameters
    #[arg(long, help_heading = "Symbols")]
    pub short_names: bool,
    /// Pass over functions with this name, too, as over allocators and their wrappers, in the search for the function
    /// that asked for memory (a regular expression; may be given again)
    #[arg(long, help_heading = "Symbols", value_name = "REGEX", value_parser = SymbolOptions::skip_pattern)]
    pub skip: Vec<String>,
    /// Do not pass over wrappers of an allocator and functions of a standard library in the search for the function
    /// that asked for memory
    #[arg(long, help_heading = "Symbols")]
    pub show_wrappers: bool,
    /// Do not use the cache of function names in ~/.cache/prof, and do not add to it
    #[arg(long, help_heading = "Symbols")]
    pub no_symbol_cache: bool,
}

impl SymbolArgs {
    /// Returns where symbols are looked for, and how they are shown.
    ///
    /// # Errors
    /// If a folder that was named is none.
    pub(crate) fn options(&self) -> Result<SymbolOptions> {
        let symbols = self;
        for dir in symbols.debug_path.iter().chain(&symbols.sysroot) {
            if !dir.is_dir() {
                return Err(usage(format!("{} is no folder", dir.display())));
            }
        }
        Ok(SymbolOptions {
            debug_paths: symbols.debug_path.clone(),
            sysroot: symbols.sysroot.clone(),
            short_names: symbols.short_names,
            skip: symbols.skip.clone(),
            show_wrappers: symbols.show_wrappers,
            cache: if symbols.no_symbol_cache { None } else { SymbolCache::of_user() },
            servers: Debuginfod::of_environment(crate::term::say),
        })
    }
}

impl IndexArgs {
    /// Returns the options as they are if none is given.
    pub(crate) fn plain() -> Self {
        let symbols = SymbolArgs {
            debug_path: Vec::new(),
            sysroot: None,
            short_names: false,
            skip: Vec::new(),
            show_wrappers: false,
            no_symbol_cache: false,
        };
        Self {
            no_index: false,
            index: false,
            pid: Vec::new(),
            inherited: false,
            index_dir: None,
            symbols,
        }
    }

    fn options(&self) -> IndexOptions {
        let keep = match (self.no_index, self.index) {
            (true, _) => Keep::Never,
            (_, true) => Keep::Always,
            _ => Keep::Auto,
        };
        // Leaking it is harmless, as there is one for each run of the program.
        let dir = self.index_dir.as_ref().map(|d| &*Box::leak(d.clone().into_boxed_path()));
        IndexOptions { keep, load: LoadOptions::default(), dir }
    }

    /// Returns where symbols are looked for, and how they are shown.
    ///
    /// # Errors
    /// If a folder that was named is none.
    pub(crate) fn symbol_options(&self) -> Result<SymbolOptions> {
        self.symbols.options()
    }

    /// Opens a recording, or those of a family as one.
    ///
    /// # Errors
    /// If it can't be read.
    pub(crate) fn open(&self, path: &Path) -> Result<Index> {
        crate::progress::install();
        let symbols = self.symbol_options()?;
        let (path, losses) = self.of_family(path, &symbols)?;
        let mut index = Index::open(&path, &self.options()).map_err(|e| usage(e.to_string()))?;
        index.set_symbol_options(symbols);
        losses.note_in(index.analysis_mut());
        if let (Some(at), true) = (index.path(), index.was_made()) {
            log::info!("made the index {}", at.display());
        }
        Ok(index)
    }

    /// Opens a recording that grows; returns `None` if it can't be followed, as those of a family can't.
    ///
    /// # Errors
    /// If it can't be read.
    #[cfg(feature = "serve")]
    pub(crate) fn grow(&self, path: &Path) -> Result<Option<prof_analyze::Growing>> {
        if self.no_index || Folder::open(path).is_some() {
            return Ok(None);
        }
        crate::progress::install();
        let symbols = self.symbol_options()?;
        let opened =
            prof_analyze::Growing::open(path, &self.options()).map_err(|e| usage(e.to_string()))?;
        Ok(opened.map(|mut growing| {
            growing.set_symbol_options(symbols);
            growing
        }))
    }
}

impl IndexArgs {
    /// Returns the recording of a family's processes as one, if the path is that of its folder, and what the family has lost,
    /// which is said on standard error; else the path.
    ///
    /// # Errors
    /// If they can't be read.
    pub(crate) fn of_family(
        &self,
        path: &Path,
        symbols: &SymbolOptions,
    ) -> Result<(PathBuf, Losses)> {
        let Some(folder) = Folder::open(path) else {
            return match self.pid.is_empty() {
                true => Ok((path.to_owned(), Losses::default())),
                false => Err(usage(format!("--pid: {} is no folder of a family", path.display()))),
            };
        };
        if self.inherited {
            let joined = joined::with_inherited(&folder, &self.pid, symbols)?;
            return Ok((joined, Losses::default()));
        }
        let (joined, losses) = joined::recording(&folder, &self.pid, symbols)?;
        losses.sentences.iter().for_each(|line| say(line));
        Ok((joined, losses))
    }

    /// Opens a recording for a question about one process.
    ///
    /// # Errors
    /// If it can't be read, or is that of several processes.
    pub(crate) fn open_one(&self, path: &Path) -> Result<Index> {
        if self.inherited {
            return Err(usage(
                "--inherited is about blocks; mappings, resident memory, allocators and scans are asked for without it",
            ));
        }
        let index = self.open(path)?;
        of_one(&index)?;
        Ok(index)
    }
}

/// Prints which data are missing in a recording, for commands whose output has no place for that.
pub(crate) fn say_losses(analysis: &Analysis) {
    let name = analysis.shown_path().display().to_string();
    for note in analysis.notes() {
        say(&format!("{name}: {note}"));
    }
    let lost = analysis.meta().counters.lost;
    if lost > 0 {
        say(&format!(
            "{name}: {} lost: the figures are without them",
            count(lost, "event was", "events were")
        ));
    }
}

/// Returns an error if a recording is of several processes.
pub(crate) fn of_one(index: &Index) -> Result<()> {
    if !prof_analyze::rewrite::is_joined(&index.analysis().path()) {
        return Ok(());
    }
    let all = index.analysis().meta().target.cmdline.join(", ");
    Err(usage(format!(
        "mappings, resident memory, allocators and scans are those of one process; --pid names it: {all}"
    )))
}

/// The filter options: one for each field of the grammar.
#[derive(Clone, Debug, Default)]
pub(crate) struct FilterArgs(pub Filter);

impl FromArgMatches for FilterArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut filters = Self::default();
        filters.update_from_arg_matches(matches)?;
        Ok(filters)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        for field in FIELDS {
            for value in matches.get_many::<String>(field.name).into_iter().flatten() {
                let set = self.0.set(field.name, value);
                set.map_err(|e| clap::Error::raw(ClapError::ValueValidation, e))?;
            }
        }
        for (name, add) in LISTS {
            for path in matches.get_many::<PathBuf>(name).into_iter().flatten() {
                let added =
                    read_list(path).and_then(|t| add(&mut self.0, &t, &path.to_string_lossy()));
                let wrong =
                    |e| clap::Error::raw(ClapError::ValueValidation, format!("--{name}: {e}"));
                added.map_err(wrong)?;
            }
        }
        if matches.get_flag(EMBEDDED) {
            self.0.suppress_embedded();
        }
        Ok(())
    }
}

/// A function that adds a list to a filter.
type AddList = fn(&mut Filter, &str, &str) -> Result<(), String>;

/// Options that name a file with a list.
const LISTS: [(&str, AddList); 2] =
    [("ignore", Filter::ignore), ("suppressions", Filter::suppress)];
const EMBEDDED: &str = "embedded-suppressions";

/// Greatest length of a list.
const LONGEST_LIST: u64 = 1 << 20;

/// Adds a file of LeakSanitizer's suppressions to a filter.
///
/// # Errors
/// A message if it can't be read.
pub(crate) fn add_suppressions(filter: &mut Filter, path: &Path) -> Result<(), String> {
    filter.suppress(&read_list(path)?, &path.to_string_lossy())
}

fn read_list(path: &Path) -> Result<String, String> {
    let bytes = prof_os::files::read_at_most(path, LONGEST_LIST + 1)
        .map_err(|e| format!("cannot read {}: {e}", path.display()))?;
    if bytes.len() as u64 > LONGEST_LIST {
        return Err(format!("{} is longer than 1 MiB", path.display()));
    }
    String::from_utf8(bytes).map_err(|_| format!("{} is no text (UTF-8)", path.display()))
}

/// Adds the options for lists.
fn augment_lists(command: Command) -> Command {
    let list = |name: &'static str, help: &'static str| {
        Arg::new(name)
            .long(name)
            .value_name("FILE")
            .value_parser(clap::value_parser!(PathBuf))
            .action(ArgAction::Append)
            .help(help)
            .help_heading("Suppressions")
    };
    let embedded = Arg::new(EMBEDDED)
        .long(EMBEDDED)
        .action(ArgAction::SetTrue)
        .help("Leave out what the program's own __lsan_default_suppressions name")
        .help_heading("Suppressions");
    command
        .arg(list(
            "ignore",
            "Leave out stacks with a function, source file or module that matches one of the regular \
             expressions in this file, one a line",
        ))
        .arg(list(
            "suppressions",
            "The same with LeakSanitizer's suppressions: lines such as leak:pattern",
        ))
        .arg(embedded)
}

impl Args for FilterArgs {
    fn augment_args(command: Command) -> Command {
        let command = augment_lists(command);
        FIELDS.iter().fold(command, |command, field| {
            let arg = Arg::new(field.name)
                .long(field.name)
                .aliases(field.aliases)
                .value_name(field.value)
                .action(ArgAction::Append)
                .help(field.help)
                .help_heading("Filters (several: all must hold)")
                .hide(field.refused.is_some());
            command.arg(arg)
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

/// Returns the path of the recording of a process; `None` if the process is not recorded.
pub(crate) type Locate<'a> = &'a dyn Fn(Pid) -> Option<PathBuf>;

impl InputArgs {
    /// Opens the recording.
    ///
    /// # Errors
    /// If there is none, or it can't be read.
    pub(crate) fn open(&self, locate: Locate<'_>) -> Result<Index> {
        let path = resolve(self.input.as_deref(), locate)?;
        self.index.open(&path)
    }

    /// Opens the recording for a question about one process.
    ///
    /// # Errors
    /// If there is none, it can't be read, or is that of several processes.
    pub(crate) fn open_one(&self, locate: Locate<'_>) -> Result<Index> {
        let path = resolve(self.input.as_deref(), locate)?;
        self.index.open_one(&path)
    }

    /// Returns the query that selects the blocks.
    ///
    /// # Errors
    /// If a filter needs data that the recording doesn't have.
    pub(crate) fn query<'a>(&self, index: &'a Index) -> Result<Query<'a>> {
        Query::new(index, &self.filter.0).map_err(|e| usage(e.to_string()))
    }
}

/// Returns the path of the recording: the file of that name or, if it is a number, the recording of that process;
/// without a name the newest in the current folder.
///
/// # Errors
/// If there is none.
pub(crate) fn resolve(input: Option<&str>, locate: Locate<'_>) -> Result<PathBuf> {
    find(input, locate).map_err(|e| usage(format!("{e:#}")))
}

fn find(input: Option<&str>, locate: Locate<'_>) -> Result<PathBuf> {
    let Some(name) = input else {
        return newest(Path::new("."), |_| true).context(
            "no recording in the current folder; name one, or make one with `prof attach PID`",
        );
    };
    let path = PathBuf::from(name);
    let pid = name.parse::<Pid>().ok().filter(|p| *p > Pid::NONE);
    let (false, Some(pid)) = (path.exists(), pid) else { return Ok(path) };
    let named = |p: &Path| p.file_name().is_some_and(|n| has_part(&n.to_string_lossy(), name));
    let thread = super::process::thread(pid);
    let live = if thread.is_none() { locate(pid) } else { None };
    // A recording of a process that has ended may be meant, though a thread has its number now.
    // A file that the user has named has no number in its name; where it is has been noted.
    let noted = || crate::notes::last(pid).map(|note| note.path());
    let last = || {
        [newest(Path::new("."), named), noted()]
            .into_iter()
            .flatten()
            .filter(|p| written(p).is_some())
    };
    if let Some(found) = live.or_else(|| last().max_by_key(|path| written(path))) {
        return Ok(found);
    }
    if let Some(e) = thread {
        bail!("{e}");
    }
    bail!(
        "process {pid} is not being recorded, and no recording of it is known or in the current folder; \
         start one with `prof attach {pid}`, or name a file"
    )
}

/// Returns whether `part` is one of the parts of a file name between dots.
fn has_part(name: &str, part: &str) -> bool {
    name.split('.').any(|p| p == part)
}

/// Returns when a recording, or one of those in a family's folder, was last written to; `None` if it is neither.
fn written(path: &Path) -> Option<SystemTime> {
    let has_name = |p: &Path| p.extension().is_some_and(|x| x == "prof");
    if let Some(folder) = Folder::open(path) {
        let entries = fs::read_dir(folder.path()).ok()?.flatten();
        return entries.filter(|e| has_name(&e.path())).filter_map(|e| written(&e.path())).max();
    }
    let is_recording = has_name(path) && prof_analyze::load::is_recording(path);
    is_recording.then(|| path.metadata().and_then(|m| m.modified()).ok())?
}

/// Returns the newest of the wanted recordings in a folder.
fn newest(dir: &Path, wanted: impl Fn(&Path) -> bool) -> Option<PathBuf> {
    let entries = fs::read_dir(dir).ok()?.flatten();
    entries
        .map(|e| e.path())
        .filter(|p| wanted(p))
        .filter_map(|p| Some((written(&p)?, p)))
        .max()
        .map(|(_, p)| p.strip_prefix(".").map(Path::to_owned).unwrap_or(p))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_are_files_or_processes() {
        let dir = std::env::temp_dir().join(format!("prof-report-{}", std::process::id()));
        fs::create_dir_all(&dir).expect("a folder");
        let header = prof_trace::chunk::file_header();
        let old = dir.join("prof.a.77.1.prof");
        let new = dir.join("prof.b.78.2.prof");
        fs::write(&old, header).expect("written");
        fs::write(&new, header).expect("written");
        fs::write(dir.join("newer.prof"), "something else").expect("written");
        let past = SystemTime::now() - std::time::Duration::from_secs(100);
        fs::File::options()
            .append(true)
            .open(&old)
            .and_then(|f| f.set_modified(past))
            .expect("a time");
        assert_eq!(newest(&dir, |_| true), Some(new));
        assert_eq!(newest(&dir, |p| has_part(&p.to_string_lossy(), "77")), Some(old.clone()));
        assert_eq!(newest(&dir, |_| false), None);

        let none: Locate<'_> = &|_| None;
        let name = old.to_str().expect("a name");
        assert_eq!(resolve(Some(name), none).expect("a file"), old);
        let live: Locate<'_> = &|pid| (pid == Pid::from_raw(123_456)).then(|| "/tmp/there".into());
        assert_eq!(resolve(Some("123456"), live).expect("live"), Path::new("/tmp/there"));
        assert!(resolve(Some("123457"), live).is_err());
        fs::remove_dir_all(&dir).expect("removed");
    }

    #[test]
    fn every_field_is_an_option() {
        let command = FilterArgs::augment_args(Command::new("x").no_binary_name(true));
        let parse = |args: &[&str]| {
            let m = command.clone().try_get_matches_from(args).map_err(|e| e.to_string())?;
            FilterArgs::from_arg_matches(&m).map_err(|e| e.to_string())
        };
        let f =
            parse(&["--from", "10%", "--size-min", "1KiB", "--function", "a", "--function", "b"]);
        let given = f.expect("good").0.given().to_vec();
        let names: Vec<_> = given.iter().map(|(n, v)| format!("{n}={v}")).collect();
        assert_eq!(names, ["from=10%", "min-size=1KiB", "function=a", "function=b"]);
        assert!(parse(&["--min-size", "x"]).expect_err("wrong").contains("--min-size"));
        assert!(parse(&["--arena", "main"]).is_ok());
        assert!(parse(&["--marker", "1"]).is_ok());
        assert!(parse(&["--readable", "yes"]).expect_err("refused").contains("prof maps"));
    }
}
