"""The common parts of the benchmark's sections: prof itself, targets, and CPU clocks of processes."""
import json, os, re, shutil, statistics, subprocess, sys, tempfile, threading, time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
SCRATCH = tempfile.mkdtemp(prefix="prof-bench-")
HEAPTRACK = shutil.which("heaptrack")
PROF = os.environ.get("PROF")


def build():
    """Builds prof, unless $PROF names one."""
    global PROF
    if not PROF:
        subprocess.run(["cargo", "build", "--release", "--quiet"], cwd=ROOT, check=True)
        target = os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target"))
        PROF = os.path.join(target, "release", "prof")
    PROF = os.path.abspath(PROF)


def compiled(name):
    """Returns the path of a program of this folder, which is compiled when first asked for."""
    path = os.path.join(SCRATCH, name)
    if not os.path.exists(path):
        source = os.path.join(HERE, name)
        cc = ["cc", source + ".c"] if os.path.exists(source + ".c") else ["c++", source + ".cpp"]
        flags = ["-g", "-O2", "-fno-optimize-sibling-calls", "-pthread"]
        subprocess.run([*cc, *flags, "-o", path], check=True)
    return path


def clean_up():
    shutil.rmtree(SCRATCH, ignore_errors=True)


def remove_all(prefix):
    """Removes the files of the scratch folder whose names begin with `prefix`."""
    for name in os.listdir(SCRATCH):
        if name.startswith(prefix):
            os.remove(os.path.join(SCRATCH, name))


def prof(*args):
    r = subprocess.run([PROF, *map(str, args)], cwd=SCRATCH, capture_output=True, text=True,
                       stdin=subprocess.DEVNULL, timeout=120)
    if r.returncode != 0:
        raise SystemExit(f"prof {' '.join(map(str, args))}: {r.returncode}\n{r.stderr}")
    return r


def attach(pid, *options):
    """Attaches prof. Returns the recording's path, and the longest stop in ms."""
    look = ["--look", "0s"] if "--look" in prof("attach", "--help").stdout else []
    r = prof("attach", pid, *look, *options)
    return os.path.normpath(os.path.join(SCRATCH, r.stdout.strip())), longest_stop(r.stderr)


def longest_stop(text):
    m = re.search(r"([\d.]+) ms at most", text)
    return float(m.group(1)) if m else float("nan")


def can_sample():
    """Returns whether this prof has the option --sample."""
    return "--sample[" in prof("attach", "--help").stdout


def report(path):
    """Returns prof's report of a recording, and removes the recording."""
    r = json.loads(prof("report", path, "--format", "json", "--top", 1).stdout)
    r["bytes"] = os.path.getsize(path)
    os.remove(path)
    return r


class Recording:
    """The figures of a finished recording, which is removed."""

    def __init__(self, path):
        whole = report(path)
        r = whole["recording"]
        self.events, self.lost = r["events"], r["lost_events"]
        self.verified, self.mismatches = r["verified_stacks"], r["mismatched_stacks"]
        self.size = whole["bytes"]


class Target:
    """A process that answers each line with a line."""

    def __init__(self, *command, env=None):
        self.p = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                  cwd=SCRATCH, bufsize=1, env=env, stderr=subprocess.DEVNULL)
        for line in self.p.stdout:
            if line.startswith("ready"):
                return
        raise SystemExit(f"{' '.join(command)} ended before it was ready")

    def ask(self, line):
        self.p.stdin.write(line + "\n")
        answer = self.p.stdout.readline()
        if not answer.startswith("done"):
            raise SystemExit(f"{line}: {answer!r} for an answer")
        return answer.split()[1:]

    def quit(self):
        """Lets the process end by itself, and waits for that."""
        self.p.stdin.write("quit\n")
        self.p.stdin.close()
        self.p.wait()

    def close(self):
        self.p.kill()
        self.p.wait()


def cpu(pid):
    """Returns the CPU seconds of all threads of a process so far, by its clock; None when it is gone."""
    try:
        # The clock id of another process, see clock_getcpuclockid(3).
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        return None


def children(pid):
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as f:
            return [int(p) for p in f.read().split()]
    except OSError:
        return []


def process_name(pid):
    try:
        with open(f"/proc/{pid}/comm") as f:
            return f.read().strip()
    except OSError:
        return ""


class Tree:
    """A command that starts other processes, and the CPU time of each of them.

    The kernel tells exactly what the whole tree has used, once that has ended. The clocks of the processes are
    read every millisecond until they are gone. One or two ms of `whole` are missing in the end, and these are in
    `rest`."""

    INTERVAL = 0.001

    def __init__(self, command, target_name, env=None, stdin=subprocess.DEVNULL):
        self.output = os.path.join(SCRATCH, "output")
        self.clocks, self.names = {}, {}
        with open(self.output, "wb") as out, open(self.output + ".err", "wb") as err:
            self.p = subprocess.Popen(command, env=env, stdin=stdin, stdout=out, stderr=err,
                                      cwd=SCRATCH)
        self.whole = self.wait()
        if self.p.returncode != 0:
            with open(self.output + ".err") as f:
                raise SystemExit(f"{' '.join(command)}: {self.p.returncode}\n{f.read()}")
        self.rest = max(self.whole - sum(self.clocks.values()), 0.0)
        # This leaves out the command itself, which for a moment has the name of the Python that starts it.
        mine = {p for p in self.clocks if target_name in self.names.get(p, ())} - {self.p.pid}
        self.target = sum(self.clocks[p] for p in mine)
        self.root = self.clocks[self.p.pid]
        self.helpers = sum(c for p, c in self.clocks.items() if p not in mine | {self.p.pid})

    def wait(self):
        scanned = 0.0
        while True:
            pid, status, usage = os.wait4(self.p.pid, os.WNOHANG)
            if pid:
                self.p.returncode = os.waitstatus_to_exitcode(status)
                return usage.ru_utime + usage.ru_stime
            now = time.monotonic()
            if now - scanned > 0.02:
                scanned = now
                self.scan(self.p.pid)
            for p in list(self.clocks):
                used = cpu(p)
                if used is not None:
                    self.clocks[p] = used
            time.sleep(self.INTERVAL)

    def scan(self, pid):
        self.clocks.setdefault(pid, 0.0)
        name = process_name(pid)
        if name:
            self.names.setdefault(pid, set()).add(name)
        for child in children(pid):
            self.scan(child)

    def text(self):
        with open(self.output) as f:
            return f.read()


def median(values):
    values = list(values)
    return statistics.median(values) if values else float("nan")
