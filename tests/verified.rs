//! Unwinds every stack of real programs both ways, with the memo and in full: none may differ. The long form is
//! `tests/soak/verify`.

use common::build::sources;
use common::{Report, Scene, Target, installed, skip, until};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};

/// Returns the command `prof run --verify-stacks`.
fn verified(scene: &Scene, command: &[&str]) -> Command {
    let mut c = Command::new(Scene::binary());
    c.current_dir(&scene.dir).args(["run", "--verify-stacks", "-o", "v.prof", "--"]).args(command);
    c
}

/// Asserts that at least this many stacks were compared, that none differed, and that nothing was lost.
#[track_caller]
fn assert_verified(r: &Report, at_least: u64) {
    let compared = r.number("/recording/verified_stacks");
    assert!(compared >= at_least, "{compared} stacks compared: {:#}", r.brief());
    assert_eq!(r.number("/recording/mismatched_stacks"), 0, "of {compared}: {:#}", r.brief());
    assert_eq!(r.number("/recording/lost_events"), 0, "{:#}", r.brief());
}

#[test]
fn stacks_of_a_parser_of_xml() {
    if !installed("xmllint") {
        return skip("stacks_of_a_parser_of_xml", "no xmllint");
    }
    let scene = Scene::new("verify-xml");
    let item = |i: usize| {
        let tags = "<tag>some</tag>".repeat(i % 5);
        format!("<item id='{i}'><name>number {i} &amp; so on</name>{tags}</item>\n")
    };
    let text: String = (0..10_000).map(item).collect();
    std::fs::write(scene.path("a.xml"), format!("<all>\n{text}</all>\n")).unwrap();
    scene.run(verified(&scene, &["xmllint", "--noout", "a.xml"])).ok("xmllint");
    assert_verified(&scene.finished(&scene.path("v.prof")), 50_000);
}

#[test]
fn stacks_of_an_interpreter() {
    let python = "/usr/bin/python3";
    if !Path::new(python).exists() {
        return skip("stacks_of_an_interpreter", "no /usr/bin/python3");
    }
    let scene = Scene::new("verify-python");
    let program = "
import ast, glob, json, os
for name in sorted(glob.glob(os.path.dirname(os.__file__) + '/*.py'))[:4]:
    ast.parse(open(name, encoding='utf-8').read())
data = [{'key': 'x' * (i % 50), 'list': list(range(i % 9))} for i in range(2000)]
assert json.loads(json.dumps(data)) == data
";
    let mut c = verified(&scene, &[python, "-c", program]);
    c.env("PYTHONMALLOC", "malloc");
    scene.run(c).ok("python3");
    assert_verified(&scene.finished(&scene.path("v.prof")), 50_000);
}

#[test]
fn stacks_of_a_database() {
    if !installed("sqlite3") {
        return skip("stacks_of_a_database", "no sqlite3");
    }
    let scene = Scene::new("verify-sqlite");
    let script = "
        create table t(a integer primary key, b text);
        with recursive n(i) as (select 1 union all select i + 1 from n where i < 20000)
          insert into t select i, hex(i * 7919) || printf('%05d', i % 997) from n;
        select count(*), max(upper(b)) from t where b like '%9%';
        select count(distinct substr(b, 2, 3)) from t;";
    let command = verified(&scene, &["sqlite3", "-batch", ":memory:", script]);
    scene.run(command).ok("sqlite3");
    assert_verified(&scene.finished(&scene.path("v.prof")), 10_000);
}

#[test]
fn stacks_of_a_compiler() {
    let scene = Scene::new("verify-compiler");
    let find = Command::new("gcc").arg("-print-prog-name=cc1").output();
    let cc1 = find.map_or(String::new(), |o| String::from_utf8_lossy(&o.stdout).trim().to_owned());
    if !Path::new(&cc1).is_absolute() {
        return skip("stacks_of_a_compiler", "no gcc, or it has no cc1");
    }
    let source = sources().join("counts.c");
    let mut c = Command::new("gcc");
    c.args(["-E", "-o", "a.i"]).arg(source);
    scene.run(c).ok("gcc -E");
    scene
        .run(verified(&scene, &[&cc1, "-quiet", "-O0", "-fpreprocessed", "a.i", "-o", "a.s"]))
        .ok("cc1");
    assert_verified(&scene.finished(&scene.path("v.prof")), 2_000);
}

#[test]
fn stacks_of_a_server_under_load() {
    if !installed("redis-server") || !installed("redis-benchmark") || !installed("redis-cli") {
        return skip("stacks_of_a_server_under_load", "no redis-server, -benchmark or -cli");
    }
    let scene = Scene::new("verify-redis");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let number = listener.local_addr().unwrap().port();
    drop(listener);
    let port = number.to_string();
    let server = ["redis-server", "--port", &port, "--save", "", "--loglevel", "warning"];
    let mut c = verified(&scene, &server);
    c.stderr(Stdio::null());
    let mut target = Target::spawn(c);
    until("redis listens", || TcpStream::connect(("127.0.0.1", number)).is_ok());
    let mut bench = Command::new("redis-benchmark");
    bench.args(["-p", &port, "-n", "5000", "-r", "1000", "-q", "-P", "8"]);
    bench.args(["-t", "set,get,lpush,zadd,mset"]);
    scene.run(bench).ok("redis-benchmark");
    let mut stop = Command::new("redis-cli");
    stop.args(["-p", &port, "shutdown", "nosave"]);
    scene.run(stop).ok("redis-cli shutdown");
    assert_eq!(target.wait(), 0);
    assert_verified(&scene.finished(&scene.path("v.prof")), 50_000);
}
