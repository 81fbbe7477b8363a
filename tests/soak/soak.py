"""The common parts of the soaks: prof with a deadline, targets that answer lines, and the state of a process."""
import hashlib, os, queue, random, shutil, signal, subprocess, sys, tempfile, threading, time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
# Seconds after which prof or a target counts as hanging.
DEADLINE = 60


class Failed(Exception):
    """The target was harmed, or prof failed where it must not."""


class Soak:
    """One run of a soak: its scratch folder, its time and its failures."""

    def __init__(self, name, count, seconds, seed, by=None):
        self.name, self.count, self.seconds = name, count, seconds
        self.by = ["--by", by] if by else []
        self.random = random.Random(seed)
        self.failures, self.stopped, self.refused = [], False, 0
        self.scratch = tempfile.mkdtemp(prefix=f"prof-soak-{name}-")
        self.prof = os.path.join(self.scratch, "prof")
        # This is a copy, so that a build meanwhile does not change the tested binary.
        shutil.copy(binary(), self.prof)
        # The time of the build does not count.
        self.began = time.monotonic()
        signal.signal(signal.SIGTERM, self.stop)
        signal.signal(signal.SIGINT, self.stop)

    def stop(self, *_):
        self.stopped = True

    def is_over(self):
        return self.stopped or self.elapsed() > self.seconds or len(self.failures) >= 20

    def elapsed(self):
        return time.monotonic() - self.began

    def fail(self, text):
        self.failures.append(text)
        print(f"{self.name}: FAILED: {text}", flush=True)

    def check(self, condition, text):
        if not condition:
            self.fail(text)

    def compile(self, source, *flags, name=None):
        """Compiles a program of tests/programs."""
        out = os.path.join(self.scratch, name or source.split(".")[0])
        if not os.path.exists(out):
            path = os.path.join(ROOT, "tests/programs", source)
            compiler = "c++" if source.endswith(".cpp") else "cc"
            command = [compiler, "-g", "-O1", "-pthread", "-o", out, path, *flags, "-ldl"]
            subprocess.run(command, check=True)
        return out

    def start(self, *args, under=()):
        """Starts prof, by another program if `under` names one."""
        if args and args[0] == "attach":
            args = (*args, *self.by, "--look", "0s")  # what is killed is the attach, not the look behind it
        return subprocess.Popen([*under, self.prof, *map(str, args)], cwd=self.scratch, text=True,
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE)

    def run(self, *args, deadline=DEADLINE, under=()):
        """Runs prof to its end. Returns the exit code and all output. A hang is a failure of its own."""
        p = self.start(*args, under=under)
        try:
            out, err = p.communicate(timeout=deadline)
        except subprocess.TimeoutExpired:
            p.kill()
            p.communicate()
            raise Failed(f"prof {' '.join(map(str, args))} hangs")
        return p.returncode, (out + err).strip()

    def patient(self, *args):
        """Runs prof until it succeeds. If prof refuses because a thread does not stop, on a machine with much more
        to do, this tries again, and counts it."""
        for _ in range(50):
            code, said = self.run(*args)
            if code == 0:
                return said
            if "did not stop within" not in said and "again later" not in said:
                break
            self.refused += 1
        raise Failed(f"prof {' '.join(map(str, args))}: {code}: {said}")

    def must(self, *args):
        code, said = self.run(*args)
        if code != 0:
            raise Failed(f"prof {' '.join(map(str, args))}: {code}: {said}")
        return said

    def report(self, figures):
        """Prints the line of figures. Returns the exit code."""
        bad = len(self.failures)
        print(f"{self.name}: {figures}, {self.elapsed():.0f} s: {bad} failures", flush=True)
        if not bad:
            shutil.rmtree(self.scratch, ignore_errors=True)
        else:
            print(f"{self.name}: kept for inspection: {self.scratch}", flush=True)
        return 1 if bad else 0


def binary():
    """Returns $PROF, or the path of the release build, which is made first."""
    prof = os.environ.get("PROF")
    if prof:
        return prof
    subprocess.run(["cargo", "build", "--release", "--quiet"], cwd=ROOT, check=True)
    target = os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target"))
    return os.path.join(target, "release", "prof")


class Target:
    """A process that answers lines, and is ended in any case."""

    def __init__(self, command, ready="ready", **options):
        self.name = os.path.basename(command[0])
        self.p = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                  text=True, bufsize=1, **options)
        self.pid, self.lines, self.said = self.p.pid, queue.Queue(), []
        threading.Thread(target=self._read, daemon=True).start()
        if ready:
            self.expect(ready)

    def _read(self):
        for line in self.p.stdout:
            self.lines.put(line.rstrip("\n"))
        self.lines.put(None)

    def expect(self, word, deadline=DEADLINE):
        """Waits for the next line that begins with `word`."""
        end = time.monotonic() + deadline
        while True:
            try:
                line = self.lines.get(timeout=max(0.01, end - time.monotonic()))
            except queue.Empty:
                raise Failed(f"{self.name} (pid {self.pid}) says nothing; {threads(self.pid)}")
            if line is None:
                raise Failed(f"{self.name} has ended with {self.p.wait()}")
            self.said = self.said[-40:] + [line]
            if "FAILED" in line:
                raise Failed(f"{self.name} says: {line}")
            if line.startswith(word):
                return line

    def ask(self, line, word="done"):
        self.p.stdin.write(line + "\n")
        self.p.stdin.flush()
        return self.expect(word)

    def alive(self):
        return self.p.poll() is None

    def end(self):
        self.p.kill()
        self.p.wait()


def read(path):
    try:
        with open(path, errors="replace") as f:
            return f.read()
    except OSError:
        return ""


def status(pid):
    return dict(l.split(":\t", 1) for l in read(f"/proc/{pid}/status").splitlines() if ":\t" in l)


def threads(pid):
    """Describes what each thread is doing, for a message."""
    said = []
    for tid in os.listdir(f"/proc/{pid}/task")[:12]:
        at = f"/proc/{pid}/task/{tid}/"
        state = status(f"{pid}/task/{tid}").get("State", "?")
        said.append(f"{tid}: {state} in {read(at + 'wchan')} {read(at + 'syscall').strip()}")
    return "; ".join(said)


def mappings(pid):
    return [l.split(maxsplit=5) for l in read(f"/proc/{pid}/maps").splitlines()]


def is_foreign(m):
    """Returns whether a mapping is one that only prof makes in these targets: the ring, or code without a file."""
    return "prof-ring" in m[-1] or ("x" in m[1] and len(m) < 6)


def descriptors(pid):
    fds = {}
    for n in os.listdir(f"/proc/{pid}/fd"):
        try:
            fds[n] = os.readlink(f"/proc/{pid}/fd/{n}")
        except OSError:
            pass
    return fds


def text(pid):
    """Returns a hash of all code of files, as it is in memory."""
    h = hashlib.blake2b()
    with open(f"/proc/{pid}/mem", "rb") as mem:
        for m in mappings(pid):
            if "x" in m[1] and len(m) > 5 and m[5].startswith("/"):
                start, end = (int(x, 16) for x in m[0].split("-"))
                mem.seek(start)
                h.update(mem.read(end - start))
    return h.hexdigest()


def footprint(pid, with_text=True):
    """Returns the properties that an attach and a detach must leave as they were, whatever else the target does."""
    s = status(pid)
    seen = {k: s.get(k) for k in ("SigBlk", "SigIgn", "SigCgt", "Seccomp", "TracerPid")}
    seen["foreign"] = [m[0] for m in mappings(pid) if is_foreign(m)]
    seen["descriptors"] = descriptors(pid)
    if with_text:
        seen["text"] = text(pid)
    return seen


def differences(before, after):
    return "; ".join(f"{k} was {before[k]}, is {after[k]}" for k in after if before[k] != after[k])


def collectors(pid):
    """Returns the collectors of a target."""
    wanted, found = f"collect\0--pid\0{pid}\0".encode(), []
    for n in os.listdir("/proc"):
        if n.isdigit():
            try:
                with open(f"/proc/{n}/cmdline", "rb") as f:
                    if wanted in f.read():
                        found.append(int(n))
            except OSError:
                pass
    return found


def kill(pid):
    """Kills a process by SIGKILL, and waits for its end."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    wait_until("it has ended", lambda: status(pid).get("State", "Z")[0] in "ZX")


def wait_until(what, condition, deadline=DEADLINE):
    end = time.monotonic() + deadline
    while not condition():
        if time.monotonic() > end:
            raise Failed(f"waited in vain until {what}")
        time.sleep(0.005)


def resident(pid):
    """Returns the private resident memory in KiB."""
    for line in read(f"/proc/{pid}/smaps_rollup").splitlines():
        if line.startswith("Private_Dirty:"):
            return int(line.split()[1])
    return 0
