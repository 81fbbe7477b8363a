"""Measures the CPU time of real programs under prof and under heaptrack, relative to that without."""
import os, re, shutil, socket, subprocess, time

import harness, programs
from harness import Recording, Tree, cpu, median

ROUNDS = 5
# A program that takes longer has fewer rounds, but at least 3.
SECONDS = 40
HEAD = (f"{'':10}{'native s':>9}{'prof s':>8}{'ratio':>7}{'events':>11}{'ns/event':>10}"
        f"{'collector':>11}{'/added':>8}{'B/event':>9}{'lost':>7}{'none /added':>13}{'B/event':>9}"
        f"{'ht ratio':>10}{'ht all':>8}")


def section(rounds=ROUNDS, only=()):
    print(f"""
real programs: CPU seconds, medians of {min(rounds, 3)} to {rounds} interleaved rounds
  native, prof: of the program's process alone, from its exec to its end, what recording starts in it
  included, the prof that launches it not. ns/event: added to the program. collector: its own CPU ns per
  event, and how much that is of what is added to the program. none: the same with --compress none.
  ht: heaptrack; the program's process alone, and with all that heaptrack starts (as in its published
  figures), over native""")
    print(HEAD)
    folder = harness.SCRATCH
    for p in programs.all_programs(folder):
        if only and p.name.split()[0] not in only:
            continue
        if isinstance(p, programs.Missing):
            print(f"{p.name:10}not measured: {p.reason}")
            continue
        print(launched(p, rounds), flush=True)
    if not only or "redis" in only:
        redis(rounds)


def native(p):
    with open(os.path.join(harness.SCRATCH, "output"), "w+") as out:
        child = subprocess.Popen(p.command, env=p.env, stdin=p.input(), stdout=out,
                                 stderr=subprocess.DEVNULL, cwd=harness.SCRATCH)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        return usage.ru_utime + usage.ru_stime, out.read()


def recorded(p, *options):
    """Runs a program under `prof run`. Returns the tree of processes, and the recording."""
    path = os.path.join(harness.SCRATCH, "real.prof")
    command = [harness.PROF, "run", "-o", path, *options, "--", *p.command]
    tree = Tree(command, p.process_name(), p.env, p.input())
    # The time missed at the ends of target and collector counts for the target, which is rather too much.
    tree.target += tree.rest
    return tree, Recording(path)


def heaptrack(p):
    path = os.path.join(harness.SCRATCH, "ht")
    tree = Tree([harness.HEAPTRACK, "-o", path, *p.command], p.process_name(), p.env, p.input())
    harness.remove_all("ht.")
    return tree


def launched(p, rounds, *options):
    """Returns the row of a program that ends by itself."""
    plain, target, collector, ht, ht_all = [], [], [], [], []
    raw_target, raw_collector = [], []
    began = time.monotonic()
    for i in range(rounds):
        if i >= 3 and time.monotonic() - began > SECONDS:
            break
        seconds, said = native(p)
        plain.append(seconds)
        tree, r = recorded(p, *options)
        if tree.text() != said:
            raise SystemExit(f"{p.name}: another output under prof than without")
        target.append(tree.target)
        collector.append(tree.helpers)
        tree, raw = recorded(p, *options, "--compress", "none")
        raw_target.append(tree.target)
        raw_collector.append(tree.helpers)
        if harness.HEAPTRACK and i < 3:
            tree = heaptrack(p)
            ht.append(tree.target)
            ht_all.append(tree.whole)
    n = median(plain)
    beside = f"{median(ht) / n:10.2f}{median(ht_all) / n:8.2f}" if ht else "  not installed"
    added = median(raw_target) - n
    none = f"{median(raw_collector) / added:13.2f}" if added > 0 else f"{'-':>13}"
    none += f"{raw.size / max(raw.events, 1):9.2f}"
    return row(p.name, n, median(target), median(collector), r) + none + beside


def row(name, n, t, c, r):
    """Returns the columns of prof, from CPU seconds: native, target and collector."""
    events, added = max(r.events, 1), t - n
    # If no cost is measured for the program, there is no share of it.
    share = f"{c / added:8.2f}" if added > 0 else f"{'-':>8}"
    return (f"{name:10}{n:9.3f}{t:8.3f}{t / n:7.2f}{r.events:11}{added / events * 1e9:10.1f}"
            f"{c / events * 1e9:11.1f}{share}{r.size / events:9.2f}{r.lost:7}")


class Redis:
    """A redis server, with its benchmark as the load."""

    LOADS = {
        # redis-benchmark with its default: every request waits for its answer.
        "redis": "-n 30000 -r 100000 -t set,get,incr,lpush,sadd,hset,zadd,mset",
        # 16 requests at a time: the server does little but allocate.
        "redis -P16": "-n 200000 -r 100000 -P 16 -t set,lpush,mset",
    }

    def __init__(self, launcher=()):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = str(s.getsockname()[1])
        self.p = subprocess.Popen(
            [*launcher, "redis-server", "--port", self.port, "--save", "", "--appendonly", "no"],
            cwd=harness.SCRATCH, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(200):
            try:
                socket.create_connection(("127.0.0.1", int(self.port)), 1).close()
                return
            except OSError:
                time.sleep(0.05)
        raise SystemExit("redis-server does not listen")

    def empty(self):
        subprocess.run(["redis-cli", "-p", self.port, "flushall"], stdout=subprocess.DEVNULL,
                       check=True)

    def load(self, options):
        """Returns the server's CPU seconds, and the requests per second (the mean of the commands)."""
        before = cpu(self.p.pid)
        out = subprocess.run(["redis-benchmark", "-p", self.port, "--csv", *options.split()],
                             capture_output=True, text=True, check=True).stdout
        used = cpu(self.p.pid) - before
        rates = [float(m) for m in re.findall(r'^"[A-Z][^"]*","([\d.]+)"', out, re.M)]
        if not rates:
            raise SystemExit(f"redis-benchmark said {out!r}")
        return used, len(rates) / sum(1 / r for r in rates)

    def shut_down(self):
        subprocess.run(["redis-cli", "-p", self.port, "shutdown", "nosave"],
                       stdout=subprocess.DEVNULL)
        self.p.wait()

    def close(self):
        self.p.kill()
        self.p.wait()


def redis(rounds, *options):
    if not all(map(shutil.which, ("redis-server", "redis-benchmark", "redis-cli"))):
        print("redis     not measured: no redis-server, redis-benchmark or redis-cli")
        return
    for name, load in Redis.LOADS.items():
        redis_row(name, load, rounds, options)


def redis_row(name, load, rounds, options):
    server = Redis()
    try:
        measured(server, name, load, rounds, options)
    finally:
        server.close()


def measured(server, name, load, rounds, options):
    server.load(load)
    plain, target, collector, rates = [], [], [], ([], [])
    began = time.monotonic()
    for i in range(rounds):
        if i >= 3 and time.monotonic() - began > SECONDS:
            break
        server.empty()
        used, rate = server.load(load)
        plain.append(used)
        rates[0].append(rate)
        server.empty()
        path, _stop = harness.attach(server.p.pid, *options)
        helper = collector_of(path)
        before = cpu(helper)
        used, rate = server.load(load)
        collector.append(cpu(helper) - before)
        target.append(used)
        rates[1].append(rate)
        harness.prof("detach", server.p.pid)
        r = Recording(path)
    print(row(name, median(plain), median(target), median(collector), r)
          + f"{'-':>13}{'-':>9}{'-':>10}{'-':>8}")
    print(f"{'':10}requests per second: {median(rates[0]):.0f} native, {median(rates[1]):.0f} "
          f"recorded: {median(b / a for a, b in zip(*rates)) * 100:.1f} %", flush=True)


def collector_of(path):
    """Returns the process that writes a recording."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            for fd in os.listdir(f"/proc/{pid}/fd"):
                if os.readlink(f"/proc/{pid}/fd/{fd}") == path:
                    return int(pid)
        except OSError:
            continue
    raise SystemExit(f"nobody writes {path}")
