#!/usr/bin/env python3
"""Plans every query of .sqlx/ on a distributed database, which psql's environment names (as its superuser), and prints
how many Citus answers from how many shards. Executes each one, too, with made-up values. Fails when one is not planned, or
would copy rows under row-level security, which Postgres refuses, or fails for another reason than its values, or may read
what it changes itself.
Usage: plan.py FOLDER-OF-QUERIES"""

import collections, glob, json, re, subprocess, sys

ID = "'0190a000-0000-7000-8000-000000000001'::uuid"
VALUES = {"Uuid": ID, "Text": "'1'", "Varchar": "'1'", "Int2": "1", "Int4": "1", "Int8": "1", "Float8": "1", "Bool": "true",
          "Bytea": "'\\x00'::bytea", "Json": "'{}'::json", "Jsonb": "'{}'::jsonb", "Numeric": "1",
          "Timestamptz": "'2026-01-01 00:00:00Z'::timestamptz", "Date": "'2026-01-01'::date"}


def value(kind):
    kind = kind if isinstance(kind, str) else next(iter(kind))
    if kind.endswith("Array"):
        return f"array[{VALUES[kind.removesuffix('Array')]}]"
    return VALUES[kind]


# What Postgres says of our values: a broken constraint, a sealed text that is too short.
OF_VALUES = r"ERROR:  (23...|2202E): "


def plan(query, kinds):
    """The lines of the plan, and the error of planning or executing the query."""
    arguments = f"({', '.join(map(value, kinds))})" if kinds else ""
    sql = (f"set plan_cache_mode = force_custom_plan; set client_min_messages = error;\n"
           f"begin; prepare p as {query};\nexplain (costs off) execute p{arguments}; rollback;\n"
           f"\\o /dev/null\nbegin; execute p{arguments}; rollback;")
    command = ["psql", "--no-psqlrc", "-qAt", "-v", "ON_ERROR_STOP=1", "-v", "VERBOSITY=verbose"]
    done = subprocess.run(command, input=sql, capture_output=True, text=True)
    is_of_values = done.stdout and re.search(OF_VALUES, done.stderr)
    return done.stdout, "" if is_of_values else done.stderr


def copied(query):
    """Whether an `insert … select` of the query has neither `returning` nor `on conflict`: where Citus copies its rows to
    the shard, row-level security refuses the copy."""
    for begin in re.finditer(r"insert into [^(]*\([^)]*\) select ", query):
        depth, end = 0, begin.end()
        while end < len(query) and depth >= 0:
            depth += {"(": 1, ")": -1}.get(query[end], 0)
            end += 1
        if not re.search(r" (returning|on conflict) ", query[begin.end():end]):
            return True
    return False


# Changes of a part of a query after which another part reads the same: of a column that it does not read, and of a run
# that was not among those it looks for before either.
UNSEEN = {"formed", "ended"}


def misread(query):
    """The parts of a query that read what another part changes, and may read it after the change: Citus executes the parts
    of a query of several steps one after the other, each after those that it names. Postgres shows all of them the rows
    as they were before the query."""
    parts, rest = {}, re.sub(r"^with (recursive )?", "", query)
    while begin := re.match(r"[, ]*(\w+) (?:\([\w, ]*\) )?as (?:materialized )?\(", rest):
        depth, end = 1, begin.end()
        while depth:
            depth += {"(": 1, ")": -1}.get(rest[end], 0)
            end += 1
        parts[begin[1]], rest = rest[begin.end():end], rest[end:]
    parts["the end"] = rest
    names = {name: set(re.findall(r"\w+", body)) & parts.keys() for name, body in parts.items()}
    for _ in parts:
        names = {name: named.union(*(names[other] for other in named)) for name, named in names.items()}
    reads = {name: set(re.findall(r"(?<!delete )(?:from|join) (\w+)", body)) for name, body in parts.items()}
    changes = {name: set(re.findall(r"(?:insert into|update|delete from) (\w+)", body)) for name, body in parts.items()}
    return sorted(f"{reader} reads {table}, and {writer} changes it"
                  for writer in parts.keys() - UNSEEN for reader in parts.keys() - {writer} - names[writer]
                  for table in reads[reader] & changes[writer])


def judge(query, kinds):
    """Where the query is answered, and what is wrong with that."""
    lines, error = plan(query, kinds)
    if error:
        what = [line.split("ERROR:", 1)[1].strip() for line in error.splitlines() if "ERROR:" in line]
        detail = [line.split("DETAIL:", 1)[1].strip() for line in error.splitlines() if "DETAIL:" in line]
        return "not planned", "; ".join(what + detail) or error
    copies = "Citus INSERT ... SELECT" in lines and "pull to coordinator" in lines
    if copies and copied(query):
        return "not planned", "copies rows under row-level security; add `returning` or `on conflict`"
    if copies or "Distributed Subplan" in lines:
        late = misread(query)
        if late:
            return "not planned", "; ".join(late)
    counts = [int(n) for n in re.findall(r"Task Count: (\d+)", lines)]
    if "Citus" not in lines:
        return "the coordinator alone", None
    if copies or "Distributed Subplan" in lines:
        return f"several steps, at most {max(counts, default=1)} shards each", None
    return f"{max(counts, default=1)} shards", None


where, faults = collections.defaultdict(list), []
for path in sorted(glob.glob(sys.argv[1] + "/query-*.json")):
    described = json.load(open(path))
    query = re.sub(r"--[^\n]*", "", described["query"])
    query = re.sub(r"\s+", " ", query).strip()
    place, fault = judge(query, described["describe"]["parameters"].get("Left", []))
    where[place].append(query)
    if fault:
        faults.append(f"{fault}\n    {query[:300]}")
for place in sorted(where, key=lambda place: -len(where[place])):
    print(f"{len(where[place]):4} {place}")
    if "-v" in sys.argv and len(where[place]) < 60:
        for query in where[place]:
            print("      ", query[:200])
for fault in faults:
    print(fault)
sys.exit(len(faults) > 0)
