"""Targets in which prof meets others: uprobes, a tracer, handlers of the toggle signal, callers that rely on more
of a function than its interface, and limits of prof's own.
"""
import os, shutil, signal
from busy import Toggle
from kind import Kind
from soak import Failed, Target, wait_until
from uprobe import Uprobe


class Probed(Kind):
    """Puts uprobes on malloc and free of a file of its own, before prof attaches or afterwards."""

    program = "probed.c"

    def compiled(self):
        file = self.soak.compile(self.program, "-static", name="probed-static")
        own = f"{file}-{self.name.replace(' ', '-')}"
        if not os.path.exists(own):
            shutil.copy(file, own)
        self.file = own
        return own

    def ready(self):
        self.target.expect("ready")
        self.at = [int(w, 16) for w in self.ask("where").split()[1:3]]
        self.is_first, self.at_return = "first" in self.name, "return" in self.name
        self.probes = []
        self.put()
        self.ask("go")
        if not self.is_first:
            self.take()

    def put(self):
        self.probes = [Uprobe(self.pid, self.file, at, self.at_return) for at in self.at]

    def take(self):
        """Removes the uprobes, and waits until their bytes are gone."""
        while self.probes:
            self.probes.pop().close()
        self.wait_for(False)

    def wait_for(self, are_there):
        def has_one(at):
            with open(f"/proc/{self.pid}/mem", "rb") as mem:
                mem.seek(at)
                return mem.read(1) == b"\xcc"
        wait_until("breakpoints have come or gone", lambda: all(has_one(at) == are_there for at in self.at))

    def wrong(self, with_code=True):
        # The bytes that the kernel has put there are not prof's.
        if not self.is_first:
            return super().wrong(with_code)
        self.take()
        said = super().wrong(with_code)
        self.put()
        return said

    def go(self):
        before = [p.hits() for p in self.probes]
        self.ask("go")
        hits = [p.hits() - n for p, n in zip(self.probes, before)]
        if any(n != 200 for n in hits):
            raise Failed(f"{self.name}: of 200 calls each the probes have seen {hits}")

    def recorded(self):
        if not self.is_first:
            self.put()
        self.go()
        if not self.is_first and self.rounds % 2:
            self.take()

    def afterwards(self):
        if self.probes:
            self.go()
        if not self.is_first:
            self.take()
        self.ask("go")

    def end(self):
        while self.probes:
            self.probes.pop().close()
        super().end()


class Named(Kind):
    """Has functions that the user names: with exceptions, jumps, cancellation, registers."""

    program = "thrown.cpp"

    def compiled(self):
        return self.soak.compile(self.program, "-O2", name="thrown")

    def ready(self):
        self.target.expect("ready")
        self.options = ["--alloc-fn=thrown:pool_new(1)", "--alloc-fn=thrown:pool_jump(1)",
                        "--alloc-fn=thrown:pool_many(2)", "--alloc-fn=thrown:pool_wait(1)",
                        "--alloc-fn=thrown:quiet_alloc(1)", "--realloc-fn=thrown:pool_grow(1,2)",
                        "--free-fn=thrown:pool_put(1)"]
        self.afterwards()

    def afterwards(self):
        self.ask("go", "done 200 caught 50 jumped 300 destroyed")
        self.ask("registers")
        if self.rounds % 10 == 0:
            self.ask("cancel", "done cancelled 1")

    recorded = afterwards


class Taken(Kind):
    """Uses the toggle signal itself: by sigwait, by signalfd, or blocked."""

    program = "chained.c"

    def arguments_of(self):
        return [self.name.split()[1]]

    def afterwards(self):
        self.ask("alloc")
        os.kill(self.pid, signal.SIGUSR1)
        if self.name.endswith("signalfd"):
            self.ask("read", "done 1")
        if self.name.endswith("sigwait"):
            self.rounds_waited = getattr(self, "rounds_waited", 0) + 1
            wait_until("it has had its signal", lambda: int(self.ask("waited").split()[1]) >= self.rounds_waited)

    recorded = afterwards


class Chained(Kind):
    """Keeps prof's handler beyond the detach, and goes on calling it. Each cycle has a process of its own."""

    program, fresh, varies = "chained.c", True, ("SigCgt",)

    def ready(self):
        self.target.expect("ready")
        self.ask("alloc")
        self.kept = False

    def recorded(self):
        self.kept = True
        if self.name.endswith("asked"):
            self.ask("ask", "done 1")
        else:
            self.ask("install", "done 1")
            self.ask("raise")

    def detached(self, said):
        if self.kept and "stays mapped" not in said:
            raise Failed(f"{self.name}: nothing is said of the page that stays: {said}")

    def afterwards(self):
        for _ in range(3):
            self.ask("call" if self.name.endswith("asked") else "raise")
        self.ask("alloc")

    def play(self):
        self.ask("alloc")

    def wrong(self, with_code=True):
        key = f"mappings of {self.pid}"
        now = self.state()[key]
        if self.kept and len(now) == 1:
            self.before[key] = now
        return super().wrong(with_code)


class OwnHandler(Kind):
    """Installs a signal handler of its own in the midst of a detach."""

    program, fresh, varies = "own_handler.c", True, ("SigCgt", "threads")

    def recorded(self):
        self.ask("seen")


class Traced(Toggle):
    """Another tracer comes in the midst of each attach, and leaves later."""

    def before_attach(self):
        self.tracer = Target([self.soak.compile("breaks_in.c"), str(self.pid)])
        return []

    def refused(self, said):
        return True

    def after_attach(self):
        self.tracer.expect("held")
        self.tracer.end()


class Limited(Toggle):
    """prof itself is short of descriptors, memory or threads."""

    USER = 47110

    def started(self):
        os.chmod(self.soak.scratch, 0o777)
        return Target([self.compiled()], ready=None, user=self.USER, group=self.USER, extra_groups=[])

    def before_attach(self):
        r = self.soak.random
        limit = r.choice([f"--nofile={r.randrange(6, 48)}", f"--as={r.randrange(64 << 20, 700 << 20)}",
                          f"--nproc={r.randrange(2, 9)}"])
        user = ["setpriv", f"--reuid={self.USER}", f"--regid={self.USER}", "--clear-groups"]
        return [*user, "prlimit", limit]

    def refused(self, said):
        return "panicked" not in said
