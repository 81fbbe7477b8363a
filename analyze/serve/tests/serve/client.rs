//! A server on a port of its own, and a client that sends what it is told to.

use super::common::world::{World, make, write_to};
use super::common::{Maker, Random, Temp};
use prof_analyze::index::{IndexOptions, Keep};
use prof_analyze::{Growing, Index, LoadOptions};
use prof_os::Pid;
use prof_serve::{Listen, Options, Server, Source, Token};
use prof_trace::pack::Compress;
use prof_trace::records::{Call, CallKind, Module};
use prof_trace::ticks::Ticks;
use serde_json::Value;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// The token of the servers here.
pub(crate) const TOKEN: &str = "a-token-for-tests";
/// Names that a hostile program gives its functions.
pub(crate) const HOSTILE: &str = "</script><img src=x onerror=alert(1)>";

/// A server, and the recording that it serves.
pub(crate) struct Served {
    pub at: SocketAddr,
    pub index: Index,
    pub world: World,
    pub once: String,
    _file: Temp,
}

pub(crate) fn options(listen: Listen, token: Token) -> Options {
    Options {
        listen,
        names: vec!["prof.example".into(), "proxied.example:443".into()],
        token,
        control: None,
        is_recorded: Box::new(|_| None),
        sources: None,
        cache: 4 << 20,
        script_wait: Duration::from_secs(300),
        page: true,
        open: Box::new(|path| open(path).map_err(|e| e.to_string())),
        grow: Box::new(|path| Growing::open(path, &NEVER).map_err(|e| e.to_string())),
    }
}

const NEVER: IndexOptions =
    IndexOptions { keep: Keep::Never, load: LoadOptions { pending_bytes: 64 << 20 }, dir: None };

fn open(path: &std::path::Path) -> Result<Index, prof_analyze::Error> {
    Index::open(path, &NEVER)
}

/// Makes a recording of a random program with names.
pub(crate) fn recording(seed: u64) -> (Temp, World) {
    let mut r = Random(seed * 0x9e37_79b9);
    let threads = 3;
    let w = make(&mut r, 3000, threads);
    let mut m = Maker::new();
    m.module(&Module {
        number: 1,
        start: 0x1000,
        end: 0x9000,
        path: "/opt/a b/<x>".into(),
        ..Module::default()
    });
    let names: Vec<String> = (1..=20)
        .map(|i| match i {
            3 => HOSTILE.to_owned(),
            4 => "__static_initialization_and_destruction_0".to_owned(),
            i => format!("function_{i}"),
        })
        .collect();
    let symbols: Vec<_> = names
        .iter()
        .zip(1u64..)
        .map(|(name, i)| (0x1000 + i * 0x100, 0x100, name.as_str()))
        .collect();
    m.symbols(1, &symbols);
    let pcs: Vec<_> = (1u64..=20).map(|i| [i, 0x1000 + i * 0x100 + 8, 1]).collect();
    let nodes: Vec<_> = (1u64..=20).map(|i| [i, i / 2, i]).collect();
    m.pcs(&pcs).nodes(&nodes);
    for t in 1..=threads as u32 {
        m.thread(t, 100 + t, &format!("worker \"{t}\""));
    }
    let setting = |flags: i32, end: u64| Call {
        kind: CallKind::Mallopt,
        begin: Ticks(end - 10),
        end: Ticks(end),
        flags: flags as u32,
        value: -2,
        result: 1,
        node: 5,
        ..Call::default()
    };
    m.hooks(&["malloc", "mallopt"], &[]);
    // The later one stands first.
    m.calls(&[(2, setting(77, 1300)), (1, setting(-8, 1200))]);
    (write_to(m, &mut r, &w, threads as u32, Compress::None).file(), w)
}

impl Served {
    pub(crate) fn new(seed: u64) -> Self {
        Self::with(seed, Token::Text(TOKEN.into()))
    }

    pub(crate) fn with(seed: u64, token: Token) -> Self {
        let (file, world) = recording(seed);
        let source = Source { path: file.0.clone(), pid: None };
        let any = "127.0.0.1:0".parse().expect("an address");
        Self::of(source, (file, world), options(Listen::Tcp(any, false), token))
    }

    /// Serves scripts that wait for their turn no longer than this.
    pub(crate) fn waiting(seed: u64, script_wait: Duration) -> Self {
        let (file, world) = recording(seed);
        let source = Source { path: file.0.clone(), pid: None };
        let any = "127.0.0.1:0".parse().expect("an address");
        let given = options(Listen::Tcp(any, false), Token::Text(TOKEN.into()));
        Self::of(source, (file, world), Options { script_wait, ..given })
    }

    /// Serves a recording of this process that others write.
    pub(crate) fn growing(path: std::path::PathBuf) -> Self {
        Self::growing_with(path, |options| options)
    }

    /// Serves it with options that `change` makes of the usual ones.
    pub(crate) fn growing_with(
        path: std::path::PathBuf,
        change: impl FnOnce(Options) -> Options,
    ) -> Self {
        let any = "127.0.0.1:0".parse().expect("an address");
        let options = Options {
            is_recorded: Box::new(|_| Some(true)),
            ..options(Listen::Tcp(any, false), Token::Text(TOKEN.into()))
        };
        let source = Source { path, pid: Some(Pid::this()) };
        Self::of(source, recording(1), change(options))
    }

    fn of(source: Source, (file, world): (Temp, World), options: Options) -> Self {
        let index = open(&source.path).expect("a recording");
        let server = Server::bind(vec![source], options);
        let server = server.expect("a server");
        let url = server.url().to_owned();
        let once = server.url_once();
        let at = url.trim_start_matches("http://").split('/').next().expect("an address");
        let at = at.parse().expect("an address");
        std::thread::spawn(move || server.run());
        Self { at, index, world, once, _file: file }
    }

    /// Returns the name of the server as requests give it.
    pub(crate) fn host(&self) -> String {
        self.at.to_string()
    }

    /// Sends bytes, and returns what comes back until the server closes, or says nothing for a while.
    pub(crate) fn send(&self, bytes: &[u8]) -> String {
        String::from_utf8_lossy(&self.exchange(bytes)).into_owned()
    }

    fn exchange(&self, bytes: &[u8]) -> Vec<u8> {
        let mut stream = TcpStream::connect(self.at).expect("a connection");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a time");
        // The server may refuse, and close, before it has read everything.
        let _ = stream.write_all(bytes);
        let mut got = Vec::new();
        let _ = stream.read_to_end(&mut got);
        got
    }

    /// Asks for a path with the token.
    pub(crate) fn get(&self, path: &str) -> Reply {
        self.ask("GET", path, "", "")
    }

    pub(crate) fn ask(&self, method: &str, path: &str, headers: &str, body: &str) -> Reply {
        let (host, length) = (self.host(), body.len());
        let text = format!(
            "{method} {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {TOKEN}\r\n\
             Connection: close\r\nContent-Length: {length}\r\n{headers}\r\n{body}"
        );
        Reply::of(&self.exchange(text.as_bytes()))
    }

    /// Asks for JSON, which must be there.
    #[track_caller]
    pub(crate) fn json(&self, path: &str) -> Value {
        let reply = self.get(path);
        assert_eq!(reply.status, 200, "{path}: {}", reply.body);
        reply.json()
    }

    #[track_caller]
    pub(crate) fn own(&self, route: &str) -> Value {
        self.json(&format!("/api/v1/last/{route}"))
    }
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Reply {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Reply {
    pub(crate) fn parse(text: &str) -> Self {
        Self::of(text.as_bytes())
    }

    pub(crate) fn of(bytes: &[u8]) -> Self {
        let end = bytes.windows(4).position(|w| w == b"\r\n\r\n").map_or(bytes.len(), |i| i + 4);
        let (head, body) = bytes.split_at(end);
        let head = String::from_utf8_lossy(head);
        let status = head.split(' ').nth(1).and_then(|s| s.parse().ok()).unwrap_or(0);
        let head = head.to_ascii_lowercase();
        let body = match head.contains("transfer-encoding: chunked") {
            true => joined(body),
            false => body.to_vec(),
        };
        let body = String::from_utf8_lossy(&body).into_owned();
        Self { status, head, body }
    }

    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.body))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(": "))
    }
}

/// Joins the pieces of a body.
fn joined(mut body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    while let Some(at) = body.windows(2).position(|w| w == b"\r\n") {
        let size = std::str::from_utf8(&body[..at]).ok();
        let size = size.and_then(|s| usize::from_str_radix(s.trim(), 16).ok());
        let Some(size) = size else { break };
        if size == 0 {
            return out;
        }
        let rest = &body[at + 2..];
        out.extend_from_slice(rest.get(..size).unwrap_or(rest));
        body = rest.get(size + 2..).unwrap_or(&[]);
    }
    panic!("the body is cut off after {} bytes", out.len());
}

/// Returns the sum of a column.
pub(crate) fn sum(v: &Value) -> u64 {
    v.as_array().expect("an array").iter().map(|n| n.as_u64().unwrap_or(0)).sum()
}

/// Returns the last value of a column.
pub(crate) fn last(v: &Value) -> u64 {
    v.as_array().and_then(|a| a.last()?.as_u64()).expect("a last value")
}
