//! Serves recordings to browsers and programs: a page, the API that bytehound's clients know, and prof's own.
//!
//! * [`Server`]: listens, and answers;
//! * [`guard`]: which requests are answered at all;
//! * [`net`]: connections, and those that stall;
//! * [`state`]: the recordings; [`work`]: the work of requests, shared, in turns, cancelled, and kept;
//! * [`waiting`]: answers that tell of the turn for which they wait;
//! * [`api`]: the routes below `/api/v1`, which the page uses; [`compat`]: bytehound's;
//! * [`scans`]: scans that were read; [`jobs`]: work whose answer is fetched later;
//! * [`data`]: what they ask of the analysis; [`live`]: recordings that grow.
//!
//! Requests are untrusted, and so is what recordings contain: names come from the recorded process. No path of a file
//! comes from a request.

mod answer;
mod api;
mod ask;
mod assets;
mod body;
mod compat;
mod data;
mod grown;
mod guard;
#[doc(hidden)]
pub mod hostile;
mod jobs;
mod listing;
mod live;
mod names;
mod net;
mod openapi;
mod params;
mod reply;
mod route;
mod scans;
mod state;
mod table;
mod waiting;
mod work;

pub use params::Params;
pub use state::Source;

use guard::{At, Guard};
use prof_analyze::{Growing, Index};
use prof_os::Pid;
use state::Shared;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::{TcpListener, UnixListener};

/// The place to listen at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// An address; `true`: also one of the next 20 ports, if this one is taken.
    Tcp(SocketAddr, bool),
    /// A socket in the file system, which only its owner can open.
    Unix(PathBuf),
}

/// The token that requests must have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Token {
    /// A new one.
    Auto,
    /// This one.
    Text(String),
    /// None: every user and every program of the machine can read the recordings.
    None,
}

/// Controls processes that are being recorded. The program that serves implements it: this crate can't.
pub trait Control: Send + Sync {
    /// Switches the recording of a process off.
    ///
    /// # Errors
    /// The reason, in one line.
    fn pause(&self, pid: Pid) -> Result<(), String>;

    /// Switches the recording of a process on again.
    ///
    /// # Errors
    /// The reason, in one line.
    fn resume(&self, pid: Pid) -> Result<(), String>;

    /// Takes prof out of a process, and finishes its recording.
    ///
    /// # Errors
    /// The reason, in one line.
    fn detach(&self, pid: Pid) -> Result<(), String>;
}

/// Says whether a process is being recorded: `None` if not, else whether recording is on.
pub type IsRecorded = Box<dyn Fn(Pid) -> Option<bool> + Send + Sync>;

/// Opens a recording.
pub type OpenIndex = Box<dyn Fn(&Path) -> Result<Index, String> + Send + Sync>;

/// Opens a recording that grows; `None` if it can't be followed, and has to be opened anew for each look.
pub type OpenGrowing = Box<dyn Fn(&Path) -> Result<Option<Growing>, String> + Send + Sync>;

/// Options of a server.
pub struct Options {
    /// The place to listen at.
    pub listen: Listen,
    /// Further names of this server, with or without a port.
    pub names: Vec<String>,
    /// The token that requests must have.
    pub token: Token,
    /// Controls the processes that are being recorded; `None`: the page can't.
    pub control: Option<Arc<dyn Control>>,
    /// Says whether a process is being recorded.
    pub is_recorded: IsRecorded,
    /// The folder below which source files may be shown.
    pub sources: Option<PathBuf>,
    /// Bytes of answers that are kept.
    pub cache: u64,
    /// Longest time that a script waits for its turn.
    pub script_wait: Duration,
    /// The page is served, too, not only the APIs.
    pub page: bool,
    /// Opens a recording.
    pub open: OpenIndex,
    /// Opens a recording that grows.
    pub grow: OpenGrowing,
}

/// Why a server can't begin.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address can't be listened on.
    #[error("cannot listen on {0}: {1}")]
    Listen(String, io::Error),
    /// The options contradict each other.
    #[error("{0}")]
    Options(String),
    /// The system refuses what the server needs.
    #[error("cannot start the server: {0}")]
    Start(io::Error),
}

enum Listener {
    Tcp(std::net::TcpListener),
    Unix(std::os::unix::net::UnixListener),
}

/// A server that listens.
pub struct Server {
    listener: Listener,
    guard: Arc<Guard>,
    shared: Arc<Shared>,
    url: String,
    once: Option<String>,
}

/// Number of ports that are tried.
const PORTS: u16 = 20;

fn tcp(address: SocketAddr, others: bool) -> Result<std::net::TcpListener, ServeError> {
    let last = address.port().saturating_add(if others { PORTS } else { 0 });
    let mut failed = io::Error::from(io::ErrorKind::AddrInUse);
    for port in address.port()..=last {
        match std::net::TcpListener::bind(SocketAddr::new(address.ip(), port)) {
            Ok(listener) => return Ok(listener),
            Err(e) if e.kind() == io::ErrorKind::AddrInUse => failed = e,
            Err(e) => return Err(ServeError::Listen(address.to_string(), e)),
        }
    }
    Err(ServeError::Listen(address.to_string(), failed))
}

fn unix(path: &Path) -> Result<std::os::unix::net::UnixListener, ServeError> {
    let failed = |e| ServeError::Listen(path.display().to_string(), e);
    // A socket that a server has left behind, which nobody listens on.
    let is_socket = std::fs::symlink_metadata(path)
        .is_ok_and(|m| std::os::unix::fs::FileTypeExt::is_socket(&m.file_type()));
    if is_socket && std::os::unix::net::UnixStream::connect(path).is_err() {
        std::fs::remove_file(path).map_err(failed)?;
    }
    // The socket is bound under another name, so that nobody can open it before it has its mode.
    let mut hidden = path.as_os_str().to_owned();
    hidden.push(format!(".{}", std::process::id()));
    let hidden = PathBuf::from(hidden);
    let listener = std::os::unix::net::UnixListener::bind(&hidden).map_err(failed)?;
    let named = std::fs::set_permissions(&hidden, std::fs::Permissions::from_mode(0o600))
        .and_then(|()| std::fs::hard_link(&hidden, path));
    let _ = std::fs::remove_file(&hidden);
    named.map_err(failed)?;
    Ok(listener)
}

impl Server {
    /// Begins to listen.
    ///
    /// # Errors
    /// If the address can't be listened on, or other machines could reach the server without a token.
    pub fn bind(sources: Vec<Source>, options: Options) -> Result<Self, ServeError> {
        let (listener, at, host) = match &options.listen {
            Listen::Tcp(address, others) => {
                let listener = tcp(*address, *others)?;
                let at = listener.local_addr().map_err(ServeError::Start)?;
                listener.set_nonblocking(true).map_err(ServeError::Start)?;
                (Listener::Tcp(listener), At::Tcp(at), at.to_string())
            }
            Listen::Unix(path) => {
                let listener = unix(path)?;
                listener.set_nonblocking(true).map_err(ServeError::Start)?;
                (Listener::Unix(listener), At::Unix, path.display().to_string())
            }
        };
        let is_local = match &at {
            At::Tcp(at) => at.ip().is_loopback(),
            At::Unix => true,
        };
        let token = match &options.token {
            // Only its owner opens the socket.
            Token::Auto if at == At::Unix => None,
            Token::Auto => Some(guard::new_token().map_err(ServeError::Options)?),
            Token::Text(text) if guard::is_token(text) => Some(text.clone()),
            Token::Text(_) => {
                return Err(ServeError::Options(
                    "--token: give at least 8 letters, digits, -, _, . or ~".into(),
                ));
            }
            Token::None if is_local => None,
            Token::None => {
                return Err(ServeError::Options(
                    "--token none is for 127.0.0.1 and [::1] only: others could read the recordings".into(),
                ));
            }
        };
        let once = match &token {
            Some(_) => Some(guard::new_token().map_err(ServeError::Options)?),
            None => None,
        };
        let url = match (&at, &token) {
            (At::Unix, _) => format!("unix:{host}"),
            (_, Some(token)) => format!("http://{host}/?token={token}"),
            (_, None) => format!("http://{host}/"),
        };
        let guard = Guard {
            at,
            names: options.names.clone(),
            token,
            once: Mutex::new(once.iter().cloned().collect()),
        };
        // Progress goes to the page, not to the terminal.
        prof_analyze::progress::show(|_| ());
        let shared = Arc::new(Shared::new(sources, options));
        Ok(Self { listener, guard: Arc::new(guard), shared, url, once })
    }

    /// Returns the address of the page, with the token.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns an address whose token is good for one request, for the command line of a browser: other users can read
    /// that.
    pub fn url_once(&self) -> String {
        match (&self.once, self.url.split_once("?token=")) {
            (Some(once), Some((start, _))) => format!("{start}?token={once}"),
            _ => self.url.clone(),
        }
    }

    /// Answers requests until the process ends.
    ///
    /// # Errors
    /// If the system refuses threads or the event loop.
    pub fn run(self) -> Result<(), ServeError> {
        let threads = std::thread::available_parallelism().map_or(2, usize::from);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .max_blocking_threads(threads + 6)
            .thread_name("prof-serve")
            .enable_all()
            .build()
            .map_err(ServeError::Start)?;
        runtime.block_on(self.accept())
    }

    async fn accept(self) -> Result<(), ServeError> {
        for recording in self.shared.recordings() {
            // A folder may hold any number of recordings: those are opened when they are asked for.
            if recording.pid.is_some() || self.shared.recordings().len() == 1 {
                self.shared.open(recording);
            }
        }
        let connections = Arc::new(net::Connections::default());
        let site = Arc::new(answer::Site::new(self.shared, self.guard));
        match self.listener {
            Listener::Tcp(listener) => {
                let listener = TcpListener::from_std(listener).map_err(ServeError::Start)?;
                loop {
                    match listener.accept().await {
                        Ok((stream, peer)) => {
                            let _ = stream.set_nodelay(true);
                            let local = peer.ip().is_loopback();
                            answer::spawn(&site, &connections, stream, local);
                        }
                        Err(e) => refused(&e).await,
                    }
                }
            }
            Listener::Unix(listener) => {
                let listener = UnixListener::from_std(listener).map_err(ServeError::Start)?;
                loop {
                    match listener.accept().await {
                        Ok((stream, _)) => answer::spawn(&site, &connections, stream, true),
                        Err(e) => refused(&e).await,
                    }
                }
            }
        }
    }
}

/// Waits a little after an error of `accept`, such as too many open files, which would come again at once.
async fn refused(e: &io::Error) {
    log::warn!("a connection could not be accepted: {e}");
    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
}
