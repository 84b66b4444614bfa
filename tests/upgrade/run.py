#!/usr/bin/env python3
"""usage: .ci/with-postgres tests/upgrade/run.py OLD NEW

Replaces one release by the next under load, and back: OLD and NEW are two programs. Users chat, pay and sign in,
an approver approves, at whichever replica answers. Afterwards every message that was acknowledged must be there with
its answer, every payment that was approved must have been made once, and nobody may have waited two seconds for a lock.
Needs psql, and a Postgres whose DATABASE_URL has the socket's folder as its parameter `host`.
"""
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import load  # noqa: E402

OLD, NEW = map(os.path.abspath, sys.argv[1:3])
CHATS, PHASE = 8, int(os.environ.get("SECONDS_OF_A_PHASE", "5"))
folder = pathlib.Path(tempfile.mkdtemp(prefix="chatelaine-upgrade."))
socket = re.search(r"host=([^&]+)", os.environ["DATABASE_URL"]).group(1)
url = f"postgres://chatelaine@localhost/upgrade?host={socket}"


def psql(sql, database="upgrade"):
    command = ["psql", "-X", "-At", "-v", "ON_ERROR_STOP=1", "-h", socket, "-U", "postgres", "-d", database, "-c", sql]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def environment(port=0):
    return {
        "PATH": os.environ["PATH"], "HOME": str(folder), "DATABASE_URL": url, "CHATELAINE_DATA": str(folder / "data"),
        "CHATELAINE_PACKS": str(folder / "packs"), "CHATELAINE_LISTEN": f"127.0.0.1:{port}",
        "CHATELAINE_EGRESS_ALLOW": "127.0.0.1", "CHATELAINE_MODEL_TITLES": "off", "CHATELAINE_DRAIN_SECONDS": "1",
        "CHATELAINE_RUN_LEASE_SECONDS": "5", "MCP_CONFIG_ENCRYPTION_KEY": "5e" * 32,
        "CHATELAINE_REQUESTS_PER_MINUTE": "100000", "CHATELAINE_APPROVALS_PER_USER": "1000",
    }


def command(program, *arguments):
    done = subprocess.run([program, *arguments], env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


ready = []  # the addresses of replicas that say that they are ready


class Replica:
    def __init__(self, program, name):
        self.name, self.port = name, random.randint(20000, 30000)
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = open(folder / f"{name}.log", "a")
        self.process = subprocess.Popen([program, "serve"], env=environment(self.port), stdout=self.log, stderr=self.log)
        began, seen = time.time(), set()
        while True:
            assert self.process.poll() is None, (folder / f"{name}.log").read_text()[-2000:]
            assert time.time() - began < 60, f"{name} is not ready"
            try:
                with urllib.request.urlopen(self.url + "/readyz", timeout=2) as answer:
                    if answer.status == 200:
                        break
            except urllib.error.HTTPError as answer:
                seen.add(json.load(answer).get("start"))
            except OSError:
                pass
            time.sleep(0.02)
        print(f"{name}: ready after {time.time() - began:.1f} s, {sorted(map(str, seen))}", flush=True)
        ready.append(self.url)

    def stop(self):
        ready.remove(self.url)
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(60) == 0, f"{self.name} did not stop in order"
        print(f"{self.name}: stopped", flush=True)


longest = [0.0]


def watch_locks():
    sql = ("select coalesce(max(extract(epoch from clock_timestamp() - waitstart)), 0) from pg_locks l "
           "where not granted and locktype in ('relation', 'tuple', 'transactionid')")
    longest[0] = max(longest[0], float(psql(sql)))
    time.sleep(0.1)


def main():
    load.write_pack(folder / "packs/bank")
    psql("create role chatelaine login createrole", "postgres")
    # Whoever started this Postgres may have made them.
    for role in ("chatelaine_tenant", "chatelaine_system", "chatelaine_retention", "chatelaine_search"):
        if psql(f"select 1 from pg_roles where rolname = '{role}'", "postgres"):
            psql(f"grant {role} to chatelaine", "postgres")
    psql("create database upgrade owner chatelaine", "postgres")
    old = Replica(OLD, "old")
    command(OLD, "tenant", "add", "acme")
    token = lambda user, role: {"authorization": "Bearer " + command(
        OLD, "token", "--tenant", "acme", "--user", user, "--role", role)}
    key = command(OLD, "tenant", "key", "create", "acme", "frontend", "--frontend", "open-webui").split()[-1]
    people = load.Load(ready)
    for number in range(CHATS):
        people.start(people.chat, token(f"user{number}", "employee"), number)
    people.start(people.approve, token("chief", "chief"))
    people.start(people.sign_in, key)
    people.start(watch_locks)
    time.sleep(PHASE)
    print(f"old alone: {len(people.said)} messages, {len(people.approved)} decisions", flush=True)
    versions = lambda: psql("select string_agg(version::text, ',' order by version) from _sqlx_migrations")
    before = versions()
    new = Replica(NEW, "new")
    print(f"migrations: {before} -> {versions()}", flush=True)
    time.sleep(PHASE)
    old.stop()
    time.sleep(PHASE)
    old = Replica(OLD, "old")
    time.sleep(PHASE)
    new.stop()
    time.sleep(PHASE)
    print(f"old alone on the new schema: {len(people.said)} messages, {len(people.approved)} decisions", flush=True)
    new = Replica(NEW, "new")
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
