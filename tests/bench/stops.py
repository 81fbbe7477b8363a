"""Measures how long the target is stopped, and the memory that is mapped in it."""
import os, subprocess

import harness
from harness import Target, median


def stop_section():
    print("\nlongest stop, ms (median of 5 rounds; plain: stop and let go, nothing in between)")
    print(f"{'threads':>8}{'plain':>9}{'attach':>9}{'detach':>9}{'attach/plain':>14}"
          f"{'detach/plain':>14}")
    for threads in (1, 2, 10, 100, 300, 1000):
        t = Target(harness.compiled("idle"), str(threads))
        plain, on, off = [], [], []
        for _ in range(5):
            out = subprocess.run([harness.compiled("stop"), str(t.p.pid)], text=True,
                                 capture_output=True, check=True).stdout
            plain.append(float(out))
            path, stop = harness.attach(t.p.pid)
            on.append(stop)
            off.append(harness.longest_stop(harness.prof("detach", t.p.pid).stderr))
            os.remove(path)
        t.close()
        a, b, c = map(median, (plain, on, off))
        print(f"{threads:8}{a:9.2f}{b:9.2f}{c:9.2f}{b / a:14.1f}{c / a:14.1f}", flush=True)


def mapped(pid):
    """Returns the mappings of a process: address range to name."""
    ranges = {}
    with open(f"/proc/{pid}/maps") as f:
        for line in f:
            fields = line.split(maxsplit=5)
            start, end = (int(x, 16) for x in fields[0].split("-"))
            ranges[(start, end)] = fields[5].strip() if len(fields) > 5 else ""
    return ranges


def size_section():
    t = Target(harness.compiled("idle"), "2")
    before = mapped(t.p.pid)
    harness.attach(t.p.pid)
    during = mapped(t.p.pid)
    harness.prof("detach", t.p.pid)
    t.close()

    def total(maps, ring):
        return sum(e - s for (s, e), name in maps.items() if ("prof-ring" in name) == ring)

    print(f"\nmapped by prof: {(total(during, False) - total(before, False)) / 1024:.0f} KiB, "
          f"and a ring of {total(during, True) / 1024 / 1024:.1f} MiB")
