//! `prof serve`: shows recordings in a browser, and answers programs.

use super::input::{IndexArgs, Locate, resolve};
use crate::failure::{refused, usage};
use crate::term::say;
use anyhow::{Context, Result};
use clap::Args;
use prof_os::Pid;
use prof_serve::{Listen, Options, Server, Source, Token};
use prof_trace::values::parse::size;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::Duration;

/// The address by default, which is bytehound's.
const DEFAULT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8080);

/// Longest time that a script waits for its turn. A script may run for a minute, and two run at a time.
const SCRIPT_WAIT: Duration = Duration::from_secs(300);

/// Show recordings in a browser, and answer programs over HTTP
///
/// Prints one line to standard output: the address to open. Without an argument the recordings of the current folder
/// are served. The server reads the recordings and changes nothing; other users of this machine need the token in the
/// address.
#[derive(Args, Clone, Debug)]
pub(crate) struct ServeArgs {
    /// Recordings, ids of processes that are being recorded, or folders with recordings
    /// [default: the current folder]
    #[arg(value_name = "FILE|PID|FOLDER")]
    pub inputs: Vec<String>,
    /// Listen on this address, or on a socket that only you can open: unix:PATH
    /// [default: 127.0.0.1:8080, or the next port that is free]
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = listen)]
    pub listen: Option<Listen>,
    /// Open the page in a browser
    #[arg(long)]
    pub open: bool,
    /// The token that requests need: auto makes a new one, none lets every user of this machine read the recordings
    #[arg(long, value_name = "TEXT|auto|none", default_value = "auto")]
    pub token: String,
    /// A further name that requests may give this server, as behind a proxy or a forwarded port: NAME or NAME:PORT
    /// (may be given again)
    #[arg(long, value_name = "NAME")]
    pub allow_host: Vec<String>,
    /// Let the page pause, resume and detach the processes that are being recorded
    #[arg(long)]
    pub control: bool,
    /// Show source files below this folder
    #[arg(long, value_name = "DIR")]
    pub sources: Option<PathBuf>,
    /// Memory for answers that are kept
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = size)]
    pub cache: u64,
    /// Serve the API only, without the page
    #[arg(long)]
    pub no_ui: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub index: IndexArgs,
}

/// Serve recordings, with the options of `bytehound server`
///
/// For scripts that were written for it: no token is needed, as its clients know none. `prof serve` has all options.
#[derive(Args, Clone, Debug)]
pub(crate) struct ServerArgs {
    /// Recordings
    #[arg(value_name = "INPUT", required = true)]
    pub inputs: Vec<String>,
    /// The address to listen on
    #[arg(short, long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    pub interface: String,
    /// The port to listen on
    #[arg(short, long, default_value_t = 8080)]
    pub port: u16,
    /// Look for debug files in this folder first (may be given again)
    #[arg(short, long, value_name = "DIR")]
    pub debug_symbols: Vec<PathBuf>,
}

/// Parses an address. Names are not resolved, but for the one that each machine has.
fn listen(text: &str) -> Result<Listen, String> {
    if let Some(path) = text.strip_prefix("unix:") {
        return match path {
            "" => Err("unix: needs the path of the socket".into()),
            path => Ok(Listen::Unix(path.into())),
        };
    }
    let local = text.strip_prefix("localhost").map(|rest| format!("127.0.0.1{rest}"));
    let text = local.unwrap_or_else(|| text.to_owned());
    let port_only = text.strip_prefix(':').unwrap_or(&text);
    if let Ok(port) = port_only.parse::<u16>() {
        return Ok(Listen::Tcp(SocketAddr::new(DEFAULT.ip(), port), false));
    }
    if let Ok(ip) = text.trim_matches(['[', ']']).parse::<IpAddr>() {
        return Ok(Listen::Tcp(SocketAddr::new(ip, DEFAULT.port()), true));
    }
    let address = text.parse().map(|address| Listen::Tcp(address, false));
    address.map_err(|_| {
        format!("{text:?} is no address; give one such as 127.0.0.1:8080, [::1]:8080, or unix:/run/prof.sock")
    })
}

impl ServerArgs {
    /// Returns the same options in the form of `prof serve`.
    ///
    /// # Errors
    /// If the address is none.
    fn as_serve(&self) -> Result<ServeArgs> {
        let at = if self.interface.contains(':') {
            format!("[{}]:{}", self.interface.trim_matches(['[', ']']), self.port)
        } else {
            format!("{}:{}", self.interface, self.port)
        };
        let listen = listen(&at).map_err(|e| usage(format!("--interface: {e}")))?;
        let local = matches!(listen, Listen::Tcp(a, _) if a.ip().is_loopback());
        let mut index = IndexArgs::plain();
        index.symbols.debug_path.clone_from(&self.debug_symbols);
        Ok(ServeArgs {
            inputs: self.inputs.clone(),
            listen: Some(listen),
            open: false,
            token: if local { "none" } else { "auto" }.into(),
            allow_host: Vec::new(),
            control: false,
            sources: None,
            cache: 64 << 20,
            no_ui: false,
            index,
        })
    }
}

/// Runs the command with bytehound's options.
///
/// # Errors
/// If a recording is not there, or the address can't be listened on.
pub(crate) fn run_server(args: &ServerArgs, locate: Locate<'_>) -> Result<ExitCode> {
    run(&args.as_serve()?, locate)
}

/// Runs the command. `locate` returns the recording of a process that is being recorded.
///
/// # Errors
/// If a recording is not there, or the address can't be listened on.
pub(crate) fn run(args: &ServeArgs, locate: Locate<'_>) -> Result<ExitCode> {
    let sources = sources(&args.inputs, locate)?;
    serve(args, sources)
}

/// Serves the recording of the demo. `temporary`: removes the file when it is open, as no later step does.
///
/// # Errors
/// If the address can't be listened on.
pub(crate) fn demo(path: PathBuf, temporary: bool) -> Result<ExitCode> {
    let mut args = ServeArgs {
        inputs: Vec::new(),
        listen: None,
        open: false,
        token: "auto".into(),
        allow_host: Vec::new(),
        control: false,
        sources: None,
        cache: 64 << 20,
        no_ui: false,
        index: IndexArgs::plain(),
    };
    if temporary {
        args.index.no_index = true;
        remove_at_end(&path);
    }
    serve(&args, vec![Source { path, pid: None }])
}

/// Removes a file when the process is ended by Ctrl-C.
fn remove_at_end(path: &Path) {
    use nix::sys::signal::{SigSet, Signal};
    let mut signals = SigSet::empty();
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        signals.add(signal);
    }
    // Threads that begin later inherit the mask, so that only this thread sees the signals.
    if signals.thread_block().is_err() {
        return;
    }
    let path = path.to_owned();
    std::thread::spawn(move || {
        if let Ok(signal) = signals.wait() {
            let _ = std::fs::remove_file(path);
            std::process::exit(128 + signal as i32);
        }
    });
}

/// Serves recordings until the process ends.
///
/// # Errors
/// If the address can't be listened on.
pub(crate) fn serve(args: &ServeArgs, sources: Vec<Source>) -> Result<ExitCode> {
    if let Some(dir) = args.sources.as_ref().filter(|d| !d.is_dir()) {
        return Err(usage(format!("--sources: {} is no folder", dir.display())));
    }
    let listen = args.listen.clone().unwrap_or(Listen::Tcp(DEFAULT, true));
    let outside = matches!(listen, Listen::Tcp(a, _) if !a.ip().is_loopback());
    let is_unix = matches!(listen, Listen::Unix(_));
    let (index, growing) = (args.index.clone(), args.index.clone());
    let options = Options {
        listen,
        names: args.allow_host.clone(),
        token: match &*args.token {
            "auto" => Token::Auto,
            "none" => Token::None,
            text => Token::Text(text.to_owned()),
        },
        control: args.control.then(|| Arc::new(Hands) as Arc<dyn prof_serve::Control>),
        is_recorded: Box::new(is_recorded),
        sources: args.sources.clone(),
        cache: args.cache,
        script_wait: SCRIPT_WAIT,
        page: !args.no_ui,
        open: Box::new(move |path| index.open(path).map_err(|e| format!("{e:#}"))),
        grow: Box::new(move |path| growing.grow(path).map_err(|e| format!("{e:#}"))),
    };
    let server = Server::bind(sources, options).map_err(|e| usage(e.to_string()))?;
    if outside {
        say("other machines can reach this server; what it sends is not encrypted");
    }
    if nix::unistd::geteuid().is_root() && !is_unix {
        say("the server runs as root");
    }
    super::report::print(&format!("{}\n", server.url()))?;
    if args.open {
        browse(&server.url_once());
    }
    server.run().map_err(|e| refused(e.to_string()))?;
    Ok(ExitCode::SUCCESS)
}

/// Opens an address in the user's browser.
fn browse(url: &str) {
    let mut command = Command::new("xdg-open");
    command.arg(url).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    if let Err(e) = command.spawn() {
        say(&format!("no browser could be started (xdg-open: {e}); open the address by hand"));
    }
}

/// Returns the recordings that the arguments name.
fn sources(inputs: &[String], locate: Locate<'_>) -> Result<Vec<Source>> {
    let here = [".".to_owned()];
    let inputs = if inputs.is_empty() { &here[..] } else { inputs };
    let mut all = Vec::new();
    for input in inputs {
        let path = Path::new(input);
        if path.is_dir() {
            all.extend(in_folder(path)?);
            continue;
        }
        let file = resolve(Some(input), locate)?;
        prof_os::files::open_regular(&file)
            .map_err(|e| usage(format!("cannot read {}: {e}", file.display())))?;
        let pid = input.parse().ok().filter(|_| !path.exists());
        all.push(Source { path: file, pid: pid.filter(|p| locate(*p).is_some()) });
    }
    if all.is_empty() {
        return Err(usage(
            "there is no recording here; make one with `prof attach PID`, or name a file",
        ));
    }
    Ok(all)
}

/// Returns the recordings of a folder, the newest last.
fn in_folder(dir: &Path) -> Result<Vec<Source>> {
    let entries =
        std::fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))?;
    let mut found: Vec<_> = entries
        .flatten()
        .map(|e| e.path())
        .filter(|p| {
            p.extension().is_some_and(|x| x == "prof") && prof_analyze::load::is_recording(p)
        })
        .map(|p| (p.metadata().and_then(|m| m.modified()).ok(), p))
        .collect();
    found.sort();
    let source = |(_, p): (_, PathBuf)| Source {
        path: p.strip_prefix("./").map(Path::to_owned).unwrap_or(p),
        pid: None,
    };
    Ok(found.into_iter().map(source).collect())
}

/// Returns whether recording of a process is on; `None`: it is not recorded.
fn is_recorded(pid: Pid) -> Option<bool> {
    let peek = prof_collect::Peek::of(pid).ok()??;
    Some(peek.recording)
}

/// Controls processes for the page.
struct Hands;

/// Time that threads have to leave the hook at a detach.
const PATIENCE: Duration = Duration::from_secs(5);

impl prof_serve::Control for Hands {
    fn pause(&self, pid: Pid) -> Result<(), String> {
        crate::switch::off(pid).map(|_| ()).map_err(|e| format!("{e:#}"))
    }

    fn resume(&self, pid: Pid) -> Result<(), String> {
        crate::switch::on(pid).map(|_| ()).map_err(|e| format!("{e:#}"))
    }

    fn detach(&self, pid: Pid) -> Result<(), String> {
        let audit = crate::audit::Audit::On;
        let done = crate::session::detach(pid, PATIENCE, false, audit);
        done.map(|_| ()).map_err(|e| format!("{e:#}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_understood_without_names() {
        let at = |text: &str| listen(text);
        let tcp = |text: &str, others| Ok(Listen::Tcp(text.parse().expect("an address"), others));
        assert_eq!(at("127.0.0.1:9000"), tcp("127.0.0.1:9000", false));
        assert_eq!(at("localhost:9000"), tcp("127.0.0.1:9000", false));
        assert_eq!(at("localhost"), tcp("127.0.0.1:8080", true));
        assert_eq!(at("[::1]:80"), tcp("[::1]:80", false));
        assert_eq!(at("::1"), tcp("[::1]:8080", true));
        assert_eq!(at(":9000"), tcp("127.0.0.1:9000", false));
        assert_eq!(at("9000"), tcp("127.0.0.1:9000", false));
        assert_eq!(at("unix:/a/b"), Ok(Listen::Unix("/a/b".into())));
        for wrong in ["example.org:80", "unix:", "127.0.0.1:x", "1.2.3:4", ""] {
            assert!(at(wrong).is_err(), "{wrong}");
        }
    }
}
