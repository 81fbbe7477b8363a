//! Scripts over HTTP: bytehound's route, prof's own with output as it comes, filters that are scripts, and limits.

use crate::client::{Served, TOKEN};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

const TEXT: &str = "Content-Type: text/plain\r\n";

fn run(s: &Served, code: &str) -> Value {
    s.ask("POST", "/data/last/execute_script", TEXT, code).json()
}

#[test]
fn output_and_pictures_have_bytehounds_shapes() {
    let s = Served::new(31);
    let ran =
        run(&s, "println(\"{} is\", 1 + 1);\ngraph().add(allocations()).save(\"a/b c.svg\");");
    assert_eq!(ran["status"], "ok", "{ran}");
    assert!(ran["elapsed"].is_f64());
    assert_eq!(ran["output"][0], serde_json::json!({ "kind": "println", "value": "2 is" }));
    let image = &ran["output"][1];
    assert_eq!(
        (&image["kind"], &image["basename"]),
        (&"image".into(), &"b c.svg".into()),
        "{image}"
    );
    assert_eq!(image["path"], "/a/b c.svg");
    let url = image["url"].as_str().expect("an address");
    let got = s.get(url);
    assert!(got.status == 200 && got.body.starts_with("<svg"), "{url}: {}", got.status);
    assert_eq!(s.get("/data/last/script_files/00/x.svg").status, 404);
    let ran = run(&s, "println(1);\nlet a = nonsense(2);");
    assert_eq!(ran["status"], "error");
    assert_eq!((&ran["line"], &ran["column"]), (&2.into(), &9.into()), "{ran}");
    assert_eq!(ran["output"][0]["value"], "1");
}

#[test]
fn a_stream_ends_with_how_the_script_ended() {
    let s = Served::new(33);
    let lines = |code: &str| -> Vec<Value> {
        let got = s.ask("POST", "/api/v1/last/script", TEXT, code);
        assert_eq!(got.status, 200, "{}", got.body);
        let lines = got.body.lines().filter(|l| !l.trim().is_empty());
        lines.map(|l| serde_json::from_str(l).expect("JSON")).collect()
    };
    let all = lines("println(1); graph().add(\"All\", allocations()).save(); allocations().len()");
    let kinds: Vec<&str> = all.iter().filter_map(|l| l["kind"].as_str()).collect();
    assert_eq!(kinds, ["println", "image", "println", "done"], "{all:?}");
    assert_eq!(all[1]["data"]["series"][0]["label"], "All");
    let all = lines("let a = 1;\nlet = 2;");
    assert_eq!((&all[0]["kind"], &all[0]["line"]), (&"error".into(), &2.into()), "{all:?}");
    let names = s.json("/api/v1/script-names");
    let names = names["names"].as_array().expect("names");
    assert!(names.iter().any(|n| n["name"] == "only_leaked" && n["of"] == "AllocationList"));
}

#[test]
fn a_filter_may_be_a_script() {
    let s = Served::new(35);
    let count =
        |query: &str| s.json(&format!("/data/last/allocations?{query}"))["total_count"].as_u64();
    let script = "custom_filter=return%20allocations().only_larger_or_equal(900)";
    assert_eq!(count(script), count("size_min=900"));
    assert!(count(script) < count(""));
    assert_eq!(count(&format!("{script}&size_max=950")), count("size_min=900&size_max=950"));
    let wrong = s.get("/data/last/allocations?custom_filter=5");
    assert!(wrong.status == 400 && wrong.body.contains("list of allocations"), "{}", wrong.body);
}

#[test]
fn endless_scripts_end_and_take_no_place_of_others() {
    let s = Served::new(37);
    std::thread::scope(|scope| {
        let endless: Vec<_> = (0..3).map(|_| scope.spawn(|| run(&s, "loop {}"))).collect();
        for _ in 0..5 {
            assert_eq!(s.get("/data/last/timeline").status, 200);
        }
        for ran in endless {
            let ran = ran.join().expect("an answer");
            assert_eq!(ran["status"], "error");
            assert!(ran["message"].as_str().is_some_and(|m| m.contains("operations")), "{ran}");
            assert_eq!(ran["line"], 1);
        }
    });
    for code in ["load(\"/etc/passwd\")", "import \"/etc/passwd\" as x;", "eval(\"1\")", "sleep(1)"]
    {
        assert_eq!(run(&s, code)["status"], "error", "{code}");
    }
    let ran = run(&s, "for i in 0..20000 { println(i); }");
    assert!(ran["message"].as_str().is_some_and(|m| m.contains("lines")), "{ran}");
}

/// A script that runs or waits; it ends when this is dropped.
struct Asked(TcpStream, String);

impl Asked {
    /// Sends a script of a client of its own.
    fn new(s: &Served, client: usize, code: &str) -> Self {
        let mut to = TcpStream::connect(s.at).expect("a connection");
        to.set_read_timeout(Some(Duration::from_secs(120))).expect("a time");
        let (host, length) = (s.host(), code.len());
        let text = format!(
            "POST /api/v1/last/script HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {TOKEN}\r\n\
             X-Prof-Client: {client}\r\nConnection: close\r\nContent-Length: {length}\r\n{TEXT}\r\n{code}"
        );
        to.write_all(text.as_bytes()).expect("sent");
        Self(to, String::new())
    }

    /// Reads until this has come.
    #[track_caller]
    fn until(&mut self, text: &str) -> &mut Self {
        while !self.1.contains(text) {
            let mut bytes = [0; 4096];
            let n = self.0.read(&mut bytes).expect("read");
            assert_ne!(n, 0, "{text} has not come: {}", self.1);
            self.1.push_str(&String::from_utf8_lossy(&bytes[..n]));
        }
        self
    }

    /// Returns the lines that have come.
    fn lines(&self) -> Vec<Value> {
        self.1
            .lines()
            .filter_map(|l| serde_json::from_str(l).ok())
            .filter(Value::is_object)
            .collect()
    }
}

/// Takes both places of scripts.
fn both_places(s: &Served) -> [Asked; 2] {
    [1001, 1002].map(|client| {
        let code = "println(\"on\"); loop { allocations().only_larger(1).len(); }";
        let mut asked = Asked::new(s, client, code);
        asked.until("\"on\"");
        asked
    })
}

#[test]
fn scripts_that_wait_are_told_their_place() {
    let s = Served::new(39);
    let running = both_places(&s);
    let mut waiting: Vec<Asked> = (0..6)
        .map(|i| {
            let mut asked = Asked::new(&s, i, "println(allocations().len())");
            asked.until(&format!("{{\"at_once\":2,\"before\":{i},\"kind\":\"waiting\"}}"));
            asked
        })
        .collect();
    // One leaves, and those behind it move up.
    drop(waiting.remove(2));
    waiting[4].until("\"before\":4");
    assert!(!waiting[1].1.contains("\"before\":0"), "{}", waiting[1].1);
    drop(running);
    for (i, asked) in waiting.iter_mut().enumerate() {
        let lines = asked.until("\"kind\":\"done\"").lines();
        let kind = |l: &Value| l["kind"].as_str().unwrap_or_default().to_owned();
        let told = lines.iter().take_while(|l| kind(l) == "waiting");
        let told: Vec<u64> = told.filter_map(|l| l["before"].as_u64()).collect();
        assert!(told.is_sorted_by(|a, b| a > b) && !told.is_empty(), "{i}: {lines:?}");
        let rest: Vec<String> = lines[told.len()..].iter().map(kind).collect();
        assert_eq!(rest, ["running", "println", "done"], "{i}: {lines:?}");
    }
}

#[test]
fn scripts_wait_for_a_limited_time() {
    let s = Served::waiting(41, Duration::from_secs(1));
    let running = both_places(&s);
    let why = "waited 1 seconds for its turn";
    let mut asked = Asked::new(&s, 1, "println(1)");
    let lines = asked.until("\"error\"").lines();
    assert!(
        lines.last().is_some_and(|l| l["message"].as_str().is_some_and(|m| m.contains(why))),
        "{lines:?}"
    );
    let ran = run(&s, "println(1)");
    assert_eq!(ran["status"], "error", "{ran}");
    assert!(ran["message"].as_str().is_some_and(|m| m.contains(why)), "{ran}");
    drop(running);
    // A client that has given up takes no place in the line any more.
    assert_eq!(run(&s, "println(1)")["status"], "ok");
}
