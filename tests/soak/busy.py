"""Targets that themselves use up what prof needs: time, descriptors, memory, stacks, threads, children."""
import os, signal
from kind import Kind
from soak import Failed, status, wait_until


class Sleeps(Kind):
    """Waits in every way that the kernel offers. For a wait in connect it opens a new socket each time."""

    program, varies = "sleeps.c", ("descriptors",)
    # According to signal(7), these return EINTR at a stop, whatever a tracer does.
    NEVER_RESTARTED = ["epoll_wait", "epoll_pwait2", "epoll_forever", "sigtimedwait", "sigwaitinfo",
                       "semtimedop", "msgrcv", "recv_timeout", "connect_timeout",
                       "connect_local_timeout", "io_uring_timeout", "io_uring_forever"]
    waited = interrupted = 0

    def play(self):
        self.ask("beat")

    def last_word(self):
        """Checks that no wait has ended before its time. One case can't be avoided: calls that the kernel never
        restarts return EINTR if prof is killed between their stop and its first look at them."""
        self.ask("stop")
        for line in self.target.said:
            words = line.split()
            figures = dict(w.split("=") for w in words[1:] if "=" in w)
            if "waits" not in figures:
                continue
            self.waited += int(figures["waits"])
            failed, errno = int(figures["failed"]), int(figures["errno"])
            interrupted = failed if words[0] in self.NEVER_RESTARTED and errno in (0, 4) else 0
            self.interrupted += interrupted
            if failed > interrupted or int(figures["early"]) > interrupted:
                raise Failed(f"sleeps says {line}")


class Stress(Kind):
    """Allocates on 8 threads, with a checksum in every block."""

    program = "stress.c"

    def play(self):
        before = self.ask("operations")
        wait_until("the target works", lambda: self.ask("operations") != before)

    def last_word(self):
        self.ask("stop", "done OK")


class Inside(Kind):
    """Is nearly always inside of what can't be interrupted safely: the allocator, stdio, a signal handler or fork."""

    program, varies = "inside.c", ("descriptors",)

    def arguments_of(self):
        return [self.name.split()[-1]]

    def ready(self):
        super().ready()
        self.play()

    def play(self):
        before = self.ask("rounds")
        wait_until("the target works", lambda: self.ask("rounds") != before)

    def last_word(self):
        self.ask("stop", "done OK")


class InsideAll(Kind):
    """Has a thread in each of these, and one in the dynamic linker, with short pauses: while a thread is in that, prof
    can't have the linker load anything. Its libraries come and go, and with them files and mappings."""

    program, varies = "busy.c", ("descriptors",)

    def ready(self):
        super().ready()
        for line in ("go", "progress", "park"):
            self.ask(line)
        self.linked = self.ask("linked")
        self.ask("go")

    def play(self):
        self.ask("progress")

    def settle(self, seconds=5):
        self.ask("progress")
        self.ask("park")
        super().settle(seconds)
        now = self.ask("linked")
        if now != self.linked:
            raise Failed(f"{self.name}: the linker's list was {self.linked}, is {now}")
        self.ask("go")

    def last_word(self):
        self.ask("progress")


class Churn(Kind):
    """Creates and ends threads."""

    program, varies = "churn.c", ("threads",)

    def last_word(self):
        self.ask("stop", "done OK")


class Toggle(Kind):
    """Allocates blocks with a checksum in each byte."""

    def afterwards(self):
        self.ask("alloc 50")
        self.ask("free 50")

    recorded = afterwards


class Descriptors(Kind):
    """Uses descriptors in the way that the name says, and has a file of its own that nobody may change."""

    program, varies = "descriptors.c", ("descriptors",)
    CONTENT = "before"
    # Number of times that a descriptor's number was found taken because prof was killed while it was open.
    taken = 0

    def arguments_of(self):
        self.file = os.path.join(self.soak.scratch, f"{self.name.replace(' ', '-')}.own")
        with open(self.file, "w") as f:
            f.write(self.CONTENT)
        return [self.name.split()[-1], self.file]

    def files_changed(self):
        with open(self.file) as f:
            return [] if f.read() == self.CONTENT else [f"{self.file} is another"]

    def afterwards(self):
        words = self.ask("count").split()
        if words[1] != "0":
            raise Failed(f"{self.name}: {' '.join(words)}")

    recorded = afterwards

    def play(self):
        """Runs after kills. If prof is killed in the stop in which the target has a descriptor of the ring, that
        stays open until prof's cleaner closes it, some 10 ms. A program that counts on the lowest number sees this
        for as long."""
        if self.name != "counts":
            return self.afterwards()
        self.taken = int(self.ask("count").split()[1])

    def last_word(self):
        self.play()
        super().last_word()


class SharedDescriptors(Descriptors):
    """Another process has the same descriptors and is not stopped, so that it may get in the way of an attach."""

    CONTENT = "before" * 4000

    def refused(self, said):
        return "descriptor" in said or super().refused(said)


class Sharing(Kind):
    """Another process has the same memory, and both allocate."""

    program = "sharing.c"

    def ready(self):
        self.other = int(self.target.expect("ready").split()[1])
        # When the target answers, it has made its own thread.
        self.ask("alive")

    def arguments_of(self):
        return self.name.split()[1:]

    def tasks(self):
        return [str(self.pid), str(self.other)]

    def afterwards(self):
        self.ask("alive")

    recorded = afterwards

    def last_word(self):
        self.ask("stop", "done stopped")


class Waits(Kind):
    """Calls epoll_wait over and over."""

    program, varies = "waits.c", ("threads",)

    def ready(self):
        self.target.expect("ready")
        self.loop()

    def loop(self):
        self.target.ask("loop 40", "going")

    def afterwards(self):
        # No call may have ended early or with an error. Both count as changed.
        answer = self.ask("count")
        if not answer.endswith("changed=0"):
            raise Failed(f"{self.name}: {answer}")
        self.loop()


class Locked(Kind):
    """Locks all memory that it maps, with a low limit of locked memory."""

    program, arguments = "neighbours.c", ["locks"]

    def state(self):
        return {**super().state(), "VmLck": status(self.pid).get("VmLck")}

    def ready(self):
        self.target.expect("ready")
        self.ask("blocks")

    def afterwards(self):
        self.ask("blocks")

    recorded = afterwards


class Maps(Kind):
    """Maps and unmaps memory where prof would like to."""

    program, arguments = "neighbours.c", ["maps"]

    def afterwards(self):
        before = self.ask("count")
        wait_until("it maps", lambda: self.ask("count") != before)

    recorded = afterwards


class Overflow(Kind):
    """Writes on behind a large block until it hits a guard page, where it faults as without prof."""

    program, fresh = "neighbours.c", True

    def recorded(self):
        self.ask("overflow", "done fault")
        if self.target.p.wait(timeout=30) != 77:
            raise Failed(f"overflow: it has ended with {self.target.p.returncode}")
        self.is_over = True

    def play(self):
        self.ask("count")


class Leader(Kind):
    """The first thread has ended."""

    program = "leader.c"

    def ready(self):
        self.target.expect("ready")
        self.ask("leave", "done left")
        self.task = max(map(int, os.listdir(f"/proc/{self.pid}/task")))

    def tasks(self):
        return [f"{self.pid}/task/{self.task}"]

    def afterwards(self):
        self.ask("alloc 50")
        self.ask("free")

    recorded = afterwards


class Grows(Kind):
    """The first thread's stack grows all the time. Each process lasts for a few cycles."""

    program, fresh, cycles = "grows.c", True, 3

    def last_word(self):
        self.target.ask("up", "deep")


class Vforks(Kind):
    """At each attach, a thread that no tracer can stop is in vfork."""

    program, arguments, varies = "stuck.c", ["beside"], ("threads",)

    def ready(self):
        self.target.expect("ready")
        # libc installs a signal handler of its own with the first thread.
        self.target.ask("go 1", "going")
        self.target.expect("done")

    def before_attach(self):
        self.target.ask("go 60", "going")
        return []

    def recorded(self):
        self.target.expect("done")
        self.ask("alloc")


class Forks(Kind):
    """Children that are forked while the process is recorded keep patches that are turned off."""

    program = "prefork.c"

    def recorded(self):
        self.child = int(self.ask("fork").split()[1])

    def detached(self, said):
        if str(self.child) not in said:
            raise Failed(f"{self.name}: child {self.child} is not named: {said}")

    def afterwards(self):
        if status(self.child).get("State", "Z")[0] not in "SR":
            raise Failed(f"{self.name}: child {self.child} has ended")
        os.kill(self.child, signal.SIGKILL)

    def play(self):
        pass

    def last_word(self):
        pass
