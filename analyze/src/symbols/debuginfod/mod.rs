//! Debug information from servers (debuginfod(8)), by build id: asked only if `DEBUGINFOD_URLS` names some, and
//! kept where the official client of elfutils keeps it, so that gdb, perf and prof share what one has fetched.

mod cache;
mod client;

use super::elf::ObjectFile;
use crate::progress::waiting;
use client::Problem;
use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Time without an answer, or for less than [`client::LEAST`] bytes of one, if `DEBUGINFOD_TIMEOUT` is not set.
const TIMEOUT: Duration = Duration::from_secs(90);

/// Settings for servers, as the environment gives them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Settings {
    /// The servers, in the order in which they are asked; none ends in a slash.
    urls: Vec<String>,
    /// `None`: there is no folder that is safe to use.
    folder: Option<PathBuf>,
    /// Longest time that a server may be silent, or too slow.
    timeout: Option<Duration>,
    /// Longest time that one file may take.
    max_time: Option<Duration>,
    /// The most bytes of a file.
    max_size: Option<u64>,
    /// Whether each download gets a line, also where no terminal shows a bar.
    progress: bool,
}

impl Settings {
    /// From variables of the environment; `None` if no server is named.
    fn of(variable: impl Fn(&str) -> Option<String>) -> Option<Self> {
        let is_url = |w: &&str| w.starts_with("http://") || w.starts_with("https://");
        let urls: Vec<String> = variable("DEBUGINFOD_URLS")?
            .split_ascii_whitespace()
            .filter(is_url)
            .map(|w| w.trim_end_matches('/').to_owned())
            .collect();
        let number = |name: &str| variable(name)?.trim().parse::<u64>().ok();
        let seconds = |name: &str| number(name).filter(|n| *n > 0).map(Duration::from_secs);
        let timeout = match number("DEBUGINFOD_TIMEOUT") {
            Some(0) => None,
            Some(n) => Some(Duration::from_secs(n)),
            None => Some(TIMEOUT),
        };
        (!urls.is_empty()).then(|| Self {
            urls,
            folder: cache::folder(&variable),
            timeout,
            max_time: seconds("DEBUGINFOD_MAXTIME"),
            max_size: number("DEBUGINFOD_MAXSIZE").filter(|n| *n > 0),
            progress: variable("DEBUGINFOD_PROGRESS").is_some_and(|v| !v.is_empty() && v != "0"),
        })
    }
}

/// Gets what there is to say, a line each.
pub type Tell = fn(&str);

/// The servers that the environment names, and what they have said so far.
pub struct Debuginfod {
    settings: Settings,
    tell: Tell,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    agent: Option<ureq::Agent>,
    /// By build id: what was asked for before.
    known: HashMap<Vec<u8>, Option<Arc<ObjectFile>>>,
    /// Servers that are not asked again, by their places in the list.
    down: Vec<usize>,
    told_of_folder: bool,
}

impl fmt::Debug for Debuginfod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.settings.fmt(f)
    }
}

impl PartialEq for Debuginfod {
    fn eq(&self, other: &Self) -> bool {
        self.settings == other.settings
    }
}

impl Eq for Debuginfod {}

impl Debuginfod {
    /// Returns the servers that the environment names; `None` if it names none, and then none is ever asked.
    pub fn of_environment(tell: Tell) -> Option<Arc<Self>> {
        let settings = Settings::of(|name| std::env::var(name).ok())?;
        Some(Arc::new(Self { settings, tell, state: Mutex::default() }))
    }

    /// The debug information of a build, from the cache or a server. Problems are told once, and what was not
    /// there is not asked for again.
    pub(super) fn find(&self, id: &[u8], of: &str) -> Option<Arc<ObjectFile>> {
        // Shorter ones are no hashes: many files could have them.
        if !(8..=64).contains(&id.len()) {
            return None;
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = state.known.get(id) {
            return known.clone();
        }
        let found = self.ask(&mut state, id, of).map(Arc::new);
        state.known.insert(id.to_owned(), found.clone());
        found
    }

    fn ask(&self, state: &mut State, id: &[u8], of: &str) -> Option<ObjectFile> {
        let Some(folder) = &self.settings.folder else {
            if !std::mem::replace(&mut state.told_of_folder, true) {
                (self.tell)(
                    "debuginfod: the folder for what servers send is another user's: name one with \
                     DEBUGINFOD_CACHE_PATH; no server was asked",
                );
            }
            return None;
        };
        let hex: String = id.iter().map(|b| format!("{b:02x}")).collect();
        let entry = cache::Entry::of(folder, &hex);
        match entry.look(id) {
            cache::Found::File(image) => return Some(*image),
            cache::Found::Missing => return None,
            cache::Found::Nothing => {}
        }
        cache::clean(folder);
        let mut absent = 0;
        for (i, url) in self.settings.urls.iter().enumerate() {
            if state.down.contains(&i) {
                continue;
            }
            let agent = state.agent.get_or_insert_with(|| client::agent(self.settings.timeout));
            match self.download(agent, url, &entry, (id, of)) {
                Ok(Some(image)) => return Some(image),
                Ok(None) => absent += 1,
                Err(Problem::Server(why)) => {
                    state.down.push(i);
                    let rest = if state.down.len() < self.settings.urls.len() {
                        "the others are"
                    } else {
                        "none is"
                    };
                    (self.tell)(&format!(
                        "debuginfod: {url}: {why}; it is not asked again, {rest} left"
                    ));
                }
                Err(Problem::File(why)) => {
                    (self.tell)(&format!("debuginfod: {url}: debug information of {of}: {why}"));
                }
            }
        }
        if absent == self.settings.urls.len() {
            entry.note_missing();
        }
        None
    }

    /// Gets a file into the cache; `None` if the server does not have it.
    fn download(
        &self,
        agent: &ureq::Agent,
        url: &str,
        entry: &cache::Entry,
        (id, of): (&[u8], &str),
    ) -> Result<Option<ObjectFile>, Problem> {
        let mut place = entry.place().map_err(|e| {
            let folder = entry.folder().display();
            Problem::File(format!(
                "cannot write to {folder} ({e}); DEBUGINFOD_CACHE_PATH names another folder"
            ))
        })?;
        let mut file = place.take().ok_or_else(|| Problem::File("no file".into()))?;
        let settings = &self.settings;
        let limits = client::Limits {
            timeout: settings.timeout,
            max_time: settings.max_time,
            // What the disk has is not prof's to fill.
            max_size: settings.max_size.unwrap_or(u64::MAX).min(cache::room(&file) / 2),
        };
        let begun = |size: Option<u64>| {
            if settings.progress {
                let size = size.map_or(String::new(), |n| {
                    format!(" ({})", prof_trace::values::text::bytes(n))
                });
                (self.tell)(&format!(
                    "debuginfod: {url}: downloading debug information of {of}{size}"
                ));
            }
        };
        let from = format!("{url}/buildid/{}/debuginfo", entry.name());
        let got = waiting("asking debuginfod", "downloading debug information", |wait| {
            client::fetch(agent, &from, &limits, &mut file, wait, begun)
        })?;
        if !got {
            return Ok(None);
        }
        let image = ObjectFile::of_file(file, entry.file());
        match image.as_ref().map(ObjectFile::build_id) {
            Some(found) if found == id => {}
            Some(_) => return Err(Problem::Server("it has sent a file of another build".into())),
            None => {
                return Err(Problem::Server(
                    "it has sent something else than debug information".into(),
                ));
            }
        }
        place.keep().ok_or_else(|| {
            Problem::File("the file could not be given its name in the cache".into())
        })?;
        // By its name, as it will be found the next time: names are kept by the files that they came from.
        Ok(ObjectFile::open_in(None, entry.file()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(variables: &[(&str, &str)]) -> Option<Settings> {
        let get =
            |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned());
        Settings::of(get)
    }

    #[test]
    fn without_servers_there_is_nothing() {
        assert_eq!(of(&[("HOME", "/x")]), None);
        assert_eq!(of(&[("DEBUGINFOD_URLS", "")]), None);
        assert_eq!(of(&[("DEBUGINFOD_URLS", "  ima:enforcing ftp://a")]), None);
    }

    #[test]
    fn the_environment_is_read_as_other_clients_read_it() {
        let s = of(&[
            ("DEBUGINFOD_URLS", "http://a:8002/ https://b/c//\thttp://d"),
            ("DEBUGINFOD_CACHE_PATH", "/tmp/cache"),
            ("DEBUGINFOD_TIMEOUT", "7"),
            ("DEBUGINFOD_MAXTIME", "60"),
            ("DEBUGINFOD_MAXSIZE", "1000"),
            ("DEBUGINFOD_PROGRESS", "1"),
        ]);
        let s = s.expect("servers");
        assert_eq!(s.urls, ["http://a:8002", "https://b/c", "http://d"]);
        assert_eq!(s.folder, Some("/tmp/cache".into()));
        assert_eq!(
            (s.timeout, s.max_time),
            (Some(Duration::from_secs(7)), Some(Duration::from_secs(60)))
        );
        assert_eq!((s.max_size, s.progress), (Some(1000), true));
        let s =
            of(&[("DEBUGINFOD_URLS", "http://a"), ("DEBUGINFOD_TIMEOUT", "0")]).expect("a server");
        assert_eq!((s.timeout, s.max_time, s.max_size, s.progress), (None, None, None, false));
        let s = of(&[("DEBUGINFOD_URLS", "http://a")]).expect("a server");
        assert_eq!(s.timeout, Some(TIMEOUT));
    }
}
