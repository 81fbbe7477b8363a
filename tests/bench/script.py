"""Measures scripts on a large recording: what selections, groups and graphs cost, and the memory that they take."""
import os, subprocess, threading, time

import analysis, harness
from harness import median

EVENTS = 100_000_000
ROUNDS = 3
# What is there before the clock runs, the code that is measured, and how often it runs.
SETS = "let a = allocations().only_larger_or_equal(256); let b = allocations().only_leaked(); a.len(); b.len();\n"
HALF = "let a = allocations().only_allocated_until_at_most(data().runtime() * 0.5);"
CASES = [
    ("a + b", SETS, "a + b", 20),
    ("a - b", SETS, "a - b", 20),
    ("a & b", SETS, "a & b", 20),
    ("only_larger(256).len()", "", "allocations().only_larger(256).len()", 3),
    ('only_passing_through_function("f").len()', "", 'allocations().only_passing_through_function("f").len()', 3),
    ("group_by_backtrace().sort_by_size().take(10)", "", "allocations().group_by_backtrace().sort_by_size().take(10)", 3),
    ("the same of half of the blocks", HALF + " a.len();", "a.group_by_backtrace().sort_by_size().take(10)", 3),
    ("graph of two series", "", 'graph().add(allocations().only_leaked()).add(allocations()).save("/dev/null")', 1),
    ("leaks()", "", "allocations().leaks()", 1),
]


def section(only=()):
    events = int(only[0]) if only else EVENTS
    print(f"""
scripts, on {events // 1_000_000} million generated events: medians of {ROUNDS} rounds
  seconds: of the expression alone, as the difference from a script without it. CPU: of all threads. MiB: the most
  that was the process's own, and with the pages of the index that were mapped.""")
    analysis.examples()
    made = os.path.join(harness.SCRATCH, "generated.prof")
    subprocess.run([analysis.example("generate"), made, str(events)], check=True)
    blocks = subprocess.run([harness.PROF, "script", "-d", made, "-e", "allocations().len()"], check=True,
                            capture_output=True, text=True).stdout.strip()
    print(f"  {int(blocks):,} blocks")
    print(f"{'':46}{'seconds':>9}{'CPU s':>9}{'own MiB':>9}{'RSS MiB':>9}")
    for name, before, code, times in CASES:
        asked = [(ran(made, before), ran(made, before + "\n" + f"for i in 0..{times} {{ {code}; }}")) for _ in range(ROUNDS)]
        cost = lambda key: median([max(0.0, w[key] - o[key]) / times for o, w in asked])
        most = lambda key: median([w[key] for _, w in asked])
        print(f"{name:46}{cost('wall'):9.3f}{cost('cpu'):9.3f}{most('own'):9.0f}{most('rss'):9.0f}", flush=True)
    harness.remove_all("generated.")


def ran(recording, code):
    """Runs a script; returns seconds and MiB."""
    began = time.monotonic()
    child = subprocess.Popen([harness.PROF, "script", "-d", recording, "-e", code + ";"], stdout=subprocess.DEVNULL,
                             stderr=subprocess.DEVNULL)
    own, done = [0], threading.Event()

    def watch():
        while not done.wait(0.01):
            try:
                with open(f"/proc/{child.pid}/status") as f:
                    own.extend(int(line.split()[1]) for line in f if line.startswith("RssAnon"))
            except OSError:
                return

    watcher = threading.Thread(target=watch)
    watcher.start()
    _, status, used = os.wait4(child.pid, 0)
    wall = time.monotonic() - began
    done.set()
    watcher.join()
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"the script failed: {code}")
    return {"wall": wall, "cpu": used.ru_utime + used.ru_stime, "own": max(own) / 1024, "rss": used.ru_maxrss / 1024}
