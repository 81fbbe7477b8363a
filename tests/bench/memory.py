"""Measures the hook's memory in the target: the resident part of prof's mappings, except for the ring."""
import os, struct, subprocess

import harness
from harness import Target
from stops import mapped

STACKS, DEPTH = 10_000, 30
# Number of the 30 frames that do not choose between two ways: clone3, start_thread, work, descend, bottom, the first
# of the ways, and `pair`.
FIXED = 7
PAGE = os.sysconf("SC_PAGE_SIZE")
RING = {"heads", "events"}
LIMIT, LIMIT_PER_THREAD = 2048, 64  # KiB


def section():
    print(f"\nmemory of the hook in the target after {STACKS} stacks of {DEPTH} frames, resident KiB, "
          "the ring not counted")
    t = Target(harness.compiled("pairs"))
    work = f"tree {DEPTH - FIXED} 1 {STACKS}"
    t.ask(work)
    before = mapped(t.p.pid)
    path, _stop = harness.attach(t.p.pid)
    new = {range: name for range, name in mapped(t.p.pid).items() if range not in before}
    for _ in range(2):
        t.ask(work)
    parts = {"code, stubs, flag": 0.0}
    for (start, end), name in new.items():
        if "prof-ring" not in name:
            parts["code, stubs, flag"] += resident(t.p.pid, start, end)
            continue
        for part, at, size in layout():
            parts[part] = resident(t.p.pid, start + at, start + at + size)
    harness.prof("detach", t.p.pid)
    t.close()
    r = harness.report(path)
    threads = r["recording"]["threads"]
    states = parts.pop("states")
    tables = sum(n for part, n in parts.items() if part not in RING)
    for part, n in parts.items():
        if part not in RING:
            print(f"  {part:20}{n:8.0f}")
    print(f"  {'in all':20}{tables:8.0f}   (at most {LIMIT})")
    print(f"  {'for each thread':20}{states / max(threads, 1):8.0f}   (at most {LIMIT_PER_THREAD}; "
          f"{threads} threads)")
    print(f"  {'beside: the ring':20}{sum(parts.get(p, 0) for p in RING):8.0f}", flush=True)


def layout():
    """Returns name, offset and length of the parts of the shared memory."""
    out = subprocess.run(["cargo", "run", "--release", "--quiet", "-p", "prof-trace", "--example",
                          "parts"], cwd=harness.ROOT, capture_output=True, text=True,
                         check=True).stdout
    return [(name, int(at), int(size)) for name, at, size in map(str.split, out.splitlines())]


def resident(pid, start, end):
    """Returns the KiB of a range that are in the page tables of a process."""
    with open(f"/proc/{pid}/pagemap", "rb") as f:
        f.seek(start // PAGE * 8)
        entries = f.read((end - start) // PAGE * 8)
    present = sum(e >> 63 for (e,) in struct.iter_unpack("<Q", entries))
    return present * PAGE / 1024
