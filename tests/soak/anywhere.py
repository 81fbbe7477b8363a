"""Attaches while threads are inside malloc, dlopen, printf, a signal handler or fork. None of them may hang."""
import os, time
from soak import Failed, Target, differences, footprint, wait_until

TARGETS = ["malloc", "dlopen", "printf", "signal", "fork"]
SHORT, LONG = 100, 10000


def one(soak, name, count, end):
    target = Target([soak.compile("inside.c"), name])
    file = os.path.join(soak.scratch, f"{name}.prof")
    # By then each target has once loaded the libraries that it loads.
    wait_until("it works", lambda: int(target.ask("rounds").split()[1]) > 20)
    before, done, longest = footprint(target.pid, with_text=False), 0, 0
    refused = 0
    # Targets that load libraries have their files open at times.
    before.pop("descriptors")
    try:
        while done < count and time.monotonic() < end and not soak.is_over():
            if os.path.exists(file):
                os.unlink(file)
            began = time.monotonic()
            code, said = soak.run("attach", target.pid, "-o", file)
            longest = max(longest, time.monotonic() - began)
            if code == 1 and "did not stop within" in said:
                # This may happen on a machine with much more to do. Nothing may have changed.
                refused += 1
                now = footprint(target.pid, with_text=False)
                if now["foreign"]:
                    raise Failed(f"refused, but left: {now['foreign']}")
                continue
            if code != 0:
                raise Failed(f"attach: {code}: {said}")
            rounds = target.ask("rounds")
            code, said = soak.run("detach", target.pid)
            while code != 0 and ("did not stop within" in said or "again later" in said):
                code, said = soak.run("detach", target.pid)
                refused += 1
            if code != 0:
                raise Failed(f"detach: {code}: {said}")
            done += 1
            if done % 200 == 0:
                print(f"anywhere: {name}: {done} attaches", flush=True)
            if done % 20 == 0:
                wait_until("it goes on", lambda: target.ask("rounds") != rounds)
                now = footprint(target.pid, with_text=False)
                now.pop("descriptors")
                if differences(before, now):
                    raise Failed(differences(before, now))
        answer = target.ask("stop")
        if not answer.startswith("done OK"):
            raise Failed(answer)
    except Failed as e:
        soak.fail(f"{name}, attach {done}: {e}")
    finally:
        target.end()
    return done, longest, refused


def run(soak, only=None):
    names = [only] if only else TARGETS
    said, sum_, longest, refused = [], 0, 0, 0
    for i, name in enumerate(names):
        end = soak.began + soak.seconds * (i + 1) / len(names)
        done, slowest, no = one(soak, name, soak.count // len(names), end)
        sum_, longest = sum_ + done, max(longest, slowest)
        refused += no
        said.append(f"{done} in {name}")
    return soak.report(f"{sum_} attaches: {', '.join(said)}; {refused} refused after --timeout; the longest took {longest:.1f} s")
