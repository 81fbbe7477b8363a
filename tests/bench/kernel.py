"""Compares what `prof kernel` costs, by perf events and by BPF programs, with a bpftrace program that does memleak's work."""
import os, shutil, signal, subprocess, time

import harness
from harness import median

SECONDS, ROUNDS = 3, 4

# memleak's work without -p: for each outstanding block its size, age and stack, in maps in the kernel.
PROGRAM = """
tracepoint:kmem:kmalloc { @a[args->ptr] = (nsecs, args->bytes_alloc, kstack); }
tracepoint:kmem:kmem_cache_alloc { @a[args->ptr] = (nsecs, args->bytes_alloc, kstack); }
tracepoint:kmem:kfree { delete(@a[args->ptr]); }
tracepoint:kmem:kmem_cache_free { delete(@a[args->ptr]); }
tracepoint:kmem:mm_page_alloc { @p[args->pfn] = (nsecs, 4096 << args->order, kstack); }
tracepoint:kmem:mm_page_free { delete(@p[args->pfn]); }
tracepoint:percpu:percpu_alloc_percpu { @c[(uint64)args->ptr] = (nsecs, args->size, kstack); }
tracepoint:percpu:percpu_free_percpu { delete(@c[(uint64)args->ptr]); }
"""


def load():
    """Opens and closes pipes on two processors; returns their number a second, and the ns of processor time of each."""
    out = subprocess.run([harness.compiled("pipes"), str(SECONDS)], capture_output=True, text=True,
                         check=True).stdout.split()
    return float(out[0]), float(out[1])


def beside(command, warm_up, end=signal.SIGINT, **more):
    """Runs the load beside a command, which is then ended by a signal. Returns pipes a second, the ns of each, the command's
    own ns for each, and what it said."""
    p = subprocess.Popen(command, cwd=harness.SCRATCH, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                         **more)
    try:
        time.sleep(warm_up)
        before = harness.cpu(p.pid)
        rate, ns = load()
        own = (harness.cpu(p.pid) - before) * 1e9 / (rate * SECONDS)
    finally:
        p.send_signal(end)
        said = p.communicate()[1]
    return rate, ns, own, said


def bpftrace():
    """Returns a command that runs the program with the mounts that bpftrace needs, which end with it."""
    path = os.path.join(harness.SCRATCH, "memleak.bt")
    with open(path, "w") as f:
        f.write(PROGRAM)
    script = f"mount -t debugfs none /sys/kernel/debug; exec bpftrace {path}"
    return ["unshare", "-m", "sh", "-c", script]


def section():
    print("\nkernel allocations: pipes that two threads open and close, 18 events each (Linux 6.18); ns of processor time a pipe")
    if os.geteuid() != 0:
        print("  needs root")
        return
    ways = {"without": None, "perf": None, "bpf": None}
    if shutil.which("bpftrace"):
        ways["bpftrace"] = None
    found = {name: [] for name in ways}
    said = {}
    for _ in range(ROUNDS):
        for name in ways:
            if name == "without":
                rate, ns = load()
                found[name].append((rate, ns, 0.0))
            elif name == "bpftrace":
                env = {**os.environ, "BPFTRACE_MAP_KEYS_MAX": "1000000"}
                # At an interrupt it would print its maps, for minutes.
                found[name].append(beside(bpftrace(), 6, end=signal.SIGKILL, env=env)[:3])
            else:
                path = os.path.join(harness.SCRATCH, "kernel.prof")
                command = [harness.PROF, "kernel", "--quiet", "--backend", name, "-o", path]
                *figures, said[name] = beside(command, 2)
                found[name].append(tuple(figures))
                os.remove(path)
    print(f"{'':14}{'pipes/s':>10}{'ns each':>10}{'its own':>10}{'together':>10}")
    for name, rounds in found.items():
        rate, ns, own = (median([r[i] for r in rounds]) for i in range(3))
        print(f"{name:14}{rate:10.0f}{ns:10.0f}{own:10.0f}{ns + own:10.0f}")
    for name, text in said.items():
        for line in text.splitlines():
            if "lost" in line or "a second" in line or "can't be used" in line:
                print(f"{name}: {line}")
