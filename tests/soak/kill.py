"""Kills `prof attach`, the collector and `prof detach` by SIGKILL at random instants.

The targets are those of kinds.py: they wait in every kind of system call, allocate on 8 threads with a checksum in
every block, create and end threads, and do what other people's programs do, also under seccomp filters. After each
kill, a new attach or a detach must work on the same process, and nothing may be left in it. At its end each target
reports whether all its work was right.
"""
import collections, os, time
import kinds
from soak import Failed, collectors, kill

TARGETS = ["sleeps", "stress", "churn", *kinds.KILLED, *kinds.FILTERED]
SHORT, LONG = 90, 10000
KILLS = ["attach", "attach", "detach", "detach", "collector", "collector of attach",
         "collector of detach"]


class Killer:
    def __init__(self, soak, name, kind):
        self.soak, self.random, self.name, self.kind = soak, soak.random, name, kind
        self.again_later, self.of = 0, collections.Counter()
        self.kills = self.attaches = self.detaches = self.readable = 0
        # The time that each takes, as far as it is known, so that kills come at any point of it.
        self.takes = {"attach": 0.05, "detach": 0.05}
        self.file = os.path.join(soak.scratch, "killed.prof")
        self.again = os.path.join(soak.scratch, "again.prof")

    @property
    def pid(self):
        return self.kind.pid

    def timed(self, what, *args):
        began = time.monotonic()
        said = self.retried(what, *args)
        self.takes[what] += (time.monotonic() - began - self.takes[what]) / 8
        return said

    def retried(self, what, *args):
        """Runs prof again if it gives up for a moment only. A child of a killed prof that is about to call exec
        may still hold the lock. On a machine with much more to do, a thread may not stop in time."""
        for _ in range(20):
            code, said = self.soak.run(what, self.pid, *args)
            later = "another prof is", "did not stop within", "again later", "no moment came"
            if not any(words in said for words in later):
                break
            self.again_later += 1
            time.sleep(0.05)
        return code, said

    def killed(self, what, *args):
        """Starts prof and kills it."""
        p = self.soak.start(what, self.pid, *args)
        time.sleep(self.random.random() * self.takes[what] * 1.2)
        p.kill()
        p.communicate()

    def with_collector_killed(self, what, *args):
        """Runs prof, and kills the collector meanwhile."""
        p = self.soak.start(what, self.pid, *args)
        found, end = [], time.monotonic() + self.takes[what] * 3
        while not found and p.poll() is None and time.monotonic() < end:
            found = collectors(self.pid)
        time.sleep(self.random.random() * self.takes[what])
        for c in found:
            kill(c)
        p.communicate(timeout=60)
        return bool(found)

    def round(self):
        kind = self.random.choice(KILLS)
        for f in (self.file, self.again):
            if os.path.exists(f):
                os.unlink(f)
        # A small ring takes less of the machine's time, and a large one more of prof's.
        size = "1MiB" if self.random.random() < 0.9 else "64MiB"
        record = ["-o", self.file, "--ring-size", size, *self.kind.options]
        if kind == "attach":
            self.killed("attach", *record)
        elif kind == "collector of attach":
            if not self.with_collector_killed("attach", *record):
                kind = "none"
        else:
            code, said = self.timed("attach", *record)
            if code != 0:
                raise Failed(f"attach: {said}")
            if self.random.random() < 0.1:
                self.kind.play()
            if kind == "detach":
                self.killed("detach")
            elif kind == "collector":
                time.sleep(self.random.random() * 0.05)
                for c in collectors(self.pid):
                    kill(c)
            elif not self.with_collector_killed("detach"):
                kind = "none"
        self.kills += kind != "none"
        self.of[kind] += kind != "none"
        self.recover(kind, size)

    def recover(self, kind, size):
        """Attaches anew and detaches, or only detaches."""
        after = f"after a kill of {kind}: "
        if self.random.random() < 0.5:
            self.attaches += 1
            code, said = self.retried("attach", "-o", self.again, "--ring-size", size, *self.kind.options)
            # The killed prof may have completed its attach; then the process is being recorded.
            complete = kind in ("attach", "detach", "none", "collector of attach")
            if code != 0 and not (complete and "already being recorded" in said):
                raise Failed(f"{after}attach: {code}: {said}")
        self.detaches += 1
        code, said = self.timed("detach")
        if code != 0 and "is not being recorded" not in said:
            raise Failed(f"{after}detach: {code}: {said}")
        try:
            self.kind.settle()
        except Failed as e:
            raise Failed(f"{after}{e}; the detach said: {said}") from None

    def recording(self):
        """Checks that everything recorded before the kill can be read."""
        for f in (self.file, self.again):
            if os.path.exists(f) and os.path.getsize(f) > 0:
                code, said = self.soak.run("report", f, "--top", "3")
                if code != 0:
                    raise Failed(f"report: {code}: {said}")
                self.readable += 1

    def renew(self):
        """Starts another process, for kinds whose processes soon change too much."""
        self.kind.last_word()
        self.kind.end()
        self.kind = kinds.start(self.soak, self.name)


def one(soak, name, kind, end):
    """Runs all kills on one kind of target."""
    killer = Killer(soak, name, kind)
    wanted = soak.count // soak.parts
    try:
        while killer.kills < wanted and not soak.is_over() and time.monotonic() < end:
            try:
                killer.round()
                if killer.kills % 25 == 0:
                    killer.kind.play()
                    killer.recording()
                if kind.fresh and killer.kills % 10 == 0:
                    killer.renew()
            except Failed as e:
                soak.fail(f"{name}, kill {killer.kills}: {e}")
                if not killer.kind.target.alive():
                    break
                soak.run("detach", killer.pid)
            if killer.kills % 100 == 0:
                print(f"kill: {name}: {killer.kills} kills", flush=True)
        if killer.kind.target.alive():
            killer.kind.last_word()
    except Failed as e:
        soak.fail(f"{name}: {e}")
    finally:
        killer.kind.end()
    return killer


def run(soak, only=None):
    names = kinds.chosen(only, TARGETS)
    soak.parts = len(names)
    sums, said = dict.fromkeys(("kills", "attaches", "detaches", "again_later", "readable"), 0), []
    waited = interrupted = taken = 0
    of = collections.Counter()
    for i, name in enumerate(names):
        kind = kinds.start(soak, name)
        if not kind:
            continue
        killer = one(soak, name, kind, soak.began + soak.seconds * (i + 1) / len(names))
        for k in sums:
            sums[k] += getattr(killer, k)
        waited += getattr(killer.kind, "waited", 0)
        interrupted += getattr(killer.kind, "interrupted", 0)
        taken += getattr(killer.kind, "taken", 0)
        of += killer.of
        said.append(f"{killer.kills} {name}")
    during = ", ".join(f"{n} of {what}" for what, n in sorted(of.items()))
    return soak.report(f"{sums['kills']} kills ({', '.join(said)}; {during}), after them {sums['attaches']} attaches and "
                       f"{sums['detaches']} detaches ({sums['again_later']} of them tried again), "
                       f"{sums['readable']} recordings read, {waited} waits of which {interrupted} ended "
                       "with EINTR (calls that the kernel never restarts), "
                       f"{taken} times a program saw the number of prof's descriptor taken")
