"""What a malloc and free pair costs: native, recorded, paused."""
import os

import harness
from harness import Recording, Target, median


def section():
    print("\nmalloc+free pairs, CPU ns each (median of 5 rounds)")
    print(f"{'':8}{'depth':>6}{'threads':>9}{'native':>9}{'recorded':>10}{'paused':>9}"
          f"{'overhead':>10}{'lost':>8}{'B/event':>9}")
    for mode in ("same", "moving"):
        for depth in (1, 10, 40, 200):
            for threads in (1, 2):
                row(mode, depth, threads)


def row(mode, depth, threads):
    t = Target(harness.compiled("pairs"))
    figures = {"native": [], "recorded": [], "paused": []}
    lost = events = size = 0
    for _ in range(5):
        line = f"{mode} {depth} {threads} 300000"
        figures["native"].append(float(t.ask(line)[0]))
        path, _stop = harness.attach(t.p.pid)
        figures["recorded"].append(float(t.ask(line)[0]))
        harness.prof("pause", t.p.pid)
        figures["paused"].append(float(t.ask(line)[0]))
        harness.prof("detach", t.p.pid)
        r = Recording(path)
        lost, events, size = lost + r.lost, events + r.events, size + r.size
    t.close()
    m = {k: median(v) for k, v in figures.items()}
    print(f"{mode:8}{depth:6}{threads:9}{m['native']:9.1f}{m['recorded']:10.1f}"
          f"{m['paused']:9.1f}{m['recorded'] - m['native']:10.1f}{lost:8}"
          f"{size / max(events, 1):9.2f}", flush=True)
