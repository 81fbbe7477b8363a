"""The kinds of targets, by name: programs that do what other people's programs do."""
import os, subprocess
import busy, met, shut
from uprobe import KIND as UPROBES

KINDS = {
    "sleeps": busy.Sleeps, "stress": busy.Stress, "churn": busy.Churn,
    "closes": busy.Descriptors, "counts": busy.Descriptors, "forks": busy.Descriptors,
    "shares": busy.SharedDescriptors, "sharing": busy.Sharing, "sharing files": busy.Sharing,
    "uprobe first": met.Probed, "uprobe later": met.Probed, "uprobe first return": met.Probed,
    "uprobe later return": met.Probed, "named": met.Named,
    "chained": met.Chained, "chained asked": met.Chained, "signal sigwait": met.Taken,
    "signal signalfd": met.Taken, "own handler": met.OwnHandler,
    "waits": busy.Waits, "locked": busy.Locked, "maps": busy.Maps, "overflow": busy.Overflow,
    "leader": busy.Leader, "traced": met.Traced, "limited": met.Limited, "grows": busy.Grows,
    "vforks": busy.Vforks, "children": busy.Forks,
    "filters allow": shut.Filtered, "filters default": shut.Filtered,
    "filtered work kill": shut.FilteredWork, "filtered work errno": shut.FilteredWork,
    "filtered late": shut.FilteredLate, "collected": shut.Collected, "fibers": shut.Fibers,
    "inside malloc": busy.Inside, "inside printf": busy.Inside, "inside signal": busy.Inside,
    "inside fork": busy.Inside, "inside all": busy.InsideAll, "pooled": shut.Pooled, "loads": shut.Loads, "loads filtered": shut.Loads,
}
# Kinds that are also useful when prof is killed midway. The others need prof to complete.
KILLED = ["closes", "counts", "forks", "sharing", "sharing files", "uprobe first", "uprobe later return", "named",
          "signal sigwait", "signal signalfd", "waits", "locked", "maps", "leader", "grows", "vforks", "collected",
          "pooled", "loads"]
INSIDE = [name for name in KINDS if name.startswith("inside ")]
FILTERED = ["filters allow", "filters default", "filtered work kill", "filtered work errno", "loads filtered"]
CYCLED = [name for name in KINDS if name not in ("sleeps", "stress", "churn")]


def chosen(only, default):
    """Returns the kinds that a comma-separated list names. The list may contain names of groups."""
    groups = {"awkward": KILLED, "inside": INSIDE, "filtered": FILTERED}
    names = [n for word in (only or "").split(",") if word for n in groups.get(word, [word])]
    unknown = [n for n in names if n not in KINDS]
    if unknown:
        raise SystemExit(f"no kinds: {unknown}; there are: {', '.join([*groups, *KINDS])}")
    return names or default


def start(soak, name):
    """Starts a new process of a kind. Returns None if the machine lacks something for it."""
    if name.startswith("uprobe") and not os.path.exists(UPROBES):
        print(f"{soak.name}: {name} is skipped: this kernel has no uprobes", flush=True)
        return None
    try:
        return KINDS[name](soak, name)
    except subprocess.CalledProcessError as e:
        print(f"{soak.name}: {name} is skipped: {e}", flush=True)
        return None
