//! `prof serve` as a user starts it: one line on standard output, figures equal to those of `prof report`, live
//! recordings that can be controlled, an end within a second.
#![cfg(feature = "serve")]

use common::build::program;
use common::{Scene, Target};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A server that is ended with the test.
struct Server {
    child: Child,
    host: String,
    token: String,
}

impl Server {
    fn start(scene: &Scene, args: &[&str]) -> Self {
        let mut child = Command::new(Scene::binary())
            .arg("serve")
            .args(args)
            .args(["--listen", "127.0.0.1:0"])
            .current_dir(&scene.dir)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a server");
        let mut line = String::new();
        let out = child.stdout.take().expect("its output");
        BufReader::new(out).read_line(&mut line).expect("a line");
        let (host, token) = line
            .trim()
            .strip_prefix("http://")
            .and_then(|l| l.split_once("/?token="))
            .expect("an address");
        Self { child, host: host.to_owned(), token: token.to_owned() }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.host).expect("a connection");
        stream.set_read_timeout(Some(common::DEADLINE)).expect("a time");
        stream
    }

    /// Sends a request; returns the status and the body.
    fn ask(&self, method: &str, path: &str) -> (u16, String) {
        let mut stream = self.connect();
        let body = if method == "POST" { "{}" } else { "" };
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            self.host,
            self.token,
            body.len()
        )
        .expect("sent");
        let mut got = String::new();
        stream.read_to_string(&mut got).expect("an answer");
        let (head, body) = got.split_once("\r\n\r\n").expect("a head");
        let status = head.split(' ').nth(1).and_then(|s| s.parse().ok()).expect("a status");
        (status, body.to_owned())
    }

    /// Asks for JSON, also while the recording is still being read.
    #[track_caller]
    fn json(&self, path: &str) -> Value {
        let begin = Instant::now();
        loop {
            let (status, body) = self.ask("GET", path);
            assert!(status == 200 || status == 503, "{path}: {status} {body}");
            assert!(begin.elapsed() < common::DEADLINE, "{path} is never ready");
            if status == 200 {
                return serde_json::from_str(&body).expect("JSON");
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn its_figures_are_those_of_the_command_line() {
    let scene = Scene::new("serve");
    scene.prof(&["run", "-o", "a.prof", "--", "ls", "-R", "/usr/share/doc"]).ok("prof run");
    let server = Server::start(&scene, &["a.prof"]);
    for filter in [&[][..], &["min-size", "100"], &["to", "50%"], &["lifetime", "freed"]] {
        let mut args = vec!["report".to_owned(), "a.prof".into(), "--format=json".into()];
        let mut query = String::new();
        if let [name, value] = filter {
            args.push(format!("--{name}={value}"));
            query = format!("{name}={}", value.replace('%', "%25"));
        }
        let cli: Value =
            serde_json::from_str(&scene.prof(&args).ok("prof report").stdout).expect("JSON");
        let own = server.json(&format!("/api/v1/last/head?{query}"));
        for key in ["totals", "target", "filter"] {
            assert_eq!(own[key], cli[key], "{filter:?} {key}");
        }
        let groups = server.json(&format!("/api/v1/last/groups?count=10&{query}"));
        let ids = |v: &Value| -> Vec<(Value, Value)> {
            v.as_array()
                .expect("rows")
                .iter()
                .map(|g| (g["live_bytes"].clone(), g["live_count"].clone()))
                .collect()
        };
        let shown = ids(&cli["groups"]);
        assert_eq!(ids(&groups["rows"])[..shown.len()], shown, "{filter:?}");
    }
    assert_eq!(server.ask("GET", "/").0, 200);
    // A server ends at once, whatever its clients do.
    let mut waiting = server.connect();
    waiting.write_all(b"GET /").expect("sent");
    let begin = Instant::now();
    let mut server = server;
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(server.child.id() as i32),
        nix::sys::signal::Signal::SIGINT,
    )
    .expect("a signal");
    server.child.wait().expect("its end");
    assert!(begin.elapsed() < common::DEADLINE);
}

#[test]
fn a_live_recording_is_followed_and_controlled() {
    let scene = Scene::new("serve-live");
    let mut target = Target::start(&program("toggle.c"), &[]);
    scene.attach(&target);
    let pid = target.pid.to_string();
    let server = Server::start(&scene, &[&pid, "--control"]);
    target.ask("alloc 300");
    let mut events = server.connect();
    write!(
        events,
        "GET /api/v1/events HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\n\r\n",
        server.host, server.token
    )
    .expect("sent");
    let begin = Instant::now();
    let mut lines = BufReader::new(events).lines();
    let mut tick = |wanted: &dyn Fn(&Value) -> bool| -> Value {
        loop {
            assert!(begin.elapsed() < common::DEADLINE, "no such tick");
            let line = lines.next().expect("a line").expect("text");
            let Some(data) = line.strip_prefix("data: ") else { continue };
            let value: Value = serde_json::from_str(data).expect("JSON");
            if value.get("point").is_some() && wanted(&value) {
                return value;
            }
        }
    };
    let blocks = |v: &Value| v["point"]["live_blocks"].as_u64() >= Some(300);
    let got = tick(&blocks);
    assert_eq!(got["state"], "recording");
    assert!(got["top"].as_array().is_some_and(|t| !t.is_empty()), "{got}");
    assert_eq!(server.ask("POST", "/api/v1/live/1/pause").0, 404, "another process");
    let (status, body) = server.ask("POST", &format!("/api/v1/live/{pid}/pause"));
    assert!(status == 200 && body.contains("paused"), "{status} {body}");
    assert_eq!(tick(&|v| v["state"] == "paused")["state"], "paused");
    let (status, body) = server.ask("POST", &format!("/api/v1/live/{pid}/resume"));
    assert!(status == 200 && body.contains("recording"), "{status} {body}");
    let (status, body) = server.ask("POST", &format!("/api/v1/live/{pid}/detach"));
    assert!(status == 200 && body.contains("detached"), "{status} {body}");
    assert!(!target.has_ring());
    tick(&|v| v["finished"] == true);
    // The recording is read anew when it has grown.
    std::thread::sleep(Duration::from_secs(3));
    let live = loop {
        let head = server.json("/api/v1/last/head");
        if head["recording"]["complete"] == true || begin.elapsed() > common::DEADLINE {
            break head["totals"]["live_count"].as_u64();
        }
        std::thread::sleep(Duration::from_millis(500));
    };
    assert_eq!(live, Some(300));
    target.quit();
}

#[test]
fn what_can_not_be_served_is_refused() {
    let scene = Scene::new("serve-refused");
    std::fs::write(scene.path("x.prof"), "no recording").expect("written");
    for (args, part) in [
        (&["serve", "none.prof"][..], "none.prof"),
        (&["serve"], "no recording here"),
        (&["serve", "--listen", "example.org:80", "x.prof"], "is no address"),
        (&["serve", "--listen", "0.0.0.0:0", "--token", "none", "x.prof"], "127.0.0.1"),
        (&["serve", "--token", "short", "--listen", "127.0.0.1:0", "x.prof"], "--token"),
        (&["serve", "--sources", "nowhere", "x.prof"], "no folder"),
        (&["server", "-i", "here", "x.prof"], "--interface"),
    ] {
        let out = scene.prof(args);
        assert!(out.code == 2 && out.stderr.contains(part), "{args:?}: {out:?}");
        assert!(out.stdout.is_empty(), "{args:?}: {out:?}");
    }
    let server = Server::start(&scene, &["x.prof"]);
    let begin = Instant::now();
    loop {
        let (status, body) = server.ask("GET", "/api/v1/last/head");
        assert!(status == 422 || status == 503, "{status} {body}");
        if status == 422 {
            break;
        }
        assert!(begin.elapsed() < common::DEADLINE);
    }
}

/// The scans of a recording are asked for as by `prof holds FILE`, and as a tree whose nodes add up.
#[test]
fn scans_have_the_figures_of_the_command_line() {
    let scene = Scene::new("serve-scans");
    let (file, pid) = &scene.with_two_scans();
    let server = Server::start(&scene, &[file]);
    let own = |query: &str| server.json(&format!("/api/v1/last/{query}"));
    let cli = |args: &[&str]| -> Value {
        let all = [&["holds", file, "--format", "json"][..], args].concat();
        serde_json::from_str(&scene.prof(&all).ok("prof holds").stdout).expect("JSON")
    };
    let scans = own("scans");
    let names: Vec<_> =
        scans["rows"].as_array().expect("rows").iter().map(|s| s["name"].as_str()).collect();
    assert_eq!((names, &scans["pid"]), (vec![Some("first"), Some("")], &(*pid).into()));
    assert_eq!(own("holds"), cli(&[]));
    let first = own("holds?scan=first&top=0&depth=0");
    assert_eq!(first, cli(&["--scan", "first", "--top", "0", "--depth", "0"]));
    assert_eq!(own("holds?since=1"), cli(&["--since-scan", "1"]));
    let stack = first["top_stacks"][0]["stack"].to_string();
    let by = own(&format!("holds?scan=1&by=none&path={stack}"));
    let path = cli(&["--scan", "1", "--path", &stack]);
    assert_eq!(
        (&by["paths"], by["top_stacks"].as_array().map(Vec::len)),
        (&path["paths"], Some(0))
    );
    // What the roots retain, with what several hold, is all that is reached. Below a node stands what it retains.
    let bytes = |v: &Value| v["retained"]["bytes"].as_u64().expect("bytes");
    let top = own("holders?scan=1");
    let children = top["children"].as_array().expect("children");
    let live = |key: &str| first[key]["bytes"].as_u64().expect("bytes");
    let sum: u64 = children.iter().map(bytes).sum();
    assert_eq!(sum, live("live") - live("unreachable"));
    assert!(children.windows(2).all(|w| bytes(&w[0]) >= bytes(&w[1])), "{children:#?}");
    let sessions = children.iter().find(|c| c["variable"] == "sessions").expect("a variable");
    for node in [sessions, children.iter().find(|c| c["node"] == "several").expect("several")] {
        let name = node["node"].to_string();
        let below = own(&format!("holders?scan=1&node={}", name.trim_matches('"')));
        let below = below["children"].as_array().expect("children");
        assert_eq!(below.iter().map(bytes).sum::<u64>(), bytes(node), "{node:#}");
        assert!(below.iter().all(|b| b["stack"].is_u64() && b["from"].is_string()), "{below:#?}");
    }
    let few = own("holders?scan=1&count=1");
    assert_eq!(few["more"]["count"], first["top_roots"].as_array().map_or(0, Vec::len) - 1);
    for (wrong, status, why) in [
        ("holds?scan=9", 404, "has no scan"),
        ("holders?scan=1&node=99999999", 404, "no such node"),
        ("holders?node=x", 404, "no such node"),
        ("holds?path=0x1", 400, "no block"),
        ("holds?path=x", 400, "neither"),
        ("holds?colour=red", 400, "colour"),
    ] {
        let (got, body) = server.ask("GET", &format!("/api/v1/last/{wrong}"));
        assert!(got == status && body.contains(why), "{wrong}: {got} {body}");
    }
}
