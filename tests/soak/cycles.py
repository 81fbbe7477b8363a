"""Attaches and detaches over and over on processes that check their own work: redis-server under redis-benchmark,
a checksum program on 8 threads, python3, a JVM. Their memory must not grow.
"""
import hashlib, os, shutil, socket, subprocess, time
from soak import (DEADLINE, ROOT, Failed, Target, descriptors, is_foreign, mappings, resident, status,
                  wait_until)

TARGETS = ["redis", "stress", "python", "java"]
SHORT, LONG = 40, 4000
# Growth that each program may have without prof: KiB, and mappings.
ALLOWED = {"redis": (2048, 4), "stress": (1024, 2), "python": (4096, 16), "java": (32768, 64)}


class Redis:
    """A redis-server under load, with a client that checks its answers."""

    def __init__(self, soak):
        self.path = os.path.join(soak.scratch, "redis.sock")
        command = ["redis-server", "--port", "0", "--unixsocket", self.path, "--save", "",
                   "--appendonly", "no", "--dir", soak.scratch]
        self.p = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        self.pid = self.p.pid
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(DEADLINE)
        # The socket's file is there before the server listens. connect_ex returns the number of the error.
        wait_until("redis listens", lambda: self.socket.connect_ex(self.path) == 0)
        self.reader = self.socket.makefile("rb")
        self.load = None
        # redis makes its threads with the first work.
        self.work()
        time.sleep(0.5)
        self.idle()

    def work(self):
        if self.load and self.load.poll() not in (None, 0):
            raise Failed(f"redis-benchmark has ended with {self.load.returncode}")
        if self.load is None or self.load.poll() == 0:
            command = ["redis-benchmark", "-s", self.path, "-t", "set,get,incr,hset", "-q", "-n",
                       "200000", "-c", "20", "-r", "10000", "-d", "100"]
            self.load = subprocess.Popen(command, stdout=subprocess.DEVNULL)

    def call(self, *words):
        line = b"*%d\r\n" % len(words)
        for w in words:
            line += b"$%d\r\n%s\r\n" % (len(w), w)
        self.socket.sendall(line)
        answer = self.reader.readline()
        if answer.startswith(b"$"):
            return self.reader.read(int(answer[1:]) + 2)[:-2]
        return answer.strip()

    def check(self, n):
        value = hashlib.sha256(b"%d" % n).hexdigest().encode() * (n % 100 + 1)
        if self.call(b"SET", b"soak", value) != b"+OK" or self.call(b"GET", b"soak") != value:
            raise Failed("redis gives another value than it was given")

    def idle(self):
        if self.load:
            self.load.kill()
            self.load.wait()
            self.load = None
        clients = lambda: int(self.call(b"CLIENT", b"LIST").count(b"\n"))
        wait_until("its clients are gone", lambda: clients() == 1)

    def last_word(self):
        self.check(1)

    def alive(self):
        return self.p.poll() is None

    def end(self):
        self.idle()
        self.p.kill()
        self.p.wait()


class Worker:
    """A program that works by itself, and reports at its end whether all was right."""

    def __init__(self, command):
        self.target = Target(command)
        self.pid = self.target.pid

    def work(self):
        pass

    def check(self, n):
        pass

    def idle(self):
        pass

    def last_word(self):
        answer = self.target.ask("stop")
        if not answer.startswith("done OK"):
            raise Failed(answer)

    def alive(self):
        return self.target.alive()

    def end(self):
        self.target.end()


def start(soak, name):
    programs = os.path.join(ROOT, "tests/programs")
    need = {"redis": "redis-benchmark", "python": "python3", "java": "javac"}.get(name)
    if need and not shutil.which(need):
        print(f"cycles: {name} is skipped: no {need} here", flush=True)
        return None
    if name == "redis":
        return Redis(soak)
    if name == "stress":
        return Worker([soak.compile("stress.c")])
    if name == "python":
        return Worker(["python3", os.path.join(programs, "work.py")])
    subprocess.run(["javac", "-d", soak.scratch, os.path.join(programs, "Work.java")], check=True)
    return Worker(["java", "-Xms64m", "-Xmx64m", "-XX:+AlwaysPreTouch", "-XX:+UseSerialGC", "-cp",
                   soak.scratch, "Work"])


def left(target, name):
    """Returns the mappings and descriptors of prof's in a target. A JVM has code without a file of its own, which
    does not count."""
    foreign = [m for m in mappings(target.pid) if is_foreign(m)]
    if name == "java":
        foreign = [m for m in foreign if "prof-ring" in m[-1]]
    return foreign + [f for f in descriptors(target.pid).values() if "prof-ring" in f]


def size(target):
    return resident(target.pid), len(mappings(target.pid))


def cycle(soak, target, name, n, file):
    target.work()
    if os.path.exists(file):
        os.unlink(file)
    soak.patient("attach", target.pid, "-o", file)
    target.check(n)
    time.sleep(soak.random.random() * 0.02)
    soak.patient("detach", target.pid)
    target.check(n + 1)
    if not target.alive():
        raise Failed("it has ended")
    if left(target, name):
        raise Failed(f"left in it: {left(target, name)}")


def one(soak, name, count, end):
    """Runs all cycles on one target. Returns their number, and how much the target grew."""
    target = start(soak, name)
    if not target:
        return 0, ""
    file = os.path.join(soak.scratch, f"{name}.prof")
    done, before = 0, (descriptors(target.pid), status(target.pid)["Threads"])
    warm = None
    try:
        while done < count and time.monotonic() < end and not soak.is_over():
            cycle(soak, target, name, done, file)
            done += 1
            if done == max(5, count // 10):
                warm = size(target)
            if done % 100 == 0:
                print(f"cycles: {name}: {done} cycles", flush=True)
        target.idle()
        after = (descriptors(target.pid), status(target.pid)["Threads"])
        if name != "java" and before != after:
            raise Failed(f"descriptors and threads were {before}, are {after}")
        warm = warm or size(target)
        now = size(target)
        grown = (now[0] - warm[0], now[1] - warm[1])
        if grown[0] > ALLOWED[name][0] + done // 2 or grown[1] > ALLOWED[name][1]:
            raise Failed(f"it has grown by {grown[0]} KiB and {grown[1]} mappings in {done} cycles")
        target.last_word()
        return done, f"{name} {done} ({grown[0]:+} KiB, {grown[1]:+} mappings)"
    except Failed as e:
        soak.fail(f"{name}, cycle {done}: {e}")
        return done, f"{name} {done}"
    finally:
        target.end()


def run(soak, only=None):
    names = [only] if only else TARGETS
    said, sum_ = [], 0
    for i, name in enumerate(names):
        end = soak.began + soak.seconds * (i + 1) / len(names)
        done, figures = one(soak, name, soak.count // len(names), end)
        sum_ += done
        said.append(figures)
    return soak.report(f"{sum_} cycles: {', '.join(s for s in said if s)}, {soak.refused} calls tried again")
