"""Counts the instructions of a pair of malloc and free in a recorded process, with prof's code mapped and loaded by the
process's dynamic linker."""
import os, subprocess

import harness


def section():
    print("\ninstructions of a malloc+free pair, 10 frames deep, counted by single steps (median of 41 pairs)")
    p = subprocess.Popen([harness.compiled("steps")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        pid = int(p.stdout.readline())
        native = count(p)
        print(f"{'way':>8}{'native':>9}{'recorded':>10}{'added':>9}")
        for way in ("map", "dlopen", "dlopen", "map"):
            path, _ = harness.attach(pid, "--by", way)
            recorded = count(p)
            harness.prof("detach", pid)
            os.remove(path)
            print(f"{way:>8}{native:9}{recorded:10}{recorded - native:9}", flush=True)
    finally:
        p.stdin.close()
        p.wait()


def count(p):
    """Returns the number of instructions of a pair."""
    p.stdin.write("count\n")
    p.stdin.flush()
    return int(p.stdout.readline())
