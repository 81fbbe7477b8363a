"""Measures a pair of malloc and free: native, recorded and paused, and under heaptrack."""
import os

import harness
from harness import Recording, Target, median

# The columns are mode, depth, threads, and pairs of each thread.
ROWS = [("same", depth, threads, 300_000) for depth in (1, 10, 40, 200) for threads in (1, 2)] + [
    ("random", 0, 1, 100_000),
    ("random", 0, 2, 100_000),
    ("moving", 10, 1, 200_000),
    ("moving", 200, 1, 200_000),
    ("same", 10, 64, 20_000),
]
ROUNDS = 7


def section():
    print(f"""
malloc+free pairs: CPU ns of the thread for each, medians of {ROUNDS} interleaved rounds
  same: from one place; random: 100 paths of 5 to 30 functions, in random order; moving: the innermost
  four frames change. ht: what heaptrack adds (its stacks end at 62 frames)""")
    print(f"{'':8}{'depth':>6}{'threads':>9}{'native':>9}{'recorded':>10}{'added':>8}{'paused':>9}"
          f"{'added':>8}{'lost':>7}{'B/event':>9}{'ht added':>10}")
    for r in ROWS:
        row(*r)


def row(mode, depth, threads, pairs):
    t = Target(harness.compiled("pairs"))
    line = f"{mode} {depth} {threads} {pairs}"
    t.ask(line)
    native, on, paused = [], [], []
    lost = events = size = 0
    for _ in range(ROUNDS):
        native.append(float(t.ask(line)[0]))
        path, _stop = harness.attach(t.p.pid)
        on.append(float(t.ask(line)[0]))
        harness.prof("pause", t.p.pid)
        paused.append(float(t.ask(line)[0]))
        harness.prof("detach", t.p.pid)
        r = Recording(path)
        lost, events, size = lost + r.lost, events + r.events, size + r.size
    t.close()
    added = median(b - a for a, b in zip(native, on))
    added_paused = median(b - a for a, b in zip(native, paused))
    n = median(native)
    ht = heaptrack(f"{mode} {depth} {threads} {pairs // 4}")
    ht = f"{ht - n:10.0f}" if ht else "  not installed"
    print(f"{mode:8}{depth or '5-30':>6}{threads:9}{n:9.1f}{median(on):10.1f}{added:8.1f}"
          f"{median(paused):9.1f}{added_paused:8.1f}{lost:7}{size / max(events, 1):9.2f}{ht}",
          flush=True)


def heaptrack(line):
    """Returns the CPU ns of each pair in a program launched by heaptrack; None if that isn't installed."""
    if not harness.HEAPTRACK:
        return None
    path = os.path.join(harness.SCRATCH, "ht")
    t = Target(harness.HEAPTRACK, "-o", path, harness.compiled("pairs"))
    t.ask(line)
    figures = [float(t.ask(line)[0]) for _ in range(3)]
    t.quit()
    harness.remove_all("ht.")
    return median(figures)
