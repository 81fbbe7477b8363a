"""Measures a pair of mmap and munmap: native, recorded, and recorded without them (--no-maps)."""
import harness
from harness import Recording, Target, median

DEPTHS = (1, 10, 40)
PAIRS = 20_000
ROUNDS = 9


def section():
    print(f"\nmmap+munmap pairs of a page: CPU ns of the thread for each, medians of {ROUNDS} interleaved rounds")
    print(f"{'depth':>8}{'native':>9}{'recorded':>10}{'added':>8}{'no maps':>9}{'added':>8}{'lost':>7}"
          f"{'B/event':>9}")
    for depth in DEPTHS:
        row(depth)


def row(depth):
    t = Target(harness.compiled("maps"))
    line = f"{depth} {PAIRS}"
    t.ask(line)
    native, on, off = [], [], []
    lost = size = 0
    for _ in range(ROUNDS):
        native.append(float(t.ask(line)[0]))
        path, _stop = harness.attach(t.p.pid)
        on.append(float(t.ask(line)[0]))
        harness.prof("detach", t.p.pid)
        r = Recording(path)
        lost, size = lost + r.lost, size + r.size
        _path, _stop = harness.attach(t.p.pid, "--no-maps")
        off.append(float(t.ask(line)[0]))
        harness.prof("detach", t.p.pid)
    t.quit()
    added = median(b - a for a, b in zip(native, on))
    without = median(b - a for a, b in zip(native, off))
    print(f"{depth:8}{median(native):9.0f}{median(on):10.0f}{added:8.0f}{median(off):9.0f}{without:8.0f}"
          f"{lost:7}{size / (2 * PAIRS * ROUNDS):9.2f}", flush=True)
