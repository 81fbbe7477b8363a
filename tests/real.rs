//! Real programs, recorded while they work: their output is the same as without a recorder, and their stacks reach the
//! start of their threads.

use common::{Report, Scene, Target, installed, skip, until};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Asserts that nearly all stacks, weighted by allocations, reach the start of their thread, and that hardly any is cut
/// short.
#[track_caller]
fn assert_sensible(r: &Report, at_least: u64, share_rooted: f64) {
    assert!(r.total("allocations") >= at_least, "{:#}", r.brief());
    let (mut rooted, mut all) = (0, 0);
    let mut roots = std::collections::BTreeMap::<String, u64>::new();
    for g in r.groups() {
        let frames = g.frames();
        let n = g.number("allocations");
        all += n;
        if g.rooted() {
            rooted += n;
        } else {
            *roots.entry(frames.last().map_or(String::new(), |f| f.show())).or_default() += n;
        }
        assert!(!frames.is_empty(), "a stack without frames: {}", g.numbers());
    }
    let share = rooted as f64 / all.max(1) as f64;
    assert!(
        share >= share_rooted,
        "only {share:.4} of the stacks are whole; the others end in {roots:#?}"
    );
    let lost = r.number("/recording/lost_events");
    assert!(lost == 0, "{lost} events lost");
}

/// Asserts that the lines of `prof fragmentation` add up to the resident set, and that at most 2 % of it remain.
#[track_caller]
fn assert_adds_up(scene: &Scene, recording: &Path) {
    let file = recording.to_str().expect("UTF-8");
    let out = scene.prof(&["fragmentation", file, "--format", "json"]).ok("prof fragmentation");
    let all: serde_json::Value = serde_json::from_str(&out.stdout).expect("JSON");
    let account = &all["account"];
    let of = |name: &str| account[name].as_i64().unwrap_or_else(|| panic!("{name}: {account:#}"));
    let lines =
        ["live_bytes", "beside_bytes", "before_bytes", "slack_bytes", "other_anonymous_bytes"];
    let anonymous: i64 = lines.into_iter().map(of).sum::<i64>() - of("not_resident_bytes");
    let kinds = account["maps"].as_array().expect("kinds");
    let others =
        kinds.iter().filter(|m| !["heap", "anonymous"].contains(&m["kind"].as_str().unwrap_or("")));
    let others: i64 = others.filter_map(|m| m["rss_bytes"].as_i64()).sum();
    let (rss, remains) = (of("rss_bytes"), of("unexplained_bytes"));
    assert_eq!(anonymous + others + remains, rss, "{account:#}");
    assert!(rss > 1 << 20 && remains.abs() * 50 <= rss, "{remains} of {rss} remain: {account:#}");
    let files = &account["files"];
    let parts = ["code_bytes", "data_bytes", "shared_bytes", "other_bytes"];
    let files: i64 = parts.into_iter().filter_map(|p| files[p].as_i64()).sum();
    let told = kinds.iter().find(|m| m["kind"] == "files").and_then(|m| m["rss_bytes"].as_i64());
    if !account["files"].is_null() {
        assert_eq!(Some(files), told, "{account:#}");
    }
}

/// Sends lines to a server and returns its answer, up to `wanted` bytes.
fn talk(port: u16, request: &str, wanted: usize) -> String {
    let mut s = TcpStream::connect(("127.0.0.1", port)).expect("connect");
    s.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    s.write_all(request.as_bytes()).unwrap();
    let mut out = vec![0; wanted];
    s.read_exact(&mut out).unwrap_or_else(|e| panic!("{request:?}: {e}"));
    String::from_utf8_lossy(&out).into_owned()
}

fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().unwrap().port()
}

#[test]
fn redis_under_its_benchmark() {
    if !installed("redis-server") || !installed("redis-benchmark") {
        return skip("redis_under_its_benchmark", "no redis-server or redis-benchmark");
    }
    let scene = Scene::new("redis");
    let port = free_port();
    let mut command = Command::new("redis-server");
    let p = port.to_string();
    command.current_dir(&scene.dir).args(["--port", &p, "--save", "", "--appendonly", "no"]);
    command.args(["--bind", "127.0.0.1", "--loglevel", "warning"]);
    let mut target = Target::spawn(command);
    until("redis listens", || TcpStream::connect(("127.0.0.1", port)).is_ok());
    let bench = |n: &str| {
        let mut c = Command::new("redis-benchmark");
        c.args(["-p", &p, "-n", n, "-c", "20", "-q", "-t", "set,get,lpush", "-r", "1000"]);
        let out = scene.run(c).ok("redis-benchmark");
        assert!(!out.stdout.to_lowercase().contains("error"), "{out:?}");
    };
    bench("1000");
    let recording = scene.attach(&target);
    assert_eq!(talk(port, "SET answer forty-two\r\n", 5), "+OK\r\n");
    bench("10000");
    assert_eq!(talk(port, "GET answer\r\n", 14), "$9\r\nforty-two\r");
    scene.detach(&target);
    assert_eq!(talk(port, "STRLEN answer\r\n", 4), ":9\r\n");
    assert!(target.alive());
    let r = scene.finished(&recording);
    assert_sensible(&r, 10_000, 0.999);
    assert_adds_up(&scene, &recording);
    let own = r.groups().filter(|g| {
        g.frames().iter().any(|f| {
            Path::new(f.module()).ends_with("redis-server") || f.module().contains("redis")
        })
    });
    assert!(own.count() >= 5, "{}", r.askers());
}

const PYTHON: &str = "
import sys, json, zlib, threading
def work(n):
    data = [{'key': 'x' * (i % 50), 'values': list(range(i % 30))} for i in range(n)]
    text = json.dumps(data)
    packed = zlib.compress(text.encode() * 3)
    assert json.loads(text) == data and zlib.decompress(packed) == text.encode() * 3
    return zlib.crc32(packed)
print('ready', flush=True)
for line in sys.stdin:
    if line.startswith('quit'):
        print('bye', flush=True)
        break
    results = [work(2000)]
    def other(): results.append(work(1500))
    t = threading.Thread(target=other)
    t.start()
    t.join()
    print('done', *results, flush=True)
";

/// Attaches to an interpreter, which must give the same answers before, with and after prof.
#[track_caller]
fn interpreter(name: &str, command: Command, at_least: u64, share: f64) {
    let scene = Scene::new(name);
    let mut command = command;
    command.current_dir(&scene.dir);
    let mut target = Target::spawn(command);
    target.expect("ready");
    let before = target.ask("go");
    let recording = scene.attach(&target);
    for _ in 0..3 {
        assert_eq!(target.ask("go"), before, "the answer changes under prof");
    }
    scene.detach(&target);
    assert_eq!(target.ask("go"), before, "the answer changes after prof");
    target.quit();
    assert_sensible(&scene.finished(&recording), at_least, share);
    assert_adds_up(&scene, &recording);
}

#[test]
fn python_computes_the_same() {
    let python = "/usr/bin/python3";
    if !Path::new(python).exists() {
        return skip("python_computes_the_same", "no /usr/bin/python3");
    }
    let mut command = Command::new(python);
    command.args(["-c", PYTHON]).env("PYTHONMALLOC", "malloc");
    interpreter("python", command, 20_000, 0.999);
}

const NODE: &str = "
const zlib = require('zlib');
console.log('ready');
const work = () => {
  const data = [];
  for (let i = 0; i < 3000; i++) data.push({ key: 'x'.repeat(i % 50), value: i });
  const text = JSON.stringify(data);
  const packed = zlib.gzipSync(text);
  const back = zlib.gunzipSync(packed).toString();
  return packed.length + ' ' + (back === text) + ' ' + JSON.parse(back).length;
};
require('readline').createInterface({ input: process.stdin }).on('line', (line) => {
  if (line === 'quit') { console.log('bye'); process.exit(0); }
  console.log('done ' + work());
});
";

#[test]
fn node_computes_the_same() {
    if !installed("node") {
        return skip("node_computes_the_same", "no node");
    }
    let mut command = Command::new("node");
    command.args(["-e", NODE]);
    // V8's generated code has no unwind tables; its frames end where frame pointers do.
    interpreter("node", command, 100, 0.80);
}

const JAVA: &str = "
import java.io.*;
import java.util.zip.*;
public class Work {
    public static void main(String[] a) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        System.out.println(\"ready\");
        for (String line; (line = in.readLine()) != null;) {
            if (line.equals(\"quit\")) { System.out.println(\"bye\"); System.exit(0); }
            long sum = 0;
            for (int i = 0; i < 50; i++) {
                Deflater d = new Deflater();
                byte[] data = new byte[10000];
                for (int k = 0; k < data.length; k++) data[k] = (byte) (k * i);
                d.setInput(data);
                d.finish();
                byte[] out = new byte[20000];
                sum += d.deflate(out);
                d.end();
            }
            System.out.println(\"done \" + sum);
        }
    }
}
";

/// Why prof finds no moment for the linker in a JVM.
const JIT: &str = "stacks through a JIT's code can't be followed to their ends";

#[test]
fn a_jvm_computes_the_same() {
    if common::is_refused_by_dlopen("java", JIT) {
        return;
    }
    if !installed("java") {
        return skip("a_jvm_computes_the_same", "no java");
    }
    let scene = Scene::new("java-source");
    let source = scene.path("Work.java");
    std::fs::write(&source, JAVA).unwrap();
    let mut probe = Command::new("java");
    probe.args(["--list-modules"]);
    if !scene.run(probe).stdout.contains("jdk.compiler") {
        return skip(
            "a_jvm_computes_the_same",
            "java without jdk.compiler: no single-file sources",
        );
    }
    let mut command = Command::new("java");
    command.args(["-Xmx128m", "-XX:+UseSerialGC", "-XX:+PreserveFramePointer"]).arg(&source);
    interpreter("java", command, 100, 0.50);
}

#[test]
fn sqlite_computes_the_same() {
    if !installed("sqlite3") {
        return skip("sqlite_computes_the_same", "no sqlite3");
    }
    let scene = Scene::new("sqlite");
    let mut command = Command::new("sqlite3");
    command.args(["-batch", ":memory:"]).current_dir(&scene.dir);
    let mut target = Target::spawn(command);
    target.send("create table t(a integer primary key, b text, c real);");
    target.send("select 'ready';");
    target.expect("ready");
    let mut answers = Vec::new();
    let mut recording = None;
    for round in 0..4 {
        if round == 1 {
            recording = Some(scene.attach(&target));
        }
        if round == 3 {
            scene.detach(&target);
        }
        target.send(
            "delete from t;
             with recursive n(i) as (select 1 union all select i + 1 from n where i < 20000)
               insert into t select i, hex(i * 7919) || printf('%05d', i % 997), i / 3.0 from n;
             create index if not exists u on t(b);
             select 'done', count(*), sum(length(b)), max(b), round(total(c), 3) from t
               where b in (select b from t order by b desc limit 15000);
             drop index u;",
        );
        answers.push(target.expect("done"));
    }
    assert!(answers.iter().all(|a| *a == answers[0]), "{answers:#?}");
    assert!(answers[0].starts_with("done|"), "{answers:?}");
    assert_sensible(&scene.finished(&recording.expect("attached")), 1_000, 0.999);
}

/// nginx in one process, which reads folders for its answers.
#[test]
fn nginx_lists_folders() {
    if !installed("nginx") {
        return skip("nginx_lists_folders", "no nginx");
    }
    let scene = Scene::new("nginx");
    let port = free_port();
    let root = scene.path("root");
    std::fs::create_dir(&root).expect("a folder");
    for i in 0..300 {
        std::fs::write(root.join(format!("file-{i}")), "text").expect("a file");
    }
    let dir = scene.dir.display();
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|name| format!("{name}_temp_path {dir}/{name};"))
        .concat();
    let text = format!(
        "daemon off; master_process off; pid {dir}/pid; error_log stderr; events {{}}
         http {{ access_log off; {temporary} server {{ listen 127.0.0.1:{port}; root {dir}/root; autoindex on; }} }}"
    );
    std::fs::write(scene.path("conf"), text).expect("a file");
    let mut command = Command::new("nginx");
    command.arg("-c").arg(scene.path("conf")).arg("-p").arg(&scene.dir);
    let mut target = Target::spawn(command);
    until("nginx listens", || TcpStream::connect(("127.0.0.1", port)).is_ok());
    let page = || {
        let mut s = TcpStream::connect(("127.0.0.1", port)).expect("connect");
        s.write_all(b"GET / HTTP/1.0\r\n\r\n").expect("a request");
        let mut text = String::new();
        s.read_to_string(&mut text).expect("an answer");
        // Without the time in the head.
        text.split_once("\r\n\r\n").expect("a body").1.to_owned()
    };
    let before = page();
    assert_eq!(before.matches("file-").count(), 600, "{before}");
    let recording = scene.attach(&target);
    for _ in 0..100 {
        assert_eq!(page(), before);
    }
    scene.detach(&target);
    assert_eq!(page(), before);
    assert!(target.alive());
    target.signal(nix::sys::signal::Signal::SIGQUIT);
    assert_eq!(target.wait(), 0);
    assert_sensible(&scene.finished(&recording), 1_000, 0.999);
    assert_adds_up(&scene, &recording);
}

/// Returns a command that runs one of PostgreSQL's programs, which refuse to be run by root.
fn of_postgres(program: &str) -> Option<Command> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let path = versions.map(|v| v.path().join("bin").join(program)).find(|p| p.exists())?;
    if !nix::unistd::geteuid().is_root() {
        return Some(Command::new(path));
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(path);
    Some(command)
}

/// A backend of PostgreSQL without its server, which sorts.
#[test]
fn a_postgres_backend_sorts_the_same() {
    let (Some(mut initdb), Some(mut backend)) = (of_postgres("initdb"), of_postgres("postgres"))
    else {
        return skip("a_postgres_backend_sorts_the_same", "no PostgreSQL");
    };
    let scene = Scene::new("postgres");
    let data = scene.path("data");
    std::fs::create_dir(&data).expect("a folder");
    if nix::unistd::geteuid().is_root() {
        std::os::unix::fs::chown(&data, Some(65534), Some(65534)).expect("root may");
    }
    initdb.current_dir("/").arg("-D").arg(&data).args(["-N", "--no-locale", "-E", "UTF8"]);
    scene.run(initdb).ok("initdb");
    // With -j an empty line ends a command.
    backend.current_dir("/").args(["--single", "-j", "-D"]).arg(&data).arg("postgres");
    let mut target = Target::spawn(backend);
    target
        .send("create table t as select i, md5(i::text) as b from generate_series(1, 50000) i;\n");
    target.send("set work_mem = '64MB';\n");
    let sorted = |target: &mut Target| {
        target.send(
            "select 'sum ' || sum(i) || max(b) from (select * from t order by b limit 40000) x;\n",
        );
        loop {
            let line = target.line();
            assert!(!line.contains("ERROR"), "{line}");
            if line.contains("= \"sum ") {
                return line;
            }
        }
    };
    let before = sorted(&mut target);
    let recording = scene.attach(&target);
    for _ in 0..3 {
        assert_eq!(sorted(&mut target), before);
    }
    scene.detach(&target);
    assert_eq!(sorted(&mut target), before);
    assert_eq!(target.wait(), 0);
    assert_sensible(&scene.finished(&recording), 30, 0.999);
    assert_adds_up(&scene, &recording);
}

#[test]
fn a_compiler_under_prof_run_writes_the_same_object() {
    let scene = Scene::new("compiler");
    let source = common::build::sources().join("counts.c");
    let gcc = |out: &str| {
        let mut c =
            vec!["cc", "-O2", "-c", "-o", out].into_iter().map(str::to_owned).collect::<Vec<_>>();
        c.push(source.to_str().unwrap().to_owned());
        c
    };
    let plain = gcc("plain.o");
    let mut c = Command::new(&plain[0]);
    c.args(&plain[1..]);
    scene.run(c).ok("cc");
    let mut c = Command::new(Scene::binary());
    c.args(["run", "-o", "cc.prof", "--"]).args(gcc("recorded.o"));
    scene.run(c).ok("prof run cc");
    let read = |name: &str| std::fs::read(scene.path(name)).expect(name);
    assert!(read("plain.o") == read("recorded.o"), "the object files differ");
    assert_sensible(&scene.finished(&scene.path("cc.prof")), 100, 0.99);
}
