"""A kind of target: what it does while prof comes and goes, and what of it must be as before.

A kind answers `recorded` and `afterwards` for a cycle, `play` between kills, and `last_word` at its end. After
each, `wrong()` must be empty: the process lives, its code is as in its files, its descriptors, files and signal
handlers are as before, and nothing of prof is mapped.
"""
import time
from soak import Failed, Target, descriptors, is_foreign, mappings, status


class Kind:
    """A program that answers lines."""

    program, arguments, options = "toggle.c", [], []
    # What varies by itself.
    varies = ()
    # A process of its own for each cycle, or for so many.
    fresh, cycles = False, 1
    # It has ended as it should.
    is_over = False

    def __init__(self, soak, name):
        self.soak, self.name, self.rounds = soak, name, 0
        self.target = self.started()
        self.pid = self.target.pid
        self.ready()
        self.before = self.state()

    def started(self):
        return Target([self.compiled(), *self.arguments_of()], ready=None)

    def compiled(self):
        return self.soak.compile(self.program)

    def arguments_of(self):
        return self.arguments

    def ready(self):
        self.target.expect("ready")

    def ask(self, line, wanted="done"):
        answer = self.target.ask(line)
        if not answer.startswith(wanted):
            raise Failed(f"{self.name} answers {line!r} with {answer!r}, not {wanted!r}")
        return answer

    # What is looked at.

    def tasks(self):
        """The folders below /proc of what shares this memory and is looked at."""
        return [str(self.pid)]

    def state(self):
        seen = {}
        for task in self.tasks():
            s = status(task)
            seen.update({f"{k} of {task}": s.get(k) for k in ("SigBlk", "SigIgn", "SigCgt", "Seccomp", "TracerPid")
                         if k not in self.varies})
            fds = descriptors(task)
            if "descriptors" not in self.varies:
                seen[f"descriptors of {task}"] = fds
            else:
                fds = {n: f for n, f in fds.items() if "prof-ring" in f}
                seen[f"descriptors of {task}"] = fds
            seen[f"mappings of {task}"] = [m[0] for m in mappings(task) if is_foreign(m)]
            if "threads" not in self.varies:
                seen[f"threads of {task}"] = s.get("Threads")
        return seen

    def wrong(self, with_code=True):
        """Differences from before, in words."""
        if not self.target.alive():
            raise Failed(f"{self.name} has ended with {self.target.p.wait()}")
        now = self.state()
        found = [f"{k} was {self.before.get(k)}, is {now.get(k)}" for k in {**self.before, **now}
                 if self.before.get(k) != now.get(k)]
        if with_code:
            found += [w for task in self.tasks() for w in changed_code(task)]
        return "; ".join(found + self.files_changed())

    def files_changed(self):
        return []

    # What it does.

    def recorded(self):
        """While it is recorded."""

    def afterwards(self):
        """After the detach."""

    def play(self):
        """Between kills, recorded or not."""
        self.afterwards()

    def last_word(self):
        """At its end: whether all was right."""
        self.afterwards()

    def refused(self, said):
        """Whether it may be refused for that reason."""
        return "did not stop within" in said or "again later" in said

    def before_attach(self):
        """What to start prof by, if anything."""
        return []

    def after_attach(self):
        """Whatever became of it."""

    def detach(self):
        self.detached(self.soak.patient("detach", self.pid))

    def detached(self, said):
        """What a detach has said."""

    def settle(self, seconds=5):
        """Waits until all is as before: a thread may still have to finish a call that it was left in."""
        end = time.monotonic() + seconds
        while said := self.wrong():
            if time.monotonic() > end:
                raise Failed(f"{self.name}: {said}")
            time.sleep(0.01)

    def end(self):
        self.target.end()


def changed_code(task):
    """Code in memory that is not as in its file."""
    found = []
    with open(f"/proc/{task}/mem", "rb") as mem:
        for m in mappings(task):
            if "x" not in m[1] or "w" in m[1] or len(m) < 6 or not m[5].startswith("/"):
                continue
            start, end = (int(x, 16) for x in m[0].split("-"))
            try:
                mem.seek(start)
                there = mem.read(end - start)
                with open(m[5], "rb") as f:
                    f.seek(int(m[2], 16))
                    own = f.read(end - start)
            except OSError:
                continue
            at = next((i for i, (a, b) in enumerate(zip(there, own)) if a != b), None) if there[:len(own)] != own else None
            if at is not None:
                found.append(f"code of {m[5]} at {start + at:#x} is {there[at:at + 8].hex()}, in its file {own[at:at + 8].hex()}")
    return found
