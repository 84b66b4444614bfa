#!/usr/bin/env python3
"""usage: tests/cluster/run.sh PROGRAM

Three replicas of PROGRAM over a Postgres that fails over: three nodes with Patroni and etcd, HAProxy, and PgBouncer if
PGBOUNCER names it. People chat, pay and sign in while each of FAULTS (all) happens. Fails when anything that was
acknowledged is lost, a payment is made twice, a request is answered with another error than 503 with Retry-After, or a
replica needs more than BACK seconds after there is a new primary. Prints a table.
"""
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import load  # noqa: E402
from cluster import Cluster, ask, wait_until  # noqa: E402

PROGRAM = os.path.abspath(sys.argv[1])
CHATS, BACK = 8, float(os.environ.get("BACK", "3"))


class Replica:
    def __init__(self, cluster, folder, number):
        self.folder, self.name, self.url = folder, f"replica{number}", f"http://127.0.0.1:{8080 + number}"
        self.environment = {
            "PATH": os.environ["PATH"], "HOME": str(folder), "DATABASE_URL": cluster.url,
            "CHATELAINE_LISTEN_DATABASE_URL": cluster.direct, "CHATELAINE_DATA": str(folder / "data"),
            "CHATELAINE_PACKS": str(folder / "packs"), "CHATELAINE_LISTEN": self.url.removeprefix("http://"),
            "CHATELAINE_EGRESS_ALLOW": "127.0.0.1", "CHATELAINE_MODEL_TITLES": "off", "CHATELAINE_DRAIN_SECONDS": "1",
            "CHATELAINE_RUN_LEASE_SECONDS": "5", "MCP_CONFIG_ENCRYPTION_KEY": "5e" * 32,
            "CHATELAINE_REQUESTS_PER_MINUTE": "100000", "CHATELAINE_APPROVALS_PER_USER": "1000",
            "CHATELAINE_APPROVALS_PER_TENANT": "10000",
        }

    def start(self):
        log = open(self.folder / f"{self.name}.log", "a")
        self.process = subprocess.Popen([PROGRAM, "serve"], env=self.environment, stdout=log, stderr=log)

    def is_ready(self):
        assert self.process.poll() is None, f"{self.name} has ended: {self.folder}/{self.name}.log"
        return ask(self.url + "/readyz")[0] == 200

    def command(self, *arguments):
        done = subprocess.run([PROGRAM, *arguments], env=self.environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()


class Probe:
    """Writes at one replica, ten times a second, and notes when it was acknowledged."""

    def __init__(self, people, headers, replica):
        self.people, self.headers, self.replica = people, headers, replica
        self.acknowledged, self.kept = [time.time()], []
        people.start(self.write)

    def write(self):
        began = time.time()
        # A request that waits for a dead connection does not keep the next one.
        threading.Thread(target=self.write_once, daemon=True).start()
        time.sleep(max(0.0, began + 0.1 - time.time()))

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


def main():
    folder = pathlib.Path(tempfile.mkdtemp(prefix="chatelaine-cluster."))
    pgbouncer = os.environ.get("PGBOUNCER")
    cluster = Cluster(folder, pgbouncer)
    print(f"cluster: the primary is {cluster.primary().name}", flush=True)
    load.write_pack(folder / "packs/bank")
    replicas = [Replica(cluster, folder, number) for number in range(3)]
    for replica in replicas:
        replica.start()
    wait_until("replicas", lambda: all(replica.is_ready() for replica in replicas))
    command = replicas[0].command
    command("tenant", "add", "acme")
    token = lambda user, role: {"authorization": "Bearer " + command("token", "--tenant", "acme", "--user", user, "--role", role)}
    key = command("tenant", "key", "create", "acme", "frontend", "--frontend", "open-webui").split()[-1]
    people = load.Load([replica.url for replica in replicas], patience=120)
    chief, prober = token("chief", "chief"), token("prober", "employee")
    employees = [token(f"user{number}", "employee") for number in range(CHATS)]
    for number, headers in enumerate(employees):
        people.start(people.chat, headers, number)
    people.start(people.approve, chief)
    people.start(people.sign_in, key)
    probes = [Probe(people, prober, replica) for replica in replicas]

    faults, rows = Faults(cluster, replicas), []
    chosen = os.environ.get("FAULTS", " ".join(NAMES)).split()
    for name in NAMES:
        if name not in chosen or name == "pooler_restarted" and not pgbouncer:
            continue
        wait_until("a whole cluster", cluster.is_whole, 180)
        time.sleep(5)
        began, before = time.time(), dict(people.statuses)
        primary = getattr(faults, name)()
        back = None
        if primary:
            wait_until("an acknowledged write at each replica", lambda: all(one.first_after(primary) for one in probes), 60)
            back = max(one.first_after(primary) for one in probes) - primary
            if back > BACK:
                people.faults.append(f"{name}: back after {back:.1f} s")
        time.sleep(3)
        silence = max(one.longest_silence(began) for one in probes)
        seen = {status: count - before.get(status, 0) for status, count in people.statuses.items()}
        rows.append((getattr(Faults, name).__doc__, f"{primary - began:.1f}" if primary else "", f"{back:.1f}" if primary else "",
                     f"{silence:.1f}", seen.get(503, 0), seen.get(None, 0)))
        print("cluster:", name, *rows[-1][1:], flush=True)
    wait_until("a whole cluster", cluster.is_whole, 180)
    people.stop()
    time.sleep(15)
    result = people.judge(cluster.psql, may_break=True)
    kept = set(cluster.psql("select id from conversations").splitlines())
    lost = [one for probe in probes for one in probe.kept if one not in kept]
    people.faults.extend(f"conversation {one} is lost" for one in lost)
    print("\n| fault | new primary after, s | writes at all replicas after that, s | longest time without a write, s "
          "| answers 503 | no answer |\n|---|---|---|---|---|---|")
    for row in rows:
        print("|", " | ".join(map(str, row)), "|")
    answers = ", ".join(f"{count} × {status or 'none'}" for status, count in sorted(people.statuses.items(), key=str))
    print(f"\n{result}; {sum(len(probe.kept) for probe in probes)} conversations, {len(lost)} lost; answers: {answers}; "
          f"slowest answer {people.slowest:.1f} s; {'with' if pgbouncer else 'without'} PgBouncer")
    for fault in people.faults:
        print("FAULT:", fault)
    if people.faults:
        print(f"cluster: the logs are in {folder}")
        return 1
    subprocess.run(["rm", "-rf", str(folder)])
    return 0


if __name__ == "__main__":
    sys.exit(main())
