#!/usr/bin/env python3
"""usage: .ci/with-postgres tests/upgrade/run.py OLD NEW

Replaces one release by the next under load, and back: OLD and NEW are two programs. Users chat, pay and sign in,
an approver approves, at whichever replica answers. Afterwards every message that was acknowledged must be there with
its answer, every payment that was approved must have been made once, and nobody may have waited two seconds for a lock.
Needs psql, and a Postgres whose DATABASE_URL has the socket's folder as its parameter `host`. TEMPLATE names a database
of the old release there whose rows are there from the beginning: what a migration does to large tables shows only so.
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import load  # noqa: E402

OLD, NEW = sys.argv[1:3]
CHATS, PHASE = 8, int(os.environ.get("SECONDS_OF_A_PHASE", "5"))
folder = pathlib.Path(tempfile.mkdtemp(prefix="chatelaine-upgrade."))
socket = re.search(r"host=([^&]+)", os.environ["DATABASE_URL"]).group(1)
url = f"postgres://chatelaine@localhost/upgrade?host={socket}"


def psql(sql, database="upgrade"):
    command = ["psql", "-X", "-At", "-v", "ON_ERROR_STOP=1", "-h", socket, "-U", "postgres", "-d", database, "-c", sql]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


longest = [0.0]


def watch_locks():
    sql = ("select coalesce(max(extract(epoch from clock_timestamp() - waitstart)), 0) from pg_locks l "
           "where not granted and locktype in ('relation', 'tuple', 'transactionid')")
    longest[0] = max(longest[0], float(psql(sql)))
    time.sleep(0.1)


def main():
    load.write_pack(folder / "packs/bank")
    psql("do $$ begin create role chatelaine login createrole; exception when duplicate_object then null; end $$", "postgres")
    # Whoever started this Postgres may have made them.
    for role in ("chatelaine_tenant", "chatelaine_system", "chatelaine_retention", "chatelaine_search"):
        if psql(f"select 1 from pg_roles where rolname = '{role}'", "postgres"):
            psql(f"grant {role} to chatelaine", "postgres")
    template = os.environ.get("TEMPLATE", "template1")
    psql(f"create database upgrade owner chatelaine template {template}", "postgres")
    urls = []
    before, after = (load.Service(program, folder, url, urls) for program in (OLD, NEW))
    old = load.Replica(before, "old")
    people = before.begin("acme", CHATS)
    people.start(watch_locks)
    time.sleep(PHASE)
    print(f"old alone: {len(people.said)} messages, {len(people.approved)} decisions", flush=True)
    versions = lambda: psql("select string_agg(version::text, ',' order by version) from _sqlx_migrations")
    migrations = versions()
    new = load.Replica(after, "new")
    print(f"migrations: {migrations} -> {versions()}", flush=True)
    time.sleep(PHASE)
    old.stop()
    time.sleep(PHASE)
    old = load.Replica(before, "old")
    time.sleep(PHASE)
    new.stop()
    time.sleep(PHASE)
    print(f"old alone on the new schema: {len(people.said)} messages, {len(people.approved)} decisions", flush=True)
    new = load.Replica(after, "new")
    old.stop()
    time.sleep(PHASE)
    people.stop()
    result = people.judge(psql)
    if longest[0] > 2.5:
        people.faults.append(f"somebody waited {longest[0]:.1f} s for a lock")
    print(f"{result}; slowest answer {people.slowest:.2f} s, longest wait for a lock {longest[0]:.2f} s, "
          f"{people.statuses.get(503, 0)} answers 503")
    new.stop()
    for fault in people.faults:
        print("FAULT:", fault)
    return 1 if people.faults or not people.said or not people.approved or not people.signed_in else 0


if __name__ == "__main__":
    sys.exit(main())
