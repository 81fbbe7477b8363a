"""Measures how fast recordings are read: building an index, and questions to it, with heaptrack_print for
comparison.
"""
import os, re, shutil, subprocess, time

import harness, programs
from harness import median

EVENTS = 20_000_000
# Rounds of the program whose recording heaptrack_print reads as well, with some millions of events.
SCALE = 1
ROUNDS = 3
QUESTIONS = [("top 10", ["report", "--top", "10"]),
             ("leaked only", ["report", "--top", "10", "--lifetime", "leaked"]),
             ("leaks", ["leaks"])]


def section(only=()):
    events = int(only[0]) if only else EVENTS
    print(f"""
reading recordings: medians of {ROUNDS} interleaved rounds
  M events/s: from the recording into an index, and CPU ns an event with all threads. RSS: the most that was
  resident, and how many blocks were live at most. Seconds of questions, from the index.""")
    print(f"{'':22}{'events':>12}{'M events/s':>12}{'CPU ns':>8}{'RSS MiB':>9}{'live':>9}{'B/row':>7}"
          + "".join(f"{name:>13}" for name, _ in QUESTIONS))
    examples()
    made = os.path.join(harness.SCRATCH, "generated.prof")
    subprocess.run([example("generate"), made, str(events)], check=True)
    real, ht = recorded()
    files = [(f"generated, {events // 1_000_000} M", made)]
    if real:
        files.append(("python3 json", real))
    for _, path in files:
        speed(path)  # reads the file into the kernel's memory
    rounds = [[speed(path) for _, path in files] for _ in range(ROUNDS)]
    for i, (name, path) in enumerate(files):
        row(name, path, [r[i] for r in rounds])
    if ht:
        heaptrack_print(ht, rounds[0][-1]["events"])
    harness.remove_all("generated.")


def answers(only=()):
    """Measures what a server asks of an index: medians of its rounds in one process."""
    events = int(only[0]) if only else EVENTS
    print(f"\nanswers for pages, of {events // 1_000_000} million generated events: medians of {ROUNDS} rounds")
    examples()
    made = os.path.join(harness.SCRATCH, "generated.prof")
    subprocess.run([example("generate"), made, str(events)], check=True)
    subprocess.run([example("answers"), made, str(ROUNDS)], check=True)
    harness.remove_all("generated.")


def row(name, path, rounds):
    events, live = rounds[0]["events"], rounds[0]["live"]
    column = lambda key: median([r[key] for r in rounds])
    seconds = [asked(path, question) for _, question in QUESTIONS]
    print(f"{name:22}{events:12}{column('rate'):12.1f}{column('cpu'):8.1f}{column('rss'):9.1f}{live:9}"
          f"{column('row'):7.1f}" + "".join(f"{s:13.2f}" for s in seconds), flush=True)


def examples():
    names = [arg for name in ("generate", "speed", "answers") for arg in ("--example", name)]
    subprocess.run(["cargo", "build", "--release", "--quiet", "-p", "prof-analyze", *names],
                   cwd=harness.ROOT, check=True)


def example(name):
    target = os.environ.get("CARGO_TARGET_DIR", os.path.join(harness.ROOT, "target"))
    return os.path.join(target, "release", "examples", name)


def speed(path):
    """Builds the index once, and leaves it there. Returns the figures."""
    out = subprocess.run([example("speed"), path, "index"], check=True, capture_output=True,
                         text=True).stdout
    m = re.search(r"index made: \S+ M events in \S+ s \((\S+) M events/s\), \S+ s of CPU \((\S+) ns",
                  out)
    events = int(re.search(r"^  (\d+) events", out, re.M).group(1))
    rss = re.search(r"peak RSS (\S+) MiB for (\d+) live", out)
    row = re.search(r"(\S+) bytes a row", out)
    return {"rate": float(m.group(1)), "cpu": float(m.group(2)), "rss": float(rss.group(1)),
            "live": int(rss.group(2)), "row": float(row.group(1)), "events": events}


def asked(path, question):
    """Returns the seconds until a question is answered."""
    times = []
    for _ in range(ROUNDS):
        began = time.monotonic()
        harness.prof(question[0], path, *question[1:])
        times.append(time.monotonic() - began)
    return median(times)


def recorded():
    """Records a real program with prof, and with heaptrack."""
    p = next(p for p in programs.all_programs(harness.SCRATCH, SCALE) if "json" in p.name)
    if isinstance(p, programs.Missing):
        print(f"{p.name} not measured: {p.reason}")
        return None, None
    run = {"env": p.env, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "check": True}
    path, ht = os.path.join(harness.SCRATCH, "json.prof"), os.path.join(harness.SCRATCH, "ht")
    with p.input() if p.stdin else open(os.devnull) as stdin:
        subprocess.run([harness.PROF, "run", "-o", path, "--", *p.command], stdin=stdin, **run)
    if not harness.HEAPTRACK or not shutil.which("heaptrack_print"):
        print("heaptrack_print not measured: it is not installed")
        return path, None
    with p.input() if p.stdin else open(os.devnull) as stdin:
        subprocess.run([harness.HEAPTRACK, "-o", ht, *p.command], stdin=stdin, **run)
    found = [n for n in os.listdir(harness.SCRATCH) if n.startswith("ht.")]
    return path, os.path.join(harness.SCRATCH, found[0])


def heaptrack_print(path, events):
    """Reads the same program's events with heaptrack_print."""
    took = []
    for _ in range(ROUNDS):
        before, began = os.times(), time.monotonic()
        subprocess.run(["heaptrack_print", path], stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL, check=True)
        after = os.times()
        cpu = after.children_user + after.children_system - before.children_user - before.children_system
        took.append((time.monotonic() - began, cpu))
    wall, cpu = median([t[0] for t in took]), median([t[1] for t in took])
    print(f"{'  heaptrack_print':22}{events:12}{events / wall / 1e6:12.1f}{cpu * 1e9 / events:8.1f}",
          flush=True)
