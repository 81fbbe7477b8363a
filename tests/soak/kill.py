"""kill -9 of `prof attach`, of the collector and of `prof detach`, at random instants.

Five targets: waiting in every kind of system call, allocating on 8 threads with a checksum in every
block, creating and ending threads, under a seccomp filter, on a small stack between data. After each kill a fresh attach, or a detach, must work on the same
process, and nothing may be left in it; at its end each target says whether all that it did was right.
"""
import os, signal, time
from soak import (Failed, Target, collectors, differences, footprint, kill, wait_until)

TARGETS = ["sleeps", "stress", "churn", "filters default", "pooled"]
SHORT, LONG = 90, 10000
# signal(7): return EINTR at a stop, whatever a tracer does.
NEVER_RESTARTED = ["epoll_wait", "epoll_pwait2", "epoll_forever", "sigtimedwait", "sigwaitinfo",
                   "semtimedop", "msgrcv", "recv_timeout", "io_uring_timeout", "io_uring_forever"]
KINDS = ["attach", "attach", "detach", "detach", "collector", "collector of attach",
         "collector of detach"]


class Killer:
    def __init__(self, soak, name):
        self.soak, self.random = soak, soak.random
        program, *arguments = name.split()
        self.target = Target([soak.compile(program + ".c"), *arguments])
        self.pid, self.name = self.target.pid, program
        self.before = footprint(self.pid)
        self.waited = self.interrupted = self.again_later = 0
        self.kills = self.attaches = self.detaches = self.readable = 0
        # How long each takes, as far as known, so that kills come at any point of it.
        self.takes = {"attach": 0.05, "detach": 0.05}
        self.file = os.path.join(soak.scratch, "killed.prof")
        self.again = os.path.join(soak.scratch, "again.prof")

    def timed(self, what, *args):
        began = time.monotonic()
        said = self.retried(what, *args)
        self.takes[what] += (time.monotonic() - began - self.takes[what]) / 8
        return said

    def retried(self, what, *args):
        """A prof that holds the lock may be a child of a killed one, about to call exec. And on a
        machine with much more to do, a thread may not come to its stop in time."""
        for _ in range(20):
            code, said = self.soak.run(what, self.pid, *args)
            if "another prof is" not in said and "did not stop within" not in said and (
                    "again later" not in said):
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
        kind = self.random.choice(KINDS)
        for f in (self.file, self.again):
            if os.path.exists(f):
                os.unlink(f)
        # A small ring takes less of the machine's time, and a large one more of prof's.
        size = "1MiB" if self.random.random() < 0.9 else "64MiB"
        record = ["-o", self.file, "--ring-size", size]
        if kind == "attach":
            self.killed("attach", *record)
        elif kind == "collector of attach":
            if not self.with_collector_killed("attach", *record):
                kind = "none"
        else:
            code, said = self.timed("attach", *record)
            if code != 0:
                raise Failed(f"attach: {said}")
            if kind == "detach":
                self.killed("detach")
            elif kind == "collector":
                time.sleep(self.random.random() * 0.05)
                for c in collectors(self.pid):
                    kill(c)
            elif not self.with_collector_killed("detach"):
                kind = "none"
        self.kills += kind != "none"
        self.recover(kind, size)

    def recover(self, kind, size):
        """A fresh attach, and a detach, or a detach alone."""
        after = f"after a kill of {kind}: "
        if self.random.random() < 0.5:
            self.attaches += 1
            code, said = self.retried("attach", "-o", self.again, "--ring-size", size)
            # The killed one may have come to its end: then it is being recorded.
            complete = kind in ("attach", "detach", "none", "collector of attach")
            if code != 0 and not (complete and "already being recorded" in said):
                raise Failed(f"{after}attach: {code}: {said}")
        self.detaches += 1
        code, said = self.timed("detach")
        if code != 0 and "is not being recorded" not in said:
            raise Failed(f"{after}detach: {code}: {said}")
        if not self.target.alive():
            raise Failed(f"{after}the target has ended with {self.target.p.returncode}")
        # On a busy machine a thread may still have to finish the call that a killed prof left it in.
        end = time.monotonic() + 5
        while True:
            now = footprint(self.pid, with_text=self.kills % 8 == 0)
            if not differences(self.before, now):
                break
            if time.monotonic() > end:
                raise Failed(f"{after}{differences(self.before, now)}")
            time.sleep(0.01)

    def recording(self):
        """What was recorded up to the kill can be read."""
        for f in (self.file, self.again):
            if os.path.exists(f) and os.path.getsize(f) > 0:
                code, said = self.soak.run("report", f, "--top", "3")
                if code != 0:
                    raise Failed(f"report: {code}: {said}")
                self.readable += 1

    def lively(self):
        """The target goes on."""
        if self.name == "sleeps":
            self.target.ask("beat")
        elif self.name == "stress":
            before = self.target.ask("operations")
            wait_until("the target works", lambda: self.target.ask("operations") != before)
        elif self.name in ("filters", "pooled"):
            self.last_word()

    def last_word(self):
        answer = self.target.ask("stop")
        if self.name == "sleeps":
            return self.waits()
        good = {"filters": "done", "pooled": "done bad=0"}.get(self.name, "done OK")
        if not answer.startswith(good):
            raise Failed(f"{self.name} says {answer}")

    def waits(self):
        """No wait may have ended before its time. What can't be helped: calls that the kernel never
        restarts return EINTR if prof is killed between their stop and its first look at them."""
        for line in self.target.said:
            words = line.split()
            figures = dict(w.split("=") for w in words[1:] if "=" in w)
            if "waits" not in figures:
                continue
            self.waited += int(figures["waits"])
            failed, errno = int(figures["failed"]), int(figures["errno"])
            interrupted = failed if words[0] in NEVER_RESTARTED and errno in (0, 4) else 0
            self.interrupted += interrupted
            if failed > interrupted or int(figures["early"]) > interrupted:
                raise Failed(f"sleeps says {line}")


def run(soak, only=None):
    kills = attaches = detaches = readable = waited = interrupted = later = 0
    names = [only] if only else TARGETS
    for i, name in enumerate(names):
        end = soak.began + soak.seconds * (i + 1) / len(names)
        killer = Killer(soak, name)
        try:
            while (killer.kills < soak.count // len(names) and not soak.is_over()
                   and time.monotonic() < end):
                try:
                    killer.round()
                    if killer.kills % 25 == 0:
                        killer.lively()
                        killer.recording()
                except Failed as e:
                    soak.fail(f"{name}, kill {killer.kills}: {e}")
                    if not killer.target.alive():
                        break
                    soak.run("detach", killer.pid)
                if killer.kills % 100 == 0:
                    print(f"kill: {name}: {killer.kills} kills", flush=True)
            if killer.target.alive():
                killer.last_word()
        except Failed as e:
            soak.fail(f"{name}: {e}")
        finally:
            killer.target.end()
        kills += killer.kills
        attaches += killer.attaches
        detaches += killer.detaches
        readable += killer.readable
        waited += killer.waited
        interrupted += killer.interrupted
        later += killer.again_later
    return soak.report(f"{kills} kills, after them {attaches} attaches and {detaches} detaches "
                       f"({later} of them tried again), "
                       f"{readable} recordings read, {waited} waits of which {interrupted} ended "
                       "with EINTR (calls that the kernel never restarts)")
