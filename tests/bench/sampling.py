"""Measures the cost of recording with --sample: of a pair that is not sampled, and of real programs."""
import harness, programs, real
from harness import Recording, Target, median

# Sampling adds less to a whole program than two of its runs differ by.
ROUNDS = 7


def section():
    print("\nsampling: one block for each 512 KiB allocated, on average (--sample)")
    if not harness.can_sample():
        print("not measured: this prof has no --sample")
        return
    print(f"{'':8}{'depth':>6}{'threads':>9}{'native':>9}{'sampled':>9}{'added ns':>10}{'events':>9}")
    for mode, depth, threads in (("same", 1, 1), ("same", 10, 1), ("same", 200, 1), ("same", 10, 2),
                                 ("random", 0, 1)):
        pair(f"{mode} {depth} {threads} 300000")
    print(f"{'':10}{'native s':>10}{'sampled s':>11}{'ratio':>8}{'events':>9}")
    for p in programs.all_programs(harness.SCRATCH):
        if isinstance(p, programs.Missing):
            print(f"{p.name:10}not measured: {p.reason}")
            continue
        native, sampled = [], []
        for _ in range(ROUNDS):
            native.append(real.native(p)[0])
            tree, r = real.recorded(p, "--sample")
            sampled.append(tree.target)
        n, s = median(native), median(sampled)
        print(f"{p.name:10}{n:10.3f}{s:11.3f}{s / n:8.3f}{r.events:9}", flush=True)


def pair(line):
    t = Target(harness.compiled("pairs"))
    t.ask(line)
    native, sampled = [], []
    for _ in range(3):
        native.append(float(t.ask(line)[0]))
        path, _stop = harness.attach(t.p.pid, "--sample")
        sampled.append(float(t.ask(line)[0]))
        harness.prof("detach", t.p.pid)
        r = Recording(path)
    t.close()
    mode, depth, threads, _ = line.split()
    added = median(b - a for a, b in zip(native, sampled))
    print(f"{mode:8}{depth:>6}{threads:>9}{median(native):9.1f}{median(sampled):9.1f}{added:10.1f}"
          f"{r.events:9}", flush=True)
