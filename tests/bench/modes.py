"""Measures recordings without short-lived blocks (`--cull`) and of figures alone (`--aggregate`) against whole ones:
bytes, and the collector's processor time and memory."""
import os, re, shutil, time

import harness, real
from harness import Target, cpu, median
from programs import PYTHON
from real import collector_of

# Python's own allocator would take whole arenas, and the recording none of its blocks.
ENVIRONMENT = dict(os.environ, PYTHONMALLOC="malloc")
ROUNDS = 3
# A round has as much work as the program does in so many seconds without prof.
SECONDS = 8
MODES = {"whole": [], "cull": ["--cull", "10s"], "aggregate": ["--aggregate"]}

JSON = """
import json
text = json.dumps([{'id': i, 'name': 'n%d' % i, 'tags': [str(j) for j in range(8)],
                    'values': {'a': i * 1.5, 'b': None, 'c': [i, i + 1]}} for i in range(20000)])
def work():
    json.loads(text)
"""

PARSER = """
import ast, os
folder = os.path.dirname(os.__file__)
names = sorted(f for f in os.listdir(folder) if f.endswith('.py'))[:40]
texts = [open(os.path.join(folder, n), encoding='utf-8').read() for n in names]
def work():
    for text in texts:
        ast.parse(text)
"""

# Answers each line with the number of rounds that it takes to work for so many seconds, or works so many rounds.
LOOP = """
import sys, time
print('ready', flush=True)
for line in sys.stdin:
    what, n = line.split()
    done, end = 0, time.monotonic() + float(n)
    while time.monotonic() < end if what == 'time' else done < int(n):
        work()
        done += 1
    print('done', done, flush=True)
"""


class Python:
    """A Python program that works again and again."""

    def __init__(self, name, source):
        self.name, self.source = name, source
        self.rounds = int(self.run(lambda t: t.ask(f"time {SECONDS}"))[0])

    def run(self, work):
        t = Target(PYTHON, "-S", "-c", self.source + LOOP, env=ENVIRONMENT)
        try:
            return work(t)
        finally:
            t.close()

    def recorded(self, options):
        def work(t):
            return recorded(t.p.pid, options, lambda: t.ask(f"rounds {self.rounds}"))

        return self.run(work)


class Redis:
    """A redis server under its benchmark."""

    name, requests = "redis", 50_000

    def __init__(self):
        began = time.monotonic()
        self.run(self.work)
        self.requests = int(self.requests * SECONDS / (time.monotonic() - began))

    def work(self, server):
        server.load(f"-n {self.requests} -t set,get,incr")

    def run(self, work):
        server = real.Redis()
        try:
            return work(server)
        finally:
            server.close()

    def recorded(self, options):
        return self.run(lambda server: recorded(server.p.pid, options, lambda: self.work(server)))


def recorded(pid, options, work):
    """Records a process while `work` runs. Returns events, bytes, and the collector's processor time and memory in MiB."""
    path, _ = harness.attach(pid, *options)
    helper = collector_of(path)
    before = cpu(helper)
    work()
    time.sleep(0.3)
    used = cpu(helper) - before
    with open(f"/proc/{helper}/status") as f:
        most = int(re.search(r"VmHWM:\s*(\d+)", f.read()).group(1)) / 1024
    harness.prof("detach", pid)
    r = harness.Recording(path)
    if r.lost:
        print(f"      {r.lost} events lost", flush=True)
    return r.events, r.size, used, most


def one(program):
    seen = {mode: [] for mode in MODES}
    for _ in range(ROUNDS):
        for mode, options in MODES.items():
            seen[mode].append(program.recorded(options))
    whole = [median(column) for column in zip(*seen["whole"])]
    for mode, all_of in seen.items():
        _, size, used, most = [median(column) for column in zip(*all_of)]
        # Figures alone don't say how many events they are of.
        per = 1e9 / whole[0]
        print(f"{program.name:>9}{mode:>11}{whole[0] / 1e6:10.1f}{size / 1e6:11.3f}{whole[1] / size:9.1f}"
              f"{used * per:10.1f}{used / whole[2]:8.2f}{most:8.0f}", flush=True)


def section():
    print(f"\nCollector: recordings without short-lived blocks and of figures alone, {ROUNDS} interleaved rounds of "
          f"{SECONDS} s")
    print("  program       mode  M events         MB  smaller  ns/event   times   MiB")
    one(Python("json", JSON))
    one(Python("parser", PARSER))
    if shutil.which("redis-benchmark"):
        one(Redis())
    else:
        print("    redis  not measured: no redis-benchmark (redis-tools)")
