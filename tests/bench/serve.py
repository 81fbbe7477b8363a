"""Measures what `prof serve` answers, over HTTP, of a generated recording whose index is in the page cache."""
import http.client, json, os, re, subprocess, threading, time

import analysis, harness
from harness import median

EVENTS = 100_000_000
ROUNDS = 5
# What a page takes at its first paint, besides its files.
FIRST = ["/api/v1/recordings", "/api/v1/fields", "/api/v1/{r}/head", "/api/v1/{r}/timeline?width={n}",
         "/api/v1/{r}/groups?count={m}"]
# Name, limit in milliseconds, and request; {n} differs from request to request, so that no answer was kept.
QUESTIONS = [
    ("timeline", 20, "timeline?width={n}"),
    ("timeline, sizes", 600, "timeline?min-size={n}"),
    ("timeline, brush", 600, "timeline?from=30%25&to={n}0ms"),
    ("groups", 60, "groups?count={m}"),
    ("groups, sizes", 800, "groups?min-size={n}"),
    ("groups, brush", 800, "groups?from=30%25&to={n}0ms"),
    ("groups, sizes, with peaks", None, "groups?peaks=true&min-size={n}"),
    ("blocks by time", 400, "blocks?count={m}"),
    ("blocks by size", 400, "blocks?sort=size&reverse=true&count={m}"),
    ("blocks by lifetime", 400, "blocks?sort=lifetime&reverse=true&count={m}"),
    ("blocks by size, sizes", 400, "blocks?sort=size&count=50&min-size={n}"),
    ("blocks by size, brush", 400, "blocks?sort=size&count=50&from=30%25&to={n}0ms"),
    ("flame graph", 150, "flame?metric=allocated&prune={n}"),
    ("flame graph, brush", 800, "flame?metric=allocated&from=30%25&to={n}0ms"),
    ("difference of two ranges", None,
     "flame?metric=allocated&from=60%25&base-start=30%25&base-end={n}0ms"),
    ("tree", None, "tree?sort=allocated&min-size={n}"),
    ("address space", None, "space?bins={n}"),
    ("one stack", None, "stacks/{m}"),
    ("one block", None, "blocks/{n}000"),
    ("leaks", None, "leaks?top={m}"),
]


class Server:
    """`prof serve` of one recording."""

    def __init__(self, path):
        began = time.monotonic()
        self.p = subprocess.Popen([harness.PROF, "serve", path, "--token", "none", "--listen", "127.0.0.1:0"],
                                  stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.port = int(re.search(r":(\d+)/", self.p.stdout.readline()).group(1))
        self.id = json.loads(self.get("/api/v1/recordings"))["recordings"][0]["id"]
        self.get("/api/v1/{r}/head")
        self.started = time.monotonic() - began

    def connect(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)

    def get(self, path, connection=None, client=""):
        own = connection or self.connect()
        path = path.replace("{r}", getattr(self, "id", ""))
        while True:
            own.request("GET", path, headers={"X-Prof-Client": client} if client else {})
            answer = own.getresponse()
            body = answer.read()
            if answer.status != 503:
                break
            time.sleep(0.005)  # the recording is being opened
        if answer.status != 200:
            raise SystemExit(f"{path}: {answer.status} {body[:200]}")
        return body

    def memory(self):
        with open(f"/proc/{self.p.pid}/status") as f:
            return int(re.search(r"VmHWM:\s+(\d+)", f.read()).group(1)) / 1024

    def cpu(self):
        return harness.cpu(self.p.pid)

    def close(self):
        self.p.kill()
        self.p.wait()


class Numbers:
    """Numbers that no request has had yet."""

    def __init__(self):
        self.last = 0

    def fill(self, path):
        self.last += 1
        return path.replace("{n}", str(500 + self.last)).replace("{m}", str(20 + self.last))


def section(only=()):
    events = int(only[0]) if only else EVENTS
    print(f"\nprof serve: {events // 1_000_000} million generated events; medians of {ROUNDS}, in ms", flush=True)
    analysis.examples()
    made = os.path.join(harness.SCRATCH, "generated.prof")
    subprocess.run([analysis.example("generate"), made, str(events)], check=True)
    figures = analysis.speed(made)
    print(f"index made at {figures['rate']:.1f} million events a second ({figures['cpu']:.0f} ns of CPU an event), "
          f"{os.path.getsize(made + '.idx') / os.path.getsize(made):.2f} times as large as the recording")
    starts = []
    for _ in range(ROUNDS):
        server = Server(made)
        starts.append(server.started * 1000)
        server.close()
    server = Server(made)
    try:
        measure(server, median(starts))
    finally:
        server.close()
        harness.remove_all("generated.")


def line(name, ms, cpu, limit):
    wanted = f"{limit:10}" if limit else " " * 10
    over = "  over" if limit and ms > limit else ""
    print(f"{name:34}{ms:10.1f}{cpu:10.1f}{wanted}{over}", flush=True)


def measure(server, started):
    print(f"{'':34}{'ms':>10}{'CPU ms':>10}{'limit':>10}")
    line("start to the first answer", started, float("nan"), None)
    numbers, connection = Numbers(), server.connect()

    def ask(path):
        before, began = server.cpu(), time.monotonic()
        server.get(path, connection)
        return (time.monotonic() - began) * 1000, (server.cpu() - before) * 1000

    def asked(name, limit, paths):
        rounds = []
        for _ in range(ROUNDS):
            taken = [ask(numbers.fill(p)) for p in paths]
            rounds.append((sum(t[0] for t in taken), sum(t[1] for t in taken)))
        line(name, median([r[0] for r in rounds]), median([r[1] for r in rounds]), limit)

    files = re.findall(r'"(/assets/[^"]+)"', server.get("/").decode())
    asked("first paint", 300, ["/", *files, *FIRST])
    for name, limit, path in QUESTIONS:
        asked(name, limit, ["/api/v1/{r}/" + path])
    kept = "/api/v1/{r}/groups?min-size=400"
    server.get(kept, connection)
    taken = [ask(kept) for _ in range(ROUNDS)]
    line("a kept answer", median([t[0] for t in taken]), median([t[1] for t in taken]), 20)
    side_by_side(server, numbers)
    print(f"{'memory at most':34}{server.memory():10.0f} MiB{400:16}", flush=True)


def side_by_side(server, numbers):
    """Ten views ask at once, each for what a page shows with a filter; one more asks for what needs no pass."""
    parts = ["timeline?min-size={n}", "groups?min-size={n}", "flame?metric=allocated&min-size={n}"]
    paths = [[numbers.fill("/api/v1/{r}/" + p) for p in parts] for _ in range(10)]
    took = [0.0] * len(paths)

    def view(i):
        connection, began = server.connect(), time.monotonic()
        for path in paths[i]:
            server.get(path, connection, f"view-{i}")
        took[i] = (time.monotonic() - began) * 1000

    threads = [threading.Thread(target=view, args=(i,)) for i in range(len(paths))]
    for t in threads:
        t.start()
    time.sleep(0.05)
    began = time.monotonic()
    server.get(numbers.fill("/api/v1/{r}/timeline?width={n}"), None, "another")
    other = (time.monotonic() - began) * 1000
    for t in threads:
        t.join()
    line("10 views side by side: the first", min(took), float("nan"), None)
    line("10 views side by side: the last", max(took), float("nan"), None)
    line("a timeline meanwhile", other, float("nan"), None)
