"""Attaches to and detaches from programs that do what other people's programs do (kinds.py). After each cycle the
process lives, its code is as in its files, its descriptors, files and handlers are as before, and nothing of
prof's is mapped.
"""
import os, time
import kinds
from soak import Failed

SHORT, LONG = 100, 2000


def cycle(soak, kind, file):
    """Runs one attach and detach. Returns 1 if the attach was refused, as it may be."""
    kind.rounds += 1
    under = kind.before_attach()
    size = soak.random.choice(["1MiB", "1MiB", "64MiB", "512MiB"])
    code, said = soak.run("attach", kind.pid, "-o", file, "--ring-size", size, *kind.options, under=under)
    kind.after_attach()
    if code == 0:
        kind.recorded()
        if kind.is_over:
            return 0
        kind.detach()
    elif kind.refused(said):
        again, told = soak.run("detach", kind.pid)
        if again != 0 and "is not being recorded" not in told:
            raise Failed(f"{kind.name}: refused ({said}), and then: {told}")
    else:
        raise Failed(f"{kind.name}: attach: {code}: {said}")
    kind.afterwards()
    kind.settle()
    return int(code != 0)


def one(soak, name, end):
    """Runs all cycles on one kind of target. Returns their number, and how many were refused."""
    done = refused = 0
    kind = None
    try:
        while done < soak.count // soak.parts and time.monotonic() < end and not soak.is_over():
            if kind and kind.fresh and kind.rounds >= kind.cycles:
                if not kind.is_over:
                    kind.last_word()
                kind.end()
                kind = None
            kind = kind or kinds.start(soak, name)
            if not kind:
                break
            # Each cycle has a file of its own: if the target ended by itself, the collector of the last cycle may still
            # be writing, and it saves a recording that is deleted meanwhile.
            file = os.path.join(soak.scratch, f"awkward.{soak.files}.prof")
            soak.files += 1
            try:
                refused += cycle(soak, kind, file)
                done += 1
            except Failed as e:
                soak.fail(f"{name}, cycle {done}: {e}")
                kind.end()
                kind = None
            if os.path.exists(file):
                os.unlink(file)
        if kind and not kind.is_over:
            kind.last_word()
    except Failed as e:
        soak.fail(f"{name}: {e}")
    finally:
        if kind:
            kind.end()
    print(f"awkward: {name}: {done} cycles, {refused} refused", flush=True)
    return done, refused


def run(soak, only=None):
    names = kinds.chosen(only, kinds.CYCLED)
    soak.parts = len(names)
    soak.files = 0
    said, cycles, refused = [], 0, 0
    for i, name in enumerate(names):
        done, no = one(soak, name, soak.began + soak.seconds * (i + 1) / len(names))
        cycles, refused = cycles + done, refused + no
        said.append(f"{done} {name}" + (f" ({no} refused)" if no else ""))
    return soak.report(f"{cycles} cycles, {refused} of them refused: {', '.join(said)}")
