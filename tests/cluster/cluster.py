"""Three nodes, each with etcd, Patroni and Postgres and a network of its own, and HAProxy and PgBouncer before them, by
the files of deploy/cluster. For run.py, which runs in namespaces of its own.
"""
import glob
import json
import os
import pathlib
import pwd
import secrets
import shutil
import signal
import string
import subprocess
import time
import urllib.error
import urllib.request

DEPLOY = pathlib.Path(__file__).resolve().parents[2] / "deploy/cluster"
PASSWORD = secrets.token_hex(16)
# Where packets get lost: no interface has this address.
NOWHERE = "02:00:00:00:00:99"
# Whoever the servers run as: Postgres and PgBouncer refuse to be root.
AS = ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups", "--"] if os.getuid() == 0 else []


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def postgres_programs():
    initdb = shutil.which("initdb") or sorted(glob.glob("/usr/lib/postgresql/*/bin/initdb"))[-1]
    return os.path.dirname(os.path.realpath(initdb))


def wait_until(what, is_so, seconds=120):
    end = time.time() + seconds
    while time.time() < end:
        result = is_so()
        if result:
            return result
        time.sleep(0.1)
    raise SystemExit(f"cluster: waited in vain for: {what}")


def ask(url, method="GET", body=None, timeout=1):
    """The status and the text of an answer of Patroni; 0 when there is none."""
    password = urllib.request.HTTPPasswordMgrWithDefaultRealm()
    password.add_password(None, url, "patroni", PASSWORD)
    opener = urllib.request.build_opener(urllib.request.HTTPBasicAuthHandler(password), urllib.request.ProxyHandler({}))
    data = None if body is None else json.dumps(body).encode()
    try:
        with opener.open(urllib.request.Request(url, data, method=method), timeout=timeout) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as answer:
        return answer.code, ""
    except OSError:
        return 0, ""


class Node:
    def __init__(self, cluster, number):
        self.cluster, self.number, self.name = cluster, number, f"n{number}"
        self.router, self.address = f"10.77.{number}.1", f"10.77.{number}.2"
        self.link, self.folder = f"node{number}", cluster.folder / self.name
        self.folder.mkdir()
        # This process is the node's network.
        self.holder = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
        network = f"/proc/{self.holder.pid}/ns/net"
        wait_until("a network", lambda: os.readlink(network) != os.readlink("/proc/self/ns/net"), 10)
        self.network = os.readlink(network)
        run("ip", "link", "add", self.link, "type", "veth", "peer", "name", "eth0", "netns", str(self.holder.pid))
        run("ip", "address", "add", f"{self.router}/29", "dev", self.link)
        run("ip", "link", "set", self.link, "up")
        for command in (f"link set lo up|address add {self.address}/29 dev eth0|link set eth0 up|"
                        f"route add default via {self.router}").split("|"):
            self.ip(*command.split())

    def inside(self, *command):
        return ["nsenter", f"--net=/proc/{self.holder.pid}/ns/net", *command]

    def ip(self, *arguments):
        run(*self.inside("ip", *arguments))

    def start(self, name, *command):
        log = open(self.folder / f"{name}.log", "a")
        subprocess.Popen(self.inside(*AS, *command), stdout=log, stderr=log, cwd=self.folder)

    def start_etcd(self):
        url = f"http://{self.address}"
        peers = ",".join(f"{node.name}=http://{node.address}:2380" for node in self.cluster.nodes)
        # A member that comes back does not end the leader's term (`--pre-vote`, the default since 3.5), and elections
        # are slow enough for a machine that other work uses as well.
        self.start("etcd", "etcd", "--name", self.name, "--data-dir", f"{self.folder}/etcd", "--enable-v2=false",
                   "--listen-client-urls", f"{url}:2379", "--advertise-client-urls", f"{url}:2379",
                   "--listen-peer-urls", f"{url}:2380", "--initial-advertise-peer-urls", f"{url}:2380",
                   "--initial-cluster", peers, "--pre-vote", "--heartbeat-interval", "200", "--election-timeout", "2000")

    def start_patroni(self):
        self.start("patroni", "patroni", str(self.cluster.fill_in("patroni.yml", self.folder, NODE=self.name,
                   ADDRESS=self.address, POSTGRES_BIN=postgres_programs())))

    def kill(self, *names):
        """Ends these programs of the node at once."""
        for process in os.listdir("/proc"):
            if not process.isdigit() or int(process) == self.holder.pid:
                continue
            try:
                is_here = os.readlink(f"/proc/{process}/ns/net") == self.network
                if is_here and pathlib.Path(f"/proc/{process}/comm").read_text().strip() in names:
                    os.kill(int(process), signal.SIGKILL)
            except (FileNotFoundError, ProcessLookupError):
                pass

    def says(self, path):
        return ask(f"http://{self.address}:8008/{path}")

    def is_primary(self):
        """The node holds the lock, and its Postgres has been promoted."""
        status, about = self.says("primary")
        return status == 200 and json.loads(about)["role"] == "primary"

    def cut_off(self):
        """Nothing reaches the node or comes from it, and nobody is told."""
        run("ip", "neighbour", "replace", self.address, "lladdr", NOWHERE, "dev", self.link, "nud", "permanent")
        self.ip("neighbour", "replace", self.router, "lladdr", NOWHERE, "dev", "eth0", "nud", "permanent")

    def cut_from_nodes(self):
        """Nothing gets from the node to the other nodes. Its clients still reach it."""
        nowhere = f"10.77.{self.number}.3"
        self.ip("neighbour", "replace", nowhere, "lladdr", NOWHERE, "dev", "eth0", "nud", "permanent")
        for other in self.others():
            self.ip("route", "add", f"10.77.{other.number}.0/29", "via", nowhere)

    def heal(self):
        for command in [["ip", "neighbour", "del", self.address, "dev", self.link],
                        self.inside("ip", "neighbour", "del", self.router, "dev", "eth0"),
                        *(self.inside("ip", "route", "del", f"10.77.{other.number}.0/29") for other in self.others())]:
            subprocess.run(command, stderr=subprocess.DEVNULL)

    def others(self):
        return [node for node in self.cluster.nodes if node is not self]


class Cluster:
    def __init__(self, folder, pgbouncer):
        self.folder, self.pgbouncer, self.pooler = folder, pgbouncer, None
        run("ip", "link", "set", "lo", "up")
        pathlib.Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
        self.nodes = []
        self.nodes.extend(Node(self, number) for number in (1, 2, 3))
        (folder / "users.txt").write_text(f'"chatelaine" "{PASSWORD}"\n')
        if AS:
            user = pwd.getpwnam("postgres")
            for path in [folder, *folder.rglob("*")]:
                os.chown(path, user.pw_uid, user.pw_gid)
        for node in self.nodes:
            node.start_etcd()
            node.start_patroni()
        self.start(["haproxy", "-db", "-f", str(self.fill_in("haproxy.cfg", folder))], "haproxy")
        wait_until("a primary with a standby", self.is_whole)
        self.psql("create role chatelaine login createrole password '%s'" % PASSWORD, "postgres")
        self.psql("create database chatelaine owner chatelaine", "postgres")
        self.direct = f"postgres://chatelaine:{PASSWORD}@127.0.0.1:5000/chatelaine"
        self.url = self.direct
        if pgbouncer:
            self.url = f"postgres://chatelaine:{PASSWORD}@127.0.0.1:6432/chatelaine"
            self.start_pooler()

    def fill_in(self, name, folder, **words):
        """Writes a file of deploy/cluster with its words in capitals filled in."""
        addresses = {f"NODE_{node.number}": node.address for node in self.nodes}
        filled = string.Template((DEPLOY / name).read_text()).substitute(
            FOLDER=folder, PASSWORD=PASSWORD, NETWORK="10.77.0.0/16", HAPROXY="127.0.0.1", PGBOUNCER="127.0.0.1",
            ETCD=",".join(f"{node.address}:2379" for node in self.nodes), **addresses, **words)
        (folder / name).write_text(filled)
        (folder / name).chmod(0o644)
        return folder / name

    def start(self, command, name):
        log = open(self.folder / f"{name}.log", "a")
        return subprocess.Popen([*AS, *command], stdout=log, stderr=log, cwd=self.folder)

    def start_pooler(self):
        self.pooler = self.start([self.pgbouncer, str(self.fill_in("pgbouncer.ini", self.folder))], "pgbouncer")

    def primary(self):
        return next((node for node in self.nodes if node.is_primary()), None)

    def is_whole(self):
        """There are a primary and two standbys that replicate, and Patroni knows of one that it has every commit."""
        primary = self.primary()
        streaming = json.loads(primary.says("patroni")[1] or "{}").get("replication", []) if primary else []
        return len(streaming) == 2 and any(node.says(what)[0] == 200 for node in self.nodes for what in ("quorum", "synchronous"))

    def configure(self, **settings):
        wait_until("a change of the configuration",
                   lambda: any(ask(f"http://{node.address}:8008/config", "PATCH", settings)[0] == 200 for node in self.nodes))

    def end(self):
        """Ends the nodes and removes what they stored. Logs stay."""
        for node in self.nodes:
            node.kill("patroni", "postgres", "etcd")
            for stored in ("data", "etcd"):
                shutil.rmtree(node.folder / stored, ignore_errors=True)

    def psql(self, sql, database="chatelaine"):
        return run("psql", "-X", "-At", "-v", "ON_ERROR_STOP=1", "-c", sql,
                   f"postgres://postgres:{PASSWORD}@127.0.0.1:5000/{database}")
