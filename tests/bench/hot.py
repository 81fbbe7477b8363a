"""Shows where the hook spends its time in a real program: perf's samples by function and by line.

The hook is in memory without a name, so perf can't tell its functions. Its code is compared with a build of the
hook that has line tables, in which the addresses are looked up.
"""
import collections, os, re, shutil, subprocess, time

import harness, programs

FREQUENCY = "7000"


def section(only=()):
    missing = [t for t in ("perf", "addr2line", "objcopy") if not shutil.which(t)]
    if missing:
        print(f"\nwhere the hook's time goes: not measured: no {' '.join(missing)}")
        return
    library = library_with_lines()
    for p in [*programs.all_programs(harness.SCRATCH), random_paths()]:
        if not only or p.name.split()[0] in only:
            if isinstance(p, programs.Missing):
                print(f"\n{p.name}: not measured: {p.reason}")
            else:
                show(p.name, *launched(p, library), library)
    if not only or "redis" in only:
        show("redis -P16", *redis(library), library)


def random_paths():
    commands = os.path.join(harness.SCRATCH, "commands")
    with open(commands, "w") as f:
        f.write("random 0 1 3000000\nquit\n")
    return programs.Program("random", [harness.compiled("pairs")], stdin=commands)


def library_with_lines():
    """Builds the hook as it is embedded in prof, but with line tables."""
    out = os.path.join(harness.SCRATCH, "hook")
    env = {k: v for k, v in os.environ.items() if not k.startswith(("CARGO_", "RUST"))}
    env.update(CARGO_PROFILE_RELEASE_DEBUG="1",
               **{k: os.environ[k] for k in ("CARGO_HOME", "RUSTUP_HOME") if k in os.environ})
    here = os.path.join(harness.ROOT, "inject/hook/so")
    host = re.search(r"host: (\S+)", subprocess.run(["rustc", "-vV"], capture_output=True,
                                                    text=True, check=True).stdout).group(1)
    subprocess.run(["cargo", "build", "--release", "--locked", "--quiet", "--target", host,
                    "--target-dir", out], cwd=here, env=env, check=True)
    return os.path.join(out, host, "release/libprof_hook_so.so")


def text_of(library):
    """Returns the address and the bytes of the library's code."""
    out = subprocess.run(["objdump", "-h", "-j", ".text", library], capture_output=True, text=True,
                         check=True).stdout
    vma = int(re.search(r"\.text\s+\w+\s+(\w+)", out).group(1), 16)
    code = library + ".text"
    subprocess.run(["objcopy", "-O", "binary", "-j", ".text", library, code], check=True)
    with open(code, "rb") as f:
        return vma, f.read()


def hook_in(pid, library):
    """Returns the hook's load bias, the start and the end of its code in a process; None if it isn't there (yet)."""
    vma, code = text_of(library)
    try:
        with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb") as memory:
            for line in maps:
                fields = line.split()
                start, end = (int(x, 16) for x in fields[0].split("-"))
                if "x" not in fields[1] or len(fields) > 5 or end - start < len(code):
                    continue
                memory.seek(start)
                if memory.read(len(code)) == code:
                    return start - vma, start, end
    except OSError:
        pass
    return None


def perf(pid, data):
    return subprocess.Popen(["perf", "record", "-q", "-e", "cpu-clock:u", "-F", FREQUENCY, "-o",
                             data, "-p", str(pid)], stderr=subprocess.DEVNULL,
                            stdout=subprocess.DEVNULL)


def launched(p, library):
    """Returns the addresses sampled in a run under `prof run`, and the hook's place."""
    path, data = (os.path.join(harness.SCRATCH, n) for n in ("hot.prof", "perf.data"))
    run = subprocess.Popen([harness.PROF, "run", "-o", path, "--", *p.command], env=p.env,
                           stdin=p.input(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                           cwd=harness.SCRATCH)
    where = sampler = None
    while run.poll() is None and not where:
        for child in harness.children(run.pid):
            if harness.process_name(child) == p.process_name():
                where = hook_in(child, library)
                if where:
                    sampler = perf(child, data)
                    break
        time.sleep(0.001)
    run.wait()
    if not where:
        raise SystemExit(f"{p.name}: its hook is not the one built from these sources")
    sampler.wait()
    os.remove(path)
    return samples(data), where


def redis(library):
    import real
    server = real.Redis()
    try:
        return sampled(server, real.Redis.LOADS["redis -P16"], library)
    finally:
        server.close()


def sampled(server, load, library):
    data = os.path.join(harness.SCRATCH, "perf.data")
    path, _stop = harness.attach(server.p.pid)
    where = hook_in(server.p.pid, library)
    if not where:
        raise SystemExit("redis: its hook is not the one built from these sources")
    sampler = perf(server.p.pid, data)
    time.sleep(0.5)
    server.load(load)
    sampler.terminate()
    sampler.wait()
    server.close()
    os.remove(path)
    return samples(data), where


def samples(data):
    """Returns how often each address was sampled, with the symbol and the module's name."""
    out = subprocess.run(["perf", "script", "-i", data, "-F", "ip,sym,dso"], capture_output=True,
                         text=True).stdout
    found = collections.Counter()
    for line in out.splitlines():
        m = re.match(r"\s*([0-9a-f]+) (.*?) \((.*)\)$", line)
        if m:
            found[(int(m.group(1), 16), m.group(2), os.path.basename(m.group(3)))] += 1
    os.remove(data)
    return found


def lines_of(library, addresses):
    """Returns the chain of (function, file:line) of each address, innermost inlined function first."""
    out = subprocess.run(["addr2line", "-a", "-i", "-f", "-C", "-e", library],
                         input="\n".join(map(hex, addresses)), capture_output=True, text=True,
                         check=True).stdout.splitlines()
    chains, i = {}, 0
    while i < len(out):
        address, i = int(out[i], 16), i + 1
        chain = chains.setdefault(address, [])
        while i < len(out) and not out[i].startswith("0x"):
            name = re.sub(r"^.*\bprof_|<.*?>|::h[0-9a-f]{16}$", "", out[i])
            place = re.sub(r" \(discriminator.*", "", out[i + 1])
            chain.append((name, "/".join(place.split("/")[-2:])))
            i += 2
    return chains


def show(name, found, where, library):
    bias, start, end = where
    inside = {a: n for (a, _, _), n in found.items() if start <= a < end}
    every, hook = sum(found.values()), sum(inside.values())
    stubs = sum(n for (a, _, dso), n in found.items()
                if not start <= a < end and ("anon" in dso or "unknown" in dso))
    print(f"\n{name}: {every} samples in user mode; hook {hook / every:.1%}, stubs and other code "
          f"without a file {stubs / every:.1%}")
    if not hook:
        return
    outer, inner, lines = (collections.Counter() for _ in range(3))
    chains = lines_of(library, [a - bias for a in inside])
    for address, n in inside.items():
        chain = chains.get(address - bias) or [("??", "??")]
        outer[chain[-1][0]] += n
        inner[f"{chain[0][0]}  in {chain[-1][0]}"] += n
        ours = next((c for c in chain if "hook" in c[0] or "src/" in c[1] and "core" not in c[1]),
                    chain[0])
        lines[f"{ours[1]}  {ours[0]}"] += n
    for title, counter, most in (("by function", outer, 16), ("by inlined function", inner, 30),
                                 ("by line", lines, 45)):
        print(f"  {title} (share of the hook, of all)")
        for what, n in counter.most_common(most):
            print(f"    {n / hook:6.1%} {n / every:6.1%}  {what}")
    others = collections.Counter()
    for (a, symbol, dso), n in found.items():
        if not start <= a < end:
            others[f"{dso} {symbol}" if dso == "libc.so.6" else dso] += n
    print("  outside of the hook (of all)")
    for what, n in others.most_common(12):
        print(f"    {n / every:14.1%}  {what}")
