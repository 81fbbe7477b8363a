"""A kind of target: what it does while prof comes and goes, and which of its properties must be as before.

A kind has the methods `recorded` and `afterwards` for a cycle, `play` between kills, and `last_word` at its end.
After each of these, `wrong()` must be empty: the process lives, its code is as in its files, its descriptors,
files and signal handlers are as before, and nothing of prof is mapped.
"""
import time
from soak import Failed, Target, descriptors, is_foreign, mappings, status


class Kind:
    """A program that answers lines."""

    program, arguments, options = "toggle.c", [], []
    # Properties that the program changes by itself.
    varies = ()
    # Whether each cycle, or each group of so many cycles, gets a process of its own.
    fresh, cycles = False, 1
    # Whether the process has ended as it should.
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

    # The properties that are checked.

    def tasks(self):
        """Returns the folders below /proc of the processes that share this memory and are checked."""
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
        """Returns the differences from before, in words."""
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

    # The actions of the program.

    def recorded(self):
        """Acts while the process is recorded."""

    def afterwards(self):
        """Acts after the detach."""

    def play(self):
        """Acts between kills, whether the process is recorded or not."""
        self.afterwards()

    def last_word(self):
        """Acts at the end of the process, and checks that all was right."""
        self.afterwards()

    def refused(self, said):
        """Returns whether prof may refuse the process for this reason."""
        return "did not stop within" in said or "again later" in said

    def before_attach(self):
        """Prepares an attach. Returns the command to start prof by, if any."""
        return []

    def after_attach(self):
        """Acts after an attach, whether that succeeded or not."""

    def detach(self):
        self.detached(self.soak.patient("detach", self.pid))

    def detached(self, said):
        """Checks the output of a detach."""

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
    """Returns the places where code in memory differs from its file."""
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
