//! The attacks that the server must stand.

use super::client::{HOSTILE, Reply, Served, TOKEN, options};
use prof_serve::{Listen, Server, Token};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// Sends a request of the given lines, and returns the status.
fn status(s: &Served, start: &str, headers: &[&str]) -> u16 {
    let mut text = format!("{start}\r\n");
    headers.iter().for_each(|h| text.push_str(&format!("{h}\r\n")));
    Reply::parse(&s.send(format!("{text}Connection: close\r\n\r\n").as_bytes())).status
}

#[test]
fn requests_of_others_are_refused() {
    let s = Served::new(1);
    let host = format!("Host: {}", s.host());
    let port = s.at.port();
    let token = format!("Authorization: Bearer {TOKEN}");
    let get = "GET /list HTTP/1.1";
    let with = |h: &str| status(&s, get, &[h, &token]);
    // Whose host is it?
    assert_eq!(with(&host), 200);
    assert_eq!(with(&format!("Host: localhost:{port}")), 200);
    assert_eq!(with(&format!("Host: LOCALHOST:{port}")), 200);
    assert_eq!(with(&format!("Host: prof.example:{port}")), 200);
    assert_eq!(with("Host: proxied.example:443"), 200);
    for wrong in [
        "Host: attacker.example".to_owned(),
        format!("Host: attacker.example:{port}"),
        format!("Host: 127.0.0.1.attacker.example:{port}"),
        format!("Host: localhost.attacker.example:{port}"),
        format!("Host: 127.0.0.1:{}", port.wrapping_add(1)),
        "Host: 127.0.0.1".to_owned(),
        format!("Host: 192.168.1.1:{port}"),
        format!("Host: prof.example@attacker.example:{port}"),
        format!("Host: 0:{port}"),
        format!("Host: [::1]:{port}"),
        "Host: proxied.example".to_owned(),
    ] {
        assert!(matches!(with(&wrong), 400 | 403), "{wrong}");
    }
    assert_eq!(with("Host: "), 403);
    assert_eq!(status(&s, get, &[&token]), 400, "no host");
    assert_eq!(status(&s, get, &[&host, &host, &token]), 400, "two hosts");
    assert_eq!(status(&s, "GET /list HTTP/1.0", &[&token]), 400, "HTTP/1.0 without a host");
    assert_eq!(status(&s, "GET /list HTTP/1.0", &[&host, &token]), 200);
    let absolute = format!("GET http://{}/list HTTP/1.1", s.host());
    assert_eq!(status(&s, &absolute, &[&host, &token]), 400, "an absolute target");
    assert_eq!(status(&s, "GET http://attacker.example/ HTTP/1.1", &[&host, &token]), 400);
    // Whose page is it?
    let origin = |o: &str| status(&s, get, &[&host, &token, &format!("Origin: {o}")]);
    assert_eq!(origin(&format!("http://{}", s.host())), 200);
    for wrong in ["null", "http://attacker.example", "https://127.0.0.1", "file://", ""] {
        assert_eq!(origin(wrong), 403, "{wrong}");
    }
    assert_eq!(origin(&format!("https://{}", s.host())), 403, "another scheme");
    for (site, code) in
        [("same-origin", 200), ("none", 200), ("cross-site", 403), ("same-site", 403), ("x", 403)]
    {
        assert_eq!(
            status(&s, get, &[&host, &token, &format!("Sec-Fetch-Site: {site}")]),
            code,
            "{site}"
        );
    }
    // The methods that it may use.
    let preflight = ["Origin: http://attacker.example", "Access-Control-Request-Method: POST"];
    let got = s.ask("OPTIONS", "/list", &format!("{}\r\n{}\r\n", preflight[0], preflight[1]), "");
    assert_eq!(got.status, 403);
    assert!(!got.head.contains("access-control"), "{}", got.head);
    for method in ["OPTIONS", "PUT", "DELETE", "PATCH", "TRACE", "PROPFIND"] {
        assert_eq!(
            status(&s, &format!("{method} /list HTTP/1.1"), &[&host, &token]),
            405,
            "{method}"
        );
    }
    assert!(matches!(status(&s, "CONNECT a:1 HTTP/1.1", &[&host, &token]), 400 | 405));
}

#[test]
fn a_token_is_needed_and_in_its_place() {
    let s = Served::new(2);
    let host = format!("Host: {}", s.host());
    let cookie = format!("prof_{}", s.at.port());
    let code = |path: &str, headers: &[&str]| {
        let all: Vec<&str> = [&*host].into_iter().chain(headers.iter().copied()).collect();
        status(&s, &format!("GET {path} HTTP/1.1"), &all)
    };
    assert_eq!(code("/list", &[]), 401);
    assert_eq!(code("/", &[]), 401);
    assert_eq!(code("/api/openapi.json", &[]), 401);
    assert_eq!(code("/nothing", &[]), 401);
    assert_eq!(code(&format!("/list?token={TOKEN}"), &[]), 200);
    assert_eq!(code(&format!("/list?a=1&token={TOKEN}"), &[]), 200);
    assert_eq!(code("/list", &[&format!("Cookie: x=y; {cookie}={TOKEN}")]), 200);
    for (path, header) in [
        ("/list", format!("Authorization: Basic {TOKEN}")),
        ("/list", format!("Authorization: {TOKEN}")),
        ("/list", format!("X-Token: {TOKEN}")),
        ("/list", format!("Cookie: token={TOKEN}")),
        ("/list", format!("Cookie: prof_1={TOKEN}")),
        ("/list", format!("Cookie: {cookie}={TOKEN}x")),
        ("/list", format!("Cookie: {cookie}=")),
        ("/list", format!("Referer: http://x/?token={TOKEN}")),
        ("/list?token=", String::from("X: y")),
        ("/list?Token=a-token-for-tests", String::from("X: y")),
        ("/a-token-for-tests/list", String::from("X: y")),
        ("/list?token=a-token-for-test", String::from("X: y")),
    ] {
        assert_eq!(code(path, &[&header]), 401, "{path} {header}");
    }
    // A browser is given a cookie, and goes on without the token.
    let enter =
        |path: &str| {
            Reply::parse(&s.send(
                format!("GET {path} HTTP/1.1\r\n{host}\r\nConnection: close\r\n\r\n").as_bytes(),
            ))
        };
    let got = enter(&format!("/?a=b&token={TOKEN}"));
    assert_eq!((got.status, got.header("location")), (303, Some("/?a=b")));
    let set = got.header("set-cookie").expect("a cookie");
    assert!(
        set.starts_with(&format!("{cookie}={TOKEN}; httponly; samesite=strict; path=/")),
        "{set}"
    );
    let elsewhere = enter(&format!("//attacker.example/?token={TOKEN}"));
    assert_ne!(elsewhere.header("location").map(|l| l.starts_with("//")), Some(true));
    // The token in the command line of a browser is good once.
    let once = s.once.rsplit('=').next().expect("a token");
    assert_ne!(once, TOKEN);
    assert_eq!(enter(&format!("/list?token={once}")).status, 401);
    assert_eq!(enter(&format!("/?token={once}")).status, 303);
    assert_eq!(enter(&format!("/?token={once}")).status, 401);
}

#[test]
fn a_post_must_come_from_the_page() {
    let s = Served::new(3);
    let (host, port) = (s.host(), s.at.port());
    let post = |headers: &[String]| {
        let mut text = format!(
            "POST /data/last/execute_script HTTP/1.1\r\nHost: {host}\r\nContent-Length: 2\r\n"
        );
        headers.iter().for_each(|h| text.push_str(&format!("{h}\r\n")));
        Reply::parse(&s.send(format!("{text}Connection: close\r\n\r\n{{}}").as_bytes())).status
    };
    let cookie = format!("Cookie: prof_{port}={TOKEN}");
    let bearer = format!("Authorization: Bearer {TOKEN}");
    let json = "Content-Type: application/json".to_owned();
    let origin = format!("Origin: http://{host}");
    assert_eq!(post(&[cookie.clone(), json.clone(), origin.clone()]), 200);
    assert_eq!(post(&[bearer.clone(), "Content-Type: text/plain; charset=utf-8".into()]), 200);
    assert_eq!(post(&[cookie.clone(), json.clone()]), 403, "no origin");
    assert_eq!(post(&[cookie.clone(), json.clone(), "Origin: null".into()]), 403);
    assert_eq!(post(&[json, origin.clone()]), 401, "no token");
    for kind in ["application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""] {
        assert_eq!(
            post(&[cookie.clone(), origin.clone(), format!("Content-Type: {kind}")]),
            415,
            "{kind}"
        );
    }
    assert_eq!(post(&[cookie, origin]), 415, "no type");
    // Nothing is controlled unless the server was started so.
    let text = "Content-Type: application/json\r\n";
    assert_eq!(s.ask("POST", "/api/v1/live/1/detach", text, "{}").status, 403);
    assert_eq!(s.ask("GET", "/api/v1/live/1/detach", "", "").status, 405);
}

#[test]
fn what_is_too_long_is_refused() {
    let s = Served::new(4);
    assert_eq!(s.get(&format!("/list?x={}", "a".repeat(17 << 10))).status, 414);
    assert!(matches!(s.get(&format!("/list?x={}", "a".repeat(1 << 20))).status, 414 | 431));
    let long = |n: usize| s.ask("GET", "/list", &format!("X: {}\r\n", "a".repeat(n)), "").status;
    assert_eq!(long(1 << 10), 200);
    assert_eq!(long(40 << 10), 431);
    assert!(matches!(long(1 << 20), 431 | 0), "a header of 1 MiB");
    let many = "X: y\r\n".repeat(5000);
    assert!(matches!(s.ask("GET", "/list", &many, "").status, 431 | 0));
    let text = "Content-Type: text/plain\r\n";
    let body = "x".repeat((1 << 20) + 1);
    assert!(matches!(s.ask("POST", "/data/last/execute_script", text, &body).status, 413 | 0));
    let chunked = format!(
        "POST /data/last/execute_script HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {TOKEN}\r\n{text}\
         Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n",
        s.host(),
        body.len()
    );
    assert!(matches!(Reply::parse(&s.send(chunked.as_bytes())).status, 413 | 0));
    assert_eq!(s.get(&format!("/list?{}", "a&".repeat(300))).status, 400);
    assert_eq!(s.get("/data/last/allocations?count=99999999").status, 400);
    assert_eq!(s.get("/data/last/allocations?count=-1").status, 400);
    assert_eq!(s.get("/api/v1/last/timeline?width=99999999").status, 400);
    assert_eq!(s.get("/api/v1/last/groups?skip=99999999999999999999").status, 400);
    assert_eq!(
        s.get("/api/v1/last/head?function=%28a%7B999%7D%29%7B999%7D").status,
        400,
        "a huge regex"
    );
    // The server is still there.
    assert_eq!(s.get("/list").status, 200);
}

#[test]
fn no_path_of_a_request_is_opened() {
    let s = Served::new(5);
    for path in [
        "/../../etc/passwd",
        "/assets/../../../etc/passwd",
        "/assets/edited/../Cargo.toml",
        "/assets/edited/..%2fCargo.toml",
        "/assets/edited/%2e%2e/Cargo.toml",
        "/assets/edited//etc/passwd",
        "/assets/edited/%2fetc%2fpasswd",
        "/assets/edited/index.html%00.js",
        "/assets/edited/js\\..\\..\\Cargo.toml",
        "/assets/edited/test/x.test.mjs",
        "/data/..%2f..%2fetc/timeline",
        "/data/%2e%2e/timeline",
        "/data/last/export/folded",
        "/api/v1/last/export/..%2f..%2fetc%2fpasswd",
        "/api/v1/last/source?file=/etc/passwd",
        "/data/last/script_files/x/..%2f..%2fetc%2fpasswd",
        "/.git/config",
        "/index.html",
    ] {
        let got = s.get(path);
        assert_eq!(got.status, 404, "{path}: {}", got.body);
        assert!(!got.body.contains("root:") && !got.body.contains("[package]"), "{path}");
    }
}

#[test]
fn every_answer_has_the_headers_and_names_stay_text() {
    let s = Served::new(6);
    for path in [
        "/",
        "/list",
        "/nothing",
        "/api/v1/last/head",
        "/api/v1/last/head?x=y",
        "/api/v1/last/export/csv",
    ] {
        let got = s.get(path);
        let policy = got.header("content-security-policy").unwrap_or_else(|| panic!("{path}"));
        if !path.contains("export") {
            assert!(
                !policy.contains("unsafe") && policy.contains("script-src 'self'"),
                "{path}: {policy}"
            );
            assert!(policy.contains("require-trusted-types-for 'script'"), "{path}: {policy}");
        } else {
            assert!(policy.contains("sandbox"), "{path}: {policy}");
        }
        assert_eq!(got.header("x-content-type-options"), Some("nosniff"), "{path}");
        assert_eq!(got.header("cross-origin-resource-policy"), Some("same-origin"), "{path}");
        assert!(got.header("server").is_none() && !got.head.contains("access-control"), "{path}");
        assert!(got.header("cache-control").is_some(), "{path}");
    }
    let flame = s.get("/api/v1/last/flame?metric=allocated");
    assert_eq!(flame.header("content-type"), Some("application/json"));
    let frames = flame.json()["frames"].clone();
    let names: Vec<&str> =
        frames.as_array().expect("frames").iter().filter_map(|f| f["name"].as_str()).collect();
    assert!(names.contains(&HOSTILE), "{names:?}");
    let svg = s.get("/data/last/export/flamegraph?function_regex=onerror");
    assert_eq!(svg.status, 200);
    assert!(!svg.body.contains("<img"), "a name became markup");
    assert!(
        svg.header("content-security-policy").is_some_and(|p| p.contains("sandbox allow-scripts"))
    );
}

#[test]
fn connections_that_stall_keep_nobody_out() {
    let s = Served::new(7);
    assert_eq!(s.get("/list").status, 200);
    let mut stalled = Vec::new();
    for i in 0..1000 {
        let Ok(mut stream) = TcpStream::connect(s.at) else { panic!("connection {i}") };
        let _ = stream.write_all(b"GET /list HTTP/1.1\r\nHo");
        stalled.push(stream);
    }
    assert_eq!(s.get("/list").status, 200, "the 1,001st");
    // The oldest were closed for the new ones.
    stalled[0].set_read_timeout(Some(Duration::from_secs(60))).expect("a time");
    assert!(matches!(stalled[0].read(&mut [0; 64]), Ok(0) | Err(_)));
}

#[test]
fn a_head_or_a_body_that_does_not_come_is_not_waited_for() {
    let s = Served::new(8);
    let begin = Instant::now();
    // A head, a byte at a time.
    let mut slow = TcpStream::connect(s.at).expect("a connection");
    slow.set_read_timeout(Some(Duration::from_millis(200))).expect("a time");
    let mut closed = false;
    while begin.elapsed() < Duration::from_secs(120) && !closed {
        closed = slow.write_all(b"x").is_err();
        match slow.read(&mut [0; 256]) {
            Ok(0) => closed = true,
            Ok(_) => closed = true,
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => closed = true,
        }
    }
    assert!(closed, "a head that never ends keeps its connection");
    let head = format!(
        "POST /data/last/execute_script HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {TOKEN}\r\n\
         Content-Type: text/plain\r\nContent-Length: 100\r\nConnection: close\r\n\r\nhalf",
        s.host()
    );
    assert_eq!(Reply::parse(&s.send(head.as_bytes())).status, 408);
}

#[test]
fn requests_behind_each_other_are_answered_in_order() {
    let s = Served::new(9);
    let one = |path: &str, more: &str| {
        format!(
            "GET {path} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {TOKEN}\r\n{more}\r\n",
            s.host()
        )
    };
    let text =
        [one("/list", ""), one("/nothing", ""), one("/api/v1/fields", "Connection: close\r\n")]
            .concat();
    let got = s.send(text.as_bytes());
    let codes: Vec<&str> =
        got.match_indices("HTTP/1.1 ").map(|(i, _)| &got[i + 9..i + 12]).collect();
    assert_eq!(codes, ["200", "404", "200"]);
    // A request hidden in the body of another: the two lengths contradict each other.
    let smuggled = format!(
        "POST /data/last/execute_script HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {TOKEN}\r\n\
         Content-Type: text/plain\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n\
         GET /list HTTP/1.1\r\nHost: attacker.example\r\n\r\n",
        s.host()
    );
    let got = s.send(smuggled.as_bytes());
    assert!(!got.contains("\"executable\""), "{got}");
}

#[test]
fn nonsense_is_answered_or_closed() {
    let s = Served::new(10);
    for bytes in [
        &b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[..],
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET /list HTTP/9.9\r\n\r\n",
        b"GET /\x00 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /list HTTP/1.1\nHost: x\n\n",
        b"\r\n\r\n\r\n\r\n",
    ] {
        let got = s.send(&[bytes, b"Connection: close\r\n\r\n"].concat());
        assert!(!got.contains(" 200 "), "{got}");
    }
    assert_eq!(s.get("/list").status, 200);
}

#[test]
fn a_server_without_a_token_is_local() {
    let all = Listen::Tcp("0.0.0.0:0".parse().expect("an address"), false);
    assert!(Server::bind(Vec::new(), options(all, Token::None)).is_err());
    let s = Served::with(11, Token::None);
    let host = format!("Host: {}", s.host());
    assert_eq!(status(&s, "GET /list HTTP/1.1", &[&host]), 200);
    assert_eq!(status(&s, "GET /list HTTP/1.1", &["Host: attacker.example"]), 403);
    assert_eq!(status(&s, "GET /list HTTP/1.1", &[&host, "Origin: http://attacker.example"]), 403);
    for bad in ["short", "with space 12", "a;b;c;d;e", "ü12345678"] {
        let any = Listen::Tcp("127.0.0.1:0".parse().expect("an address"), false);
        assert!(Server::bind(Vec::new(), options(any, Token::Text(bad.into()))).is_err(), "{bad}");
    }
}

#[test]
fn a_socket_is_its_owners() {
    use std::os::unix::fs::PermissionsExt;
    let path = std::env::temp_dir().join(format!("prof-serve-test-{}.sock", std::process::id()));
    let server = Server::bind(Vec::new(), options(Listen::Unix(path.clone()), Token::Auto));
    let server = server.expect("a server");
    let mode = std::fs::metadata(&path).expect("a socket").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    std::thread::spawn(move || server.run());
    let ask = |host: &str| {
        let mut stream = std::os::unix::net::UnixStream::connect(&path).expect("a connection");
        let text = format!("GET /list HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        stream.write_all(text.as_bytes()).expect("sent");
        let mut got = String::new();
        stream.read_to_string(&mut got).expect("an answer");
        Reply::parse(&got).status
    };
    assert_eq!(ask("localhost:9999"), 200);
    assert_eq!(ask("attacker.example"), 403);
    let again = Server::bind(Vec::new(), options(Listen::Unix(path.clone()), Token::Auto));
    assert!(again.is_err(), "the socket is in use");
    std::fs::remove_file(&path).expect("removed");
}
