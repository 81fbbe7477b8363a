"""What a malloc and free pair costs in C code that Go has called, whose stack goes on in the goroutine."""
import os, shutil, subprocess

import harness
from harness import Recording, Target, median

# Mode, depth of the goroutine's stack, pairs.
ROWS = [("once", 10, 300_000), ("once", 40, 300_000), ("each", 10, 100_000), ("turns", 10, 100_000),
        ("many", 10, 100_000)]
ROUNDS = 5


def section():
    print(f"""
malloc+free pairs of C code that Go has called: CPU ns for each, medians of {ROUNDS} interleaved rounds
  once: one call of C does all pairs; each: a call of C for each; turns, many: and another goroutine
  after each, of 20 and of 500. ratio: added, of what is added where the same C code is called by C""")
    if not shutil.which("go"):
        print("not measured: no go")
        return
    path = os.path.join(harness.SCRATCH, "cgo")
    subprocess.run(["go", "build", "-o", path, os.path.join(harness.HERE, "cgo.go")], check=True,
                   cwd=harness.SCRATCH)
    native, base, lost = figures(harness.compiled("pairs"), "same 1 1 300000")
    print(f"{'':8}{'depth':>6}{'native':>9}{'added':>9}{'ratio':>7}{'lost':>7}")
    print(f"{'C':8}{1:6}{native:9.1f}{base:9.1f}{1:7.1f}{lost:7}", flush=True)
    for mode, depth, pairs in ROWS:
        native, added, lost = figures(path, f"{mode} {depth} {pairs}")
        print(f"{mode:8}{depth:6}{native:9.1f}{added:9.1f}{added / base:7.1f}{lost:7}", flush=True)


def figures(program, line):
    """CPU ns for a pair, what a recording adds to that, and the events lost."""
    t = Target(program)
    t.ask(line)
    native, added, lost = [], [], 0
    for _ in range(ROUNDS):
        native.append(float(t.ask(line)[0]))
        path, _stop = harness.attach(t.p.pid)
        added.append(float(t.ask(line)[0]) - native[-1])
        harness.prof("detach", t.p.pid)
        lost += Recording(path).lost
    t.close()
    return median(native), median(added), lost
