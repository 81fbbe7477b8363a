"""Counts the instructions that the hook adds to a pair of malloc and free, by callgrind, whose counts do not
drift.

They are counted in the hook's bench (inject/hook/benches/pair.rs), which calls the hook's entries as a stub does.
Two runs of different lengths are subtracted, so that the setup does not count.
"""
import json, re, shutil, subprocess

import harness

SHORT, LONG = 2_000, 12_000


def section():
    print("\ninstructions for a malloc+free pair, counted by callgrind (the hook in one process, no ring "
          "to empty)")
    if not shutil.which("valgrind"):
        print("not measured: no valgrind")
        return
    bench = executable()
    print(f"{'depth':>8}{'native':>9}{'hooked':>9}{'added':>9}")
    for where in ("1", "10", "40", "200", "random", "settled"):
        native, hooked = (per_pair(bench, how, where) for how in ("native", "hooked"))
        print(f"{where:>8}{native:9.1f}{hooked:9.1f}{hooked - native:9.1f}", flush=True)


def executable():
    """Builds the hook's bench and returns its path."""
    out = subprocess.run(["cargo", "bench", "--quiet", "-p", "prof-hook", "--bench", "pair",
                          "--no-run", "--message-format=json"], cwd=harness.ROOT, text=True,
                         capture_output=True, check=True).stdout
    for line in out.splitlines():
        message = json.loads(line)
        if message.get("executable") and message["target"]["name"] == "pair":
            return message["executable"]
    raise SystemExit("cargo did not say where the bench of the hook is")


def per_pair(bench, how, where):
    short, long = (collected(bench, how, where, n) for n in (SHORT, LONG))
    return (long - short) / (LONG - SHORT)


def collected(bench, how, where, pairs):
    r = subprocess.run(["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", bench,
                        "count", how, where, str(pairs)], capture_output=True, text=True)
    found = re.search(r"Collected : (\d+)", r.stderr)
    if r.returncode != 0 or not found:
        raise SystemExit(f"valgrind {bench} count {how} {where} {pairs}: {r.stderr}")
    return int(found.group(1))
