//! Names from debuginfod servers: Debian's on loopback, and servers that hang, lie, or send too much.

use common::build::{line_of, program};
use common::{Output, Scene, installed, skip, until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

/// A recording of a program without symbols, and the file with its debug information.
struct Stripped {
    scene: Scene,
    debug: PathBuf,
    id: String,
}

impl Stripped {
    /// `None` without the tools.
    fn record(name: &str) -> Option<Self> {
        if !installed("objcopy") || !installed("readelf") {
            skip(name, "objcopy or readelf is not installed");
            return None;
        }
        let scene = Scene::new("debuginfod");
        std::fs::create_dir(scene.path("debug")).expect("a folder");
        let debug = scene.path("debug/figures.debug");
        let tool = |name: &str, args: &[&str]| {
            let mut c = Command::new(name);
            c.args(args);
            scene.run(c).ok(name).stdout
        };
        let figures = program("figures.c");
        let figures = figures.to_str().expect("a path");
        tool("objcopy", &["--only-keep-debug", figures, "debug/figures.debug"]);
        tool("objcopy", &["--strip-all", figures, "figures"]);
        let notes = tool("readelf", &["-n", "figures"]);
        let id = notes.split("Build ID: ").nth(1).and_then(|t| t.split_whitespace().next());
        let id = id.expect("a build id").to_owned();
        let mut c = Command::new(Scene::binary());
        c.args(["run", "-o", "r.prof", "--", "./figures"]);
        scene.run(c).ok("prof run");
        Some(Self { scene, debug, id })
    }

    fn command(&self, args: &[&str], urls: &str, variables: &[(&str, &str)]) -> Command {
        let mut c = Command::new(Scene::binary());
        c.args(args).arg("--no-symbol-cache").current_dir(&self.scene.dir);
        for name in
            ["http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"]
        {
            c.env_remove(name);
        }
        c.env("DEBUGINFOD_URLS", urls).env("DEBUGINFOD_CACHE_PATH", self.scene.path("cache"));
        c.envs(variables.iter().copied());
        c
    }

    fn report(&self, file: &str, urls: &str, variables: &[(&str, &str)]) -> Output {
        self.scene.run(self.command(&["report", file], urls, variables)).ok("report")
    }

    fn cached(&self) -> PathBuf {
        self.scene.path("cache").join(&self.id).join("debuginfo")
    }
}

/// Function and line of the program's large blocks.
fn is_named(out: &Output) -> bool {
    let line = format!("figures.c:{}", line_of("figures.c", "large"));
    out.stdout.contains("large") && out.stdout.contains(&line)
}

/// Ends with the test.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").port()
}

/// The first line of what a server answers.
fn answer(port: u16, path: &str) -> Option<String> {
    let mut s = TcpStream::connect(("127.0.0.1", port)).ok()?;
    s.set_read_timeout(Some(Duration::from_secs(10))).ok()?;
    write!(s, "GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").ok()?;
    let mut start = [0; 64];
    let n = s.read(&mut start).ok()?;
    Some(String::from_utf8_lossy(&start[..n]).lines().next()?.to_owned())
}

#[test]
fn debians_server_gives_names_for_recordings_and_packed_ones() {
    if !installed("debuginfod") {
        return skip("debians_server_gives_names", "debuginfod is not installed");
    }
    let Some(r) = Stripped::record("debians_server_gives_names") else { return };
    let port = free_port();
    let mut c = Command::new("debuginfod");
    c.args(["-d", ":memory:", "-t", "0", "-g", "0", "-F", "-p", &port.to_string()]);
    c.arg(r.debug.parent().expect("a folder")).env_remove("DEBUGINFOD_URLS");
    c.env("HOME", &r.scene.dir).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let server = Server(c.spawn().expect("debuginfod"));
    let path = format!("/buildid/{}/debuginfo", r.id);
    until("the server has the file", || answer(port, &path).is_some_and(|a| a.contains(" 200 ")));
    let url = format!("http://127.0.0.1:{port}");

    let out = r.report("r.prof", "", &[]);
    assert!(!is_named(&out) && !r.scene.path("cache").exists(), "no server, and names: {out:?}");
    let mut pack = Command::new(Scene::binary());
    pack.args(["pack", "-o", "packed.prof", "r.prof"]).env_remove("DEBUGINFOD_URLS");
    r.scene.run(pack).ok("pack");

    let out = r.report("r.prof", &url, &[("DEBUGINFOD_PROGRESS", "1")]);
    assert!(is_named(&out), "{out:?}");
    assert!(out.stderr.contains("downloading debug information of"), "{out:?}");
    let (cached, sent) = (std::fs::read(r.cached()), std::fs::read(&r.debug));
    assert!(cached.expect("in the cache") == sent.expect("a file"), "another file is in the cache");
    // Another machine has neither the program nor the cache.
    std::fs::remove_file(r.scene.path("figures")).expect("removed");
    std::fs::remove_dir_all(r.scene.path("cache")).expect("removed");
    let out = r.report("packed.prof", &url, &[]);
    assert!(is_named(&out), "{out:?}");
    let export = r.command(&["export", "folded", "--cost", "allocated", "packed.prof"], &url, &[]);
    assert!(r.scene.run(export).ok("export").stdout.contains("large"));
    // What is in the cache is asked of nobody.
    drop(server);
    assert!(is_named(&r.report("packed.prof", &url, &[])));
    if installed("debuginfod-find") {
        let mut c = Command::new("debuginfod-find");
        c.args(["debuginfo", &r.id]).env("DEBUGINFOD_URLS", &url);
        c.env("DEBUGINFOD_CACHE_PATH", r.scene.path("cache"));
        let found = r.scene.run(c).ok("debuginfod-find").stdout;
        assert_eq!(found.trim(), r.cached().to_str().expect("a path"));
    }
}

/// A server of this test's: answers each request by a function of the path and the number of requests for the
/// program's file so far.
fn serve(id: &str, reply: impl Fn(&mut TcpStream) + Send + 'static) -> (String, Arc<AtomicU32>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let (asked, path) = (Arc::new(AtomicU32::new(0)), format!("/buildid/{id}/debuginfo "));
    let count = asked.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut request = Vec::new();
            let mut some = [0; 1024];
            while !request.ends_with(b"\r\n\r\n") {
                match stream.read(&mut some) {
                    Ok(n) if n > 0 => request.extend_from_slice(&some[..n]),
                    _ => break,
                }
            }
            // Other modules, such as libc, are not the matter here.
            if String::from_utf8_lossy(&request).contains(&path) {
                count.fetch_add(1, SeqCst);
                reply(&mut stream);
            } else {
                let _ = stream.write_all(
                    b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
                );
            }
        }
    });
    (format!("http://127.0.0.1:{port}"), asked)
}

fn says(out: &Output, word: &str) {
    assert!(out.stderr.contains(word), "{word:?} is not in {:?}", out.stderr);
    assert!(!is_named(out), "named by {word}");
}

#[test]
fn servers_that_hang_lie_or_send_too_much_are_said_and_left() {
    let Some(r) = Stripped::record("servers_that_hang") else { return };
    let head = |more: &str| format!("HTTP/1.1 200 OK\r\nConnection: close\r\n{more}\r\n");
    let send = |bytes: Vec<u8>| {
        move |s: &mut TcpStream| {
            let _ = s.write_all(&bytes);
        }
    };
    let whole = |body: &[u8]| {
        [head(&format!("Content-Length: {}\r\n", body.len())).as_bytes(), body].concat()
    };
    let report = |url: &str, more: &[(&str, &str)]| {
        let out = r.report("r.prof", url, &[&[("DEBUGINFOD_TIMEOUT", "1")], more].concat());
        assert!(!r.cached().metadata().is_ok_and(|m| m.len() > 0), "kept: {out:?}");
        out
    };
    // Accepts, and says nothing; sends a byte now and then.
    let hang = |s: &mut TcpStream| {
        let _ = s.read(&mut [0]);
    };
    says(&report(&serve(&r.id, hang).0, &[]), "no answer within 1s");
    let start = head("").into_bytes();
    let drip = move |s: &mut TcpStream| {
        let _ = s.write_all(&start);
        while s.write_all(b"x").is_ok() {
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    says(&report(&serve(&r.id, drip).0, &[]), "less than 100 KiB");
    let html = whole(b"<html>please log in</html>");
    says(&report(&serve(&r.id, send(html)).0, &[]), "something else than debug information");
    let other = std::fs::read(program("toggle.c")).expect("a program");
    says(&report(&serve(&r.id, send(whole(&other))).0, &[]), "another build");
    let short = [head("Content-Length: 1000\r\n").as_bytes(), b"\x7fELF"].concat();
    says(&report(&serve(&r.id, send(short)).0, &[]), "debuginfod: http://");
    let huge = head(&format!("Content-Length: {}\r\n", 1u64 << 60)).into_bytes();
    says(&report(&serve(&r.id, send(huge)).0, &[]), "1.0 EiB exceed");
    let start = head("").into_bytes();
    let endless = move |s: &mut TcpStream| {
        let _ = s.write_all(&start);
        while s.write_all(&[0; 4096]).is_ok() {}
    };
    let out = report(&serve(&r.id, endless).0, &[("DEBUGINFOD_MAXSIZE", "1000000")]);
    says(&out, "DEBUGINFOD_MAXSIZE");
    let broken = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n".to_vec();
    let (broken, _) = serve(&r.id, send(broken));
    says(&report(&broken, &[]), "503");
    says(&report(&format!("http://127.0.0.1:{}", free_port()), &[]), "none is left");
    // The next one in the list has it.
    let debug = std::fs::read(&r.debug).expect("debug information");
    let (good, _) = serve(&r.id, send(whole(&debug)));
    let out = r.report("r.prof", &format!("{broken} {good}"), &[]);
    assert!(is_named(&out) && out.stderr.contains("503"), "{out:?}");
}

#[test]
fn what_no_server_has_is_not_asked_for_again() {
    let Some(r) = Stripped::record("what_no_server_has") else { return };
    let absent = |s: &mut TcpStream| {
        let _ = s
            .write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    };
    let (url, asked) = serve(&r.id, absent);
    for _ in 0..3 {
        let out = r.report("r.prof", &url, &[]);
        assert!(!is_named(&out) && !out.stderr.contains("debuginfod"), "{out:?}");
        assert_eq!(asked.load(SeqCst), 1);
    }
    assert_eq!(r.cached().metadata().expect("as the official client has it").len(), 0);
    // Until the time that the folder says has passed.
    std::fs::write(r.scene.path("cache/cache_miss_s"), "0\n").expect("written");
    r.report("r.prof", &url, &[]);
    assert_eq!(asked.load(SeqCst), 2);
}

#[test]
fn ctrl_c_ends_a_download_and_leaves_nothing() {
    let Some(r) = Stripped::record("ctrl_c_ends_a_download") else { return };
    let part =
        format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{}", 1 << 20, "x".repeat(1 << 18));
    let hang = move |s: &mut TcpStream| {
        let _ = s.write_all(part.as_bytes());
        let _ = s.read(&mut [0]);
    };
    let (url, asked) = serve(&r.id, hang);
    let mut c = r.command(&["report", "r.prof"], &url, &[]);
    c.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut prof = Server(c.spawn().expect("prof"));
    until("it downloads", || asked.load(SeqCst) == 1);
    kill(Pid::from_raw(prof.0.id() as i32), Signal::SIGINT).expect("SIGINT");
    let status = prof.0.wait().expect("its end");
    assert_eq!(status.signal(), Some(Signal::SIGINT as i32), "{status:?}");
    let left: Vec<_> =
        std::fs::read_dir(r.cached().parent().expect("a folder")).expect("a list").collect();
    assert!(left.is_empty(), "{left:?}");
}

/// A server with a certificate that a file of trusted ones has, as for https://debuginfod.debian.net.
const HTTPS: &str = "
import http.server, ssl, sys
server = http.server.HTTPServer(('127.0.0.1', 0), http.server.SimpleHTTPRequestHandler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain('cert.pem', 'key.pem')
server.socket = context.wrap_socket(server.socket, server_side=True)
open('port.new', 'w').write(str(server.server_port))
import os
os.rename('port.new', 'port')
server.serve_forever()
";

#[test]
fn servers_are_asked_by_https_and_their_certificates_are_checked() {
    if !installed("openssl") || !installed("python3") {
        return skip("servers_are_asked_by_https", "openssl or python3 is not installed");
    }
    let Some(r) = Stripped::record("servers_are_asked_by_https") else { return };
    let mut c = Command::new("openssl");
    c.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]);
    c.args(["-keyout", "key.pem", "-out", "cert.pem", "-days", "2", "-subj", "/CN=localhost"]);
    c.args([
        "-addext",
        "subjectAltName=IP:127.0.0.1",
        "-addext",
        "basicConstraints=critical,CA:FALSE",
    ]);
    r.scene.run(c).ok("openssl");
    let folder = r.scene.path("buildid").join(&r.id);
    std::fs::create_dir_all(&folder).expect("a folder");
    std::fs::copy(&r.debug, folder.join("debuginfo")).expect("copied");
    let mut c = Command::new("python3");
    c.args(["-c", HTTPS]).current_dir(&r.scene.dir);
    c.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let _server = Server(c.spawn().expect("python3"));
    until("the server listens", || r.scene.path("port").exists());
    let port = std::fs::read_to_string(r.scene.path("port")).expect("a port");
    let url = format!("https://127.0.0.1:{port}");
    // Nobody has signed it for this machine.
    let out = r.report("r.prof", &url, &[]);
    says(&out, "certificate");
    let trusted = r.scene.path("cert.pem");
    let out = r.report("r.prof", &url, &[("SSL_CERT_FILE", trusted.to_str().expect("a path"))]);
    assert!(is_named(&out), "{out:?}");
}
