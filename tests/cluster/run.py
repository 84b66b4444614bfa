#!/usr/bin/env python3
"""usage: tests/cluster/run.sh PROGRAM

Three replicas of PROGRAM over a Postgres that fails over: three nodes with Patroni and etcd, HAProxy, and PgBouncer if
PGBOUNCER names it. People chat, pay and sign in while each of FAULTS (all) happens. Fails when anything that was
acknowledged is lost, a payment is made twice, a request is answered with another error than 503 with Retry-After, or a
replica needs more than BACK seconds after there is a new primary. Prints a table.
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import load  # noqa: E402
from cluster import Cluster, ask, wait_until  # noqa: E402

PROGRAM = sys.argv[1]
CHATS, BACK = 4, float(os.environ.get("BACK", "3"))


class Replica:
    def __init__(self, service, direct, number):
        self.program, self.name = service.program, f"replica{number}"
        self.url, self.log = f"http://127.0.0.1:{8080 + number}", service.folder / f"{self.name}.log"
        self.environment = service.environment(8080 + number) | {
            "CHATELAINE_LISTEN_DATABASE_URL": direct, "CHATELAINE_APPROVALS_PER_TENANT": "10000"}

    def start(self):
        log = open(self.log, "a")
        self.process = subprocess.Popen([self.program, "serve"], env=self.environment, stdout=log, stderr=log)

    def is_ready(self):
        assert self.process.poll() is None, f"{self.name} has ended: {self.log}"
        return ask(self.url + "/readyz")[0] == 200


class Probe:
    """Writes at one replica, five times a second, and notes when it was acknowledged."""

    def __init__(self, people, headers, replica):
        self.people, self.headers, self.replica = people, headers, replica
        self.acknowledged, self.kept = [time.time()], []
        people.start(self.write)

    def write(self):
        began = time.time()
        # A request that waits for a dead connection does not keep the next one.
        threading.Thread(target=self.write_once, daemon=True).start()
        time.sleep(max(0.0, began + 0.2 - time.time()))

    def write_once(self):
        status, answer = self.people.send(self.replica.url, self.headers, "POST", "/v1/conversations", {"agent": "bank"})
        if status == 201:
            self.acknowledged.append(time.time())
            self.kept.append(answer["id"])

    def longest_silence(self, since):
        times = [since, *(one for one in sorted(self.acknowledged) if one > since), time.time()]
        return max(after - before for before, after in zip(times, times[1:]))

    def first_after(self, moment):
        return next((one for one in sorted(self.acknowledged) if one > moment), None)


class Faults:
    """A method with a text is a fault. It returns when there was a new primary, if there was to be one."""

    def __init__(self, cluster, replicas):
        self.cluster, self.replicas = cluster, replicas

    def new_primary(self, old):
        wait_until("a new primary", lambda: any(node.is_primary() for node in self.cluster.nodes if node is not old))
        return time.time()

    def primary_killed(self):
        "primary and its Patroni killed (`kill -9`)"
        old = self.cluster.primary()
        old.kill("patroni", "postgres")
        new = self.new_primary(old)
        old.start_patroni()
        return new

    def switched_over(self):
        "switched over by Patroni"
        old = self.cluster.primary()
        request = {"leader": old.name}
        status, _ = ask(f"http://{old.address}:8008/switchover", "POST", request, timeout=60)
        assert status == 200, status
        return self.new_primary(old)

    def cut_off(self):
        "primary cut off from everybody"
        old = self.cluster.primary()
        old.cut_off()
        new = self.new_primary(old)
        time.sleep(5)
        old.heal()
        return new

    def cut_from_nodes(self):
        "primary cut off from the other nodes, not from its clients"
        old = self.cluster.primary()
        old.cut_from_nodes()
        new = self.new_primary(old)
        time.sleep(5)
        old.heal()
        return new

    def lose_etcd(self, failsafe):
        self.cluster.configure(failsafe_mode=failsafe)
        # Each node reads it in its next round.
        time.sleep(12)
        for node in self.cluster.nodes:
            node.kill("etcd")
        # Longer than a lock of Patroni lives.
        time.sleep(30)
        was_primary = self.cluster.primary()
        for node in self.cluster.nodes:
            node.start_etcd()
        if was_primary:
            return None
        return self.new_primary(None)

    def etcd_lost(self):
        "etcd lost for 30 s, `failsafe_mode: true`"
        moment = self.lose_etcd(True)
        assert moment is None, "there was no primary while etcd was away"

    def etcd_lost_unsafe(self):
        "etcd lost for 30 s, `failsafe_mode: false`"
        moment = self.lose_etcd(False)
        assert moment, "there was a primary while etcd was away"
        self.cluster.configure(failsafe_mode=True)
        return moment

    def pooler_restarted(self):
        "PgBouncer killed (`kill -9`), started 2 s later"
        self.cluster.pooler.kill()
        self.cluster.pooler.wait()
        time.sleep(2)
        self.cluster.start_pooler()
        return time.time()

    def started_during_failover(self):
        "primary killed, and a replica started while there was none"
        replica, old = self.replicas[0], self.cluster.primary()
        replica.process.kill()
        replica.process.wait()
        old.kill("patroni", "postgres")
        time.sleep(1)
        replica.start()
        new = self.new_primary(old)
        old.start_patroni()
        wait_until("the replica that was started", replica.is_ready)
        return new


NAMES = [name for name, fault in vars(Faults).items() if callable(fault) and fault.__doc__]


class Company:
    """Three replicas, and the people who use them."""

    def __init__(self, cluster, folder):
        self.cluster = cluster
        load.write_pack(folder / "packs/bank")
        service = load.Service(PROGRAM, folder, cluster.url, [])
        self.replicas = [Replica(service, cluster.direct, number) for number in range(3)]
        for replica in self.replicas:
            replica.start()
            service.urls.append(replica.url)
        wait_until("replicas", lambda: all(replica.is_ready() for replica in self.replicas))
        self.people = service.begin("acme", CHATS, patience=120)
        prober = service.token("acme", "prober", "employee")
        self.probes = [Probe(self.people, prober, replica) for replica in self.replicas]

    def live_through(self, name, fault):
        """Lets a fault happen. Returns its row of the table."""
        wait_until("a whole cluster", self.cluster.is_whole, 180)
        time.sleep(5)
        began, before = time.time(), dict(self.people.statuses)
        primary, after, back = fault(), "", ""
        if primary:
            write = lambda: [probe.first_after(primary) for probe in self.probes]
            wait_until("an acknowledged write at each replica", lambda: all(write()), 240)
            after, back = primary - began, max(write()) - primary
            if back > BACK:
                self.people.faults.append(f"{name}: writes only {back:.1f} s after the new primary")
            after, back = f"{after:.1f}", f"{back:.1f}"
        time.sleep(3)
        silence = max(probe.longest_silence(began) for probe in self.probes)
        seen = {status: count - before.get(status, 0) for status, count in self.people.statuses.items()}
        return fault.__doc__, after, back, f"{silence:.1f}", seen.get(503, 0), seen.get(None, 0)

    def judge(self):
        """Compares what was acknowledged with the rows. Returns it in words."""
        wait_until("a whole cluster", self.cluster.is_whole, 180)
        self.people.stop()
        # Those requests that are under way end.
        time.sleep(15)
        result = self.people.judge(self.cluster.psql, may_break=True)
        rows = set(self.cluster.psql("select id from conversations").splitlines())
        kept = [one for probe in self.probes for one in probe.kept]
        self.people.faults.extend(f"conversation {one} is lost" for one in kept if one not in rows)
        answers = ", ".join(f"{count} × {status or 'none'}" for status, count in sorted(self.people.statuses.items(), key=str))
        return (f"{result}; {len(kept)} conversations acknowledged; answers: {answers}; slowest answer "
                f"{self.people.slowest:.1f} s; {'with' if self.cluster.pgbouncer else 'without'} PgBouncer")


def main():
    folder = pathlib.Path(tempfile.mkdtemp(prefix="chatelaine-cluster."))
    print(f"cluster: its logs are in {folder}", flush=True)
    cluster = Cluster(folder, os.environ.get("PGBOUNCER"))
    rows = []
    try:
        company = Company(cluster, folder)
        faults = Faults(cluster, company.replicas)
        for name in os.environ.get("FAULTS", " ".join(NAMES)).split():
            if name == "pooler_restarted" and not cluster.pgbouncer:
                continue
            rows.append(company.live_through(name, getattr(faults, name)))
            print("cluster:", name, *rows[-1][1:], flush=True)
        result = company.judge()
    finally:
        cluster.end()
    print("\n| fault | new primary after, s | writes at all replicas after that, s | longest time without a write, s "
          "| answers 503 | no answer |\n|---|---|---|---|---|---|")
    for row in rows:
        print("|", " | ".join(map(str, row)), "|")
    print(f"\n{result}")
    for fault in company.people.faults:
        print("FAULT:", fault)
    if not company.people.faults:
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if company.people.faults else 0


if __name__ == "__main__":
    sys.exit(main())
