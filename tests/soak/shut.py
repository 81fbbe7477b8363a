"""Targets in which something is out of prof's sight or reach: calls that a filter forbids, stacks that no thread
runs on, libraries that are loaded while recording is paused, threads that a garbage collector stops.
"""
from kind import Kind
from soak import Failed


class Filtered(Kind):
    """Runs under a seccomp filter."""

    program = "filters.c"

    def arguments_of(self):
        return [self.name.split()[1]]

    def afterwards(self):
        self.ask("go")

    recorded = afterwards


class FilteredWork(Kind):
    """Computes under a filter that kills for calls of unknown numbers, or answers them with an error."""

    program = "filtered.c"

    def arguments_of(self):
        return [self.name.split()[2]]

    def last_word(self):
        self.ask("stop", "done wrong=0")


class FilteredLate(Kind):
    """Installs a filter while it is recorded, which kills for calls that the hook would make."""

    program, fresh, varies = "late_filter.c", True, ("Seccomp",)

    def ready(self):
        self.target.expect("ready")
        # libc installs a signal handler of its own with the first thread.
        self.afterwards()

    def recorded(self):
        self.ask("thread")
        self.ask("syscall" if self.rounds % 2 else "prctl")
        self.afterwards()

    def afterwards(self):
        self.ask("thread")
        self.ask("fiber")

    def play(self):
        self.ask("thread")


class Collected(Kind):
    """Has a garbage collector that stops threads by a signal."""

    program = "boehm.c"

    def compiled(self):
        return self.soak.compile(self.program, "-Wl,--no-as-needed", "-lgc")

    def afterwards(self):
        self.ask("go 20", "done rounds")

    recorded = afterwards


class Fibers(Kind):
    """Switches away from a fiber inside a hooked function while prof detaches."""

    program = "yields.c"

    def ready(self):
        self.target.expect("ready")
        self.options = ["--alloc-fn=yields:lent_block(1)"]
        self.ask("start")
        self.ask("resume")
        self.ask("start")
        self.ask("move")

    def recorded(self):
        self.ask("start")
        self.ask("alloc")

    def detach(self):
        said = "did not stop within"
        while "did not stop within" in said:
            code, said = self.soak.run("detach", self.pid, "--timeout", "100ms")
        if code != 1 or "fibers (coroutines) that are not running" not in said:
            raise Failed(f"{self.name}: a detach beside a fiber inside: {code}: {said}")
        self.ask("alloc")
        self.ask("move" if self.rounds % 2 else "resume")
        self.soak.patient("detach", self.pid)

    def afterwards(self):
        self.ask("start")
        self.ask("resume")


class Pooled(Kind):
    """Runs a fiber on a small stack between data that another thread compares."""

    program = "pooled.c"

    def afterwards(self):
        self.ask("count", "done bad=0")

    recorded = afterwards


class Loads(Kind):
    """Replaces a library by another one while recording is paused."""

    program = "loader.c"

    def ready(self):
        self.libraries = [self.soak.compile("plugin.c", "-shared", "-fPIC", *more, name=name) for name, more in
                          (("plugin-a.so", ["-DROOM=8388608"]), ("plugin-b.so", ["-DSIZE=444", "-DROOM=4194304"]))]
        self.target.expect("ready")
        self.afterwards()
        if "filter" in self.name:
            self.ask("filter")

    def recorded(self):
        a, b = self.libraries
        self.ask(f"load {a}")
        self.ask("call")
        self.soak.patient("pause", self.pid)
        self.ask("unload")
        self.ask(f"load {b}")
        self.soak.patient("resume", self.pid)
        for _ in range(3):
            self.ask("call")
        self.ask("unload")

    def afterwards(self):
        for library in self.libraries:
            self.ask(f"load {library}")
            self.ask("call")
            self.ask("unload")
