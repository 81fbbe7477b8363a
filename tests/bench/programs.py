"""Real programs with much work for the allocator: the commands, and their generated inputs.

Each is a command that ends by itself and whose standard output shows whether it worked. Inputs are generated from
fixed seeds, so that all machines with the same versions do the same.
"""
import os, random, shutil, subprocess

WORDS = ("alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi rho "
         "sigma tau upsilon phi chi psi omega").split()


class Program:
    """A command, with its standard input."""

    def __init__(self, name, command, env=None, stdin=None):
        self.name, self.command, self.stdin = name, command, stdin
        self.env = dict(os.environ, **(env or {}))

    def input(self):
        return open(self.stdin) if self.stdin else subprocess.DEVNULL

    def process_name(self):
        """Returns the kernel's name of the process that runs the command."""
        return os.path.basename(self.command[0])[:15]


class Missing:
    """A program that can't be run here, with the reason."""

    def __init__(self, name, reason):
        self.name, self.reason = name, reason


def words(r, n):
    return " ".join(r.choice(WORDS) for _ in range(n))


def xmllint(folder, scale):
    if not shutil.which("xmllint"):
        return Missing("xmllint", "no xmllint (libxml2-utils)")
    r, path = random.Random(1), os.path.join(folder, "catalog.xml")
    with open(path, "w") as f:
        f.write('<?xml version="1.0"?>\n<catalog>\n')
        for i in range(int(100_000 * scale)):
            tags = "".join(f"<tag>{r.choice(WORDS)}</tag>" for _ in range(r.randrange(5)))
            f.write(f'<item id="{i}" kind="{r.choice(WORDS)}"><name>{words(r, 2)}</name>'
                    f'<price currency="EUR">{r.randrange(10000) / 100}</price><tags>{tags}</tags>'
                    f"<description>{words(r, r.randrange(60))}</description></item>\n")
        f.write("</catalog>\n")
    return Program("xmllint", ["xmllint", "--noout", path])


PYTHON = "/usr/bin/python3"

JSON = """
import json, random, sys
r = random.Random(1)
n = int(sys.argv[1])
data = [{'id': i, 'name': 'x' * (i % 80), 'score': r.random(), 'tags': ['t%d' % (i % 7)] * (i % 5),
         'nested': {'list': list(range(i % 12)), 'ok': True, 'none': None}} for i in range(n)]
for _ in range(4):
    text = json.dumps(data, indent=None)
    back = json.loads(text)
print(len(text), back == data)
"""

AST = """
import ast, os, sys
folder, n, nodes = os.path.dirname(os.__file__), int(sys.argv[1]), 0
for name in sorted(f for f in os.listdir(folder) if f.endswith('.py'))[:n]:
    with open(os.path.join(folder, name), encoding='utf-8') as f:
        nodes += len(ast.parse(f.read()).body)
print(nodes)
"""


def python(name, source, argument):
    if not os.path.exists(PYTHON):
        return Missing(name, f"no {PYTHON}")
    return Program(name, [PYTHON, "-S", "-c", source, str(argument)])


def pyjson(_folder, scale):
    return python("pyjson", JSON, int(10_000 * scale))


def pyast(_folder, scale):
    return python("pyast", AST, int(120 * scale))


SQL = """
create table t(a integer primary key, b text, c real);
create table u(a integer primary key, t integer, d text);
with recursive n(i) as (select 1 union all select i + 1 from n where i < {n})
  insert into t select i, hex(i * 7919) || printf('%05d', i % 997), i / 3.0 from n;
with recursive n(i) as (select 1 union all select i + 1 from n where i < {n})
  insert into u select i, (i * 31) % {n}, 'u' || i from n;
create index tb on t(b);
select count(*), sum(length(t.b)), max(u.d) from t join u on u.t = t.a where t.c > 100;
select substr(b, 1, 2) g, count(*), max(upper(substr(b, 3, 4))) from t group by g limit 3;
select sum(x.c * y.c) from t x join t y on y.a = (x.a * 17) % {n} where x.b > y.b;
select count(*) from t where b like '%99%' or c between 100 and 2000;
update t set b = lower(b) || a where a % 3 = 0;
select count(distinct b), min(b), max(b) from t;
delete from u where t in (select a from t where b like '%1%');
select count(*) from u;
"""


def sqlite3(folder, scale):
    if not shutil.which("sqlite3"):
        return Missing("sqlite3", "no sqlite3")
    path = os.path.join(folder, "script.sql")
    with open(path, "w") as f:
        f.write(SQL.replace("{n}", str(int(100_000 * scale))))
    return Program("sqlite3", ["sqlite3", "-batch", "-init", "/dev/null", ":memory:"], stdin=path)


def cc1(folder, scale):
    """Returns the compiler proper, on a generated and preprocessed file."""
    name = "cc1 -O0"
    if not shutil.which("gcc"):
        return Missing(name, "no gcc")
    found = subprocess.run(["gcc", "-print-prog-name=cc1"], capture_output=True, text=True)
    compiler = found.stdout.strip()
    if not os.path.isabs(compiler):
        return Missing(name, "gcc does not say where its cc1 is")
    r, source = random.Random(2), os.path.join(folder, "large.c")
    with open(source, "w") as f:
        f.write("#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n#include <math.h>\n")
        for i in range(int(800 * scale)):
            f.write(function(r, i))
    preprocessed = source.replace(".c", ".i")
    subprocess.run(["gcc", "-E", "-o", preprocessed, source], check=True)
    return Program(name, [compiler, "-quiet", "-O0", "-fpreprocessed", preprocessed, "-o",
                          os.path.join(folder, "large.s")])


def function(r, i):
    cases = "\n".join(f"    case {k}: {statement(r)} break;" for k in range(10))
    rest = "\n".join("    " + statement(r) for _ in range(12))
    return f"""
struct s{i} {{ int a, b; struct s{i} *next; char name[{r.randrange(8, 64)}]; double w[8]; }};
static int f{i}(struct s{i} *p, int n, const char *t) {{
    int sum = {i};
    for (int i = 0; i < n; i++) switch (t[i] % 10) {{
{cases}
    }}
{rest}
    printf("%d %s\\n", sum, p->name);
    return sum + (p->next ? f{i}(p->next, n - 1, t + 1) : n);
}}
int g{i}(void) {{
    struct s{i} *p = calloc(1, sizeof *p);
    int x = f{i}(p, {r.randrange(30)}, "text{i}");
    free(p);
    return x;
}}
"""


def statement(r):
    a, b = r.randrange(1, 1000), r.randrange(8)
    return r.choice((
        f"sum += p->a * {a} + (p->b >> {b});",
        f"p->b = (sum ^ {a}) - p->w[{b}] / {a}.0;",
        f"if (p->next && p->a > {a}) p = p->next; else sum -= t[{b}];",
        f"memcpy(p->name, t, {b + 1}); sum += (int)strlen(p->name) << {b};",
        f"p->w[{b}] += sqrt(p->w[{7 - b}] * {a}) + sum;",
        f"while (sum > {a} * n) {{ sum -= p->a + {b + 1}; p->b++; }}",
    ))


ALL = (xmllint, pyjson, pyast, sqlite3, cc1)


def all_programs(folder, scale=1.0):
    """Returns every program, or the reason why it can't be run. Inputs have `scale` times the usual size."""
    os.environ["PYTHONMALLOC"] = "malloc"
    try:
        return [make(folder, scale) for make in ALL]
    finally:
        del os.environ["PYTHONMALLOC"]
