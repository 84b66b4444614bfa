#!/usr/bin/env python3
"""usage: service.py PROGRAM ADDRESS…

Serves from a Citus cluster whose nodes have these addresses, of a superuser, the coordinator first. Counts the statements
that a turn costs before and after the tables are distributed. Then moves the shards of a tenant from node to node while
its users chat, pay and approve, at two replicas: nothing that was acknowledged may be lost, and nothing be done twice
(tests/load.py)."""
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import urllib.parse

sys.path.append(str(pathlib.Path(__file__).parent.parent))
import load  # noqa: E402

PROGRAM, NODES = sys.argv[1], [urllib.parse.urlparse(node) for node in sys.argv[2:]]
CHATS, TURNS, PHASE, DATABASE = 8, 20, int(os.environ.get("SECONDS_OF_A_PHASE", "5")), f"service_{os.getpid()}"
url = f"postgres://chatelaine@{NODES[0].hostname}:{NODES[0].port}/{DATABASE}?sslmode=disable"
folder = pathlib.Path(tempfile.mkdtemp(prefix="chatelaine-citus."))
service = load.Service(PROGRAM, folder, url, [])


def psql(sql, node=NODES[0], database=DATABASE):
    command = ["psql", "-X", "-qAt", "-v", "ON_ERROR_STOP=1", "-h", node.hostname, "-p", str(node.port), "-U", node.username,
               "-d", database]
    # Each statement is a transaction of its own.
    done = subprocess.run(command, input=sql, capture_output=True, text=True)
    assert done.returncode == 0, f"{sql}: {done.stderr}"
    return done.stdout.strip()


def count_statements():
    """Of the database, at each node."""
    sql = ("select coalesce(sum(calls), 0) from pg_stat_statements s join pg_database d on d.oid = s.dbid "
           f"where d.datname = '{DATABASE}'")
    return [int(psql(sql, node, "postgres")) for node in NODES]


def measure(what):
    """Prints what a turn costs, without what an idle replica costs anyway."""
    replica, tenant = load.Replica(service, what.replace(" ", "-")), what.split()[0]
    service.command("tenant", "add", tenant)
    headers, people = service.token(tenant, "alice", "employee"), load.Load(service.urls)
    ask = lambda method, path, body=None: people.ask(headers, method, path, body)[1]
    conversation = ask("POST", "/v1/conversations", {"agent": "bank"})["id"]

    def turn():
        run = ask("POST", f"/v1/conversations/{conversation}/messages", {"text": "hello"})["run"]["id"]
        while ask("GET", f"/v1/runs/{run}").get("status") in ("queued", "running"):
            time.sleep(0.2)

    turn()
    began, before = time.time(), count_statements()
    for _ in range(TURNS):
        turn()
    took, after = time.time() - began, count_statements()
    time.sleep(took)
    idle = count_statements()
    costs = [((b - a) - (c - b)) / TURNS for a, b, c in zip(before, after, idle)]
    rests = [(c - b) / took for b, c in zip(after, idle)]
    show = lambda numbers: ", ".join(f"{number:.0f}" for number in numbers)
    print(f"{what}: statements of a turn at each node: {show(costs)}; idle, a second: {show(rests)}; "
          f"{took / TURNS:.2f} s a turn", flush=True)
    replica.stop()


def move(mode):
    """Moves all shards that are placed with the tenant's conversations to the next worker. With `block_writes` its users wait
    meanwhile. With `force_logical` they do not, but Postgres replicates into no table whose row-level security is forced upon
    the owner, too."""
    tenant = psql("select id from tenants where name = 'acme'")
    shard = psql(f"select get_shard_id_for_distribution_column('conversations', '{tenant}')")
    here = psql(f"select nodename || ' ' || nodeport from citus_shards where shardid = {shard}")
    places = psql("select nodename || ' ' || nodeport from pg_dist_node where shouldhaveshards order by nodeport").splitlines()
    there = places[(places.index(here) + 1) % len(places)]
    pairs = ", ".join(f"'{host}', {port}" for host, port in (place.split() for place in (here, there)))
    force = lambda word: psql(f"select format('alter table %s {word} row level security', logicalrelid) from pg_dist_partition "
                              "where partmethod = 'h' \\gexec")
    began = time.time()
    if mode == "force_logical":
        force("no force")
    psql(f"select citus_move_shard_placement({shard}, {pairs}, shard_transfer_mode => '{mode}')")
    force("force")
    print(f"moved the tenant from {here} to {there} with {mode} in {time.time() - began:.1f} s", flush=True)
    forgotten = "select count(*) from pg_class where relrowsecurity and not relforcerowsecurity and relkind = 'r'"
    assert all(psql(forgotten, node) == "0" for node in NODES), "a table shows its owner all rows"


def main():
    load.write_pack(folder / "packs/bank")
    faults = []
    for node in NODES:
        psql("create extension if not exists pg_stat_statements", node, "postgres")
        psql("do $$ begin create role chatelaine login createrole createdb; exception when duplicate_object then null; end $$",
             node, "postgres")
        psql(f"create database {DATABASE} owner chatelaine", node, "postgres")
    measure("plain Postgres")
    for node in NODES:
        psql("create extension citus", node)
    coordinator, workers = NODES[0], NODES[1:]
    psql(f"select citus_set_coordinator_host('{coordinator.hostname}', {coordinator.port})")
    for worker in workers:
        psql(f"select citus_add_node('{worker.hostname}', {worker.port})")
    if not workers:
        psql(f"select citus_set_node_property('{coordinator.hostname}', {coordinator.port}, 'shouldhaveshards', true)")
    # What was there before is there afterwards, too.
    before = psql("select count(*) from messages")
    service.command("distribute", "--apply", "--shards", "8")
    assert psql("select count(*) from messages") == before, "messages were lost on the way"
    assert service.command("distribute", "--apply"), "it can be executed again"
    print("queries by where they are answered:", flush=True)
    plan = pathlib.Path(__file__).with_name("plan.py")
    environment = dict(os.environ, PGHOST=coordinator.hostname, PGPORT=str(coordinator.port), PGUSER=coordinator.username,
                       PGDATABASE=DATABASE)
    if subprocess.run([plan, plan.parent.parent.parent / ".sqlx"], env=environment).returncode:
        faults.append("not every query is planned")
    measure(f"sharded over {max(len(workers), 1)} nodes")
    replicas = [load.Replica(service, name) for name in ("one", "two")]
    people = service.begin("acme", CHATS)
    time.sleep(PHASE)
    for mode in ("block_writes", "force_logical") if len(workers) > 1 else ():
        people.slowest = 0.0
        move(mode)
        time.sleep(PHASE)
        print(f"the slowest answer since: {people.slowest:.1f} s; answers by status: {people.statuses}", flush=True)
    people.stop()
    print(people.judge(psql), flush=True)
    faults += people.faults
    for replica in replicas:
        replica.stop()
        # A node that has committed by itself, before the others could, says this.
        if "failed to commit transaction" in (folder / f"{replica.name}.log").read_text():
            faults.append(f"{replica.name}: a commit was not one of all nodes")
    for node in NODES:
        psql(f"drop database {DATABASE} with (force)", node, "postgres")
    for fault in faults:
        print("FAULT:", fault)
    return 1 if faults or not people.said or not people.approved else 0


if __name__ == "__main__":
    sys.exit(main())
