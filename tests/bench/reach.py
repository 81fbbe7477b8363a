"""Measures what `prof reach` costs: bytes read and blocks marked a second, the stop of the target, and memory."""
import json, os, re, subprocess, time

import harness
from harness import Target, cpu

# A block of the program, with what malloc adds to it.
BLOCK = 96


def looked(pid, *options, command="reach"):
    """Runs `prof reach`, or another command that looks at a process. Returns its report, its own seconds of processor and
    of time, and the most memory it had."""
    command = [harness.PROF, command, str(pid), "--format", "json", "--timeout", "120s", *options]
    began = time.monotonic()
    p = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=harness.SCRATCH)
    out = p.stdout.read()
    _, status, used = os.wait4(p.pid, 0)
    p.returncode = os.waitstatus_to_exitcode(status)
    if p.returncode != 0:
        raise SystemExit(f"{command}: {p.returncode}")
    return json.loads(out), used.ru_utime + used.ru_stime, time.monotonic() - began, used.ru_maxrss / 1024


def one(gib):
    n = int(gib * (1 << 30) / BLOCK)
    t = Target(harness.compiled("reach"), str(n))
    path, _ = harness.attach(t.p.pid)
    t.ask("fill")
    for how in ("none", "stop", "fork"):
        report, used, took, memory = looked(t.p.pid, "--snapshot", how)
        s, found = report["scan"], report["unreachable"]["blocks"]
        stop = s["stop_ns"] / 1e6 if s["stop_ns"] is not None else float("nan")
        rate = s["scanned_bytes"] / s["scan_cpu_ns"] * 1e9 / (1 << 30)
        blocks = report["judged_blocks"] / s["first_cpu_ns"] * 1e3
        # The first pass reads all memory and marks all blocks: its parts by themselves.
        marked = report["judged_blocks"] / max(s["first_mark_cpu_ns"], 1) * 1e3
        reading = s["first_cpu_ns"] - s["first_mark_cpu_ns"]
        copied = s["scanned_bytes"] / s["passes"] / reading * 1e9 / (1 << 30)
        print(f"{gib:5}{n / 1e6:8.1f}{how:>6}{s['passes']:8}{rate:8.2f}{copied:9.2f}{blocks:10.1f}{marked:9.1f}{stop:9.0f}"
              f"{stop / gib:12.0f}{used:8.1f}{took:8.1f}{memory * (1 << 20) / n:11.0f}"
              f"{found / (n / 50) * 100:9.2f}", flush=True)
    report, used, took, memory = looked(t.p.pid, "--snapshot", "stop", command="holds")
    s = report["scan"]
    print(f"      prof holds: {report['live']['blocks'] / 1e6:.1f} M blocks, stop {s['stop_ns'] / 1e6:.0f} ms, reading "
          f"{s['scan_cpu_ns'] / 1e9:.1f} s of CPU, all in all {used:.1f} s of CPU, {took:.1f} s, "
          f"{memory * (1 << 20) / n:.0f} bytes a block", flush=True)
    t.close()
    os.remove(path)


def section(only=()):
    print("\nprof reach: a list of blocks of 80 bytes, of which one in 50 is lost")
    print("  GiB  M blocks  how  passes   GiB/s  reading M marked/s  marking  stop, ms   ms a GiB   CPU s       s  bytes/blk  found %")
    with open("/proc/meminfo") as f:
        free = int(re.search(r"MemAvailable: *(\d+)", f.read()).group(1)) >> 20
    for gib in [float(x) for x in only] or (0.1, 1, 8):
        if free < gib * 2 + 1:
            print(f"{gib:5}  not measured: {free} GiB of memory are free")
        else:
            one(gib)
