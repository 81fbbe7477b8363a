"""Measures what a fork takes in a process that is recorded alone, and in one whose children are recorded from their fork on."""
import os, shutil, statistics, sys

import harness

FORKS = 500
ROUNDS = 5
# A program in Python with many libraries: it has far more unwind tables.
PYTHON = """
import os, statistics, sys, time
import asyncio, ctypes, decimal, json, multiprocessing, sqlite3, ssl, xml.etree.ElementTree
print("ready", flush=True)
for line in sys.stdin:
    times = []
    for _ in range(int(line)):
        begun = time.monotonic()
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        times.append(time.monotonic() - begun)
        os.waitpid(pid, 0)
    print("done", statistics.median(times) * 1e6, flush=True)
"""


def section():
    print(f"\nmedian time of a fork in the parent, in us, of {ROUNDS} rounds of {FORKS} forks each")
    print(f"{'program':>10}{'alone':>9}{'recorded':>10}{'with children':>15}")
    programs = {"C, 8 MiB": [harness.compiled("forks"), "8"], "C, 256 MiB": [harness.compiled("forks"), "256"]}
    if shutil.which("python3"):
        programs["python3"] = [sys.executable, "-c", PYTHON]
    for name, command in programs.items():
        figures = {way: [] for way in ("alone", "recorded", "children")}
        target = harness.Target(*command)
        try:
            for _ in range(ROUNDS):
                figures["alone"].append(fork(target))
                path, _ = harness.attach(target.p.pid)
                figures["recorded"].append(fork(target))
                harness.prof("detach", target.p.pid)
                os.remove(path)
                folder, _ = harness.attach("--children", target.p.pid)
                figures["children"].append(fork(target))
                harness.prof("detach", folder)
                shutil.rmtree(folder)
        finally:
            target.close()
        alone, recorded, children = (statistics.median(f) for f in figures.values())
        print(f"{name:>10}{alone:9.0f}{recorded:10.0f}{children:15.0f}", flush=True)


def fork(target):
    return float(target.ask(str(FORKS))[0])
