#!/usr/bin/env python3
"""usage: tests/alerts/run.py PROGRAM

Makes each alert of deploy/prometheus/alerts.yml fire by its fault, with the real program, a real Postgres and a real
Prometheus that scrapes each second. The rules are those of the file, but for their times: minutes and hours become
seconds. An alert counts only if it was silent, then its fault was made, and then it fired. ALERTS says which to try.
"""

import contextlib
import json
import os
import pathlib
import re
import resource
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = str(pathlib.Path(sys.argv[1]).resolve())
RULES = ROOT / "deploy/prometheus/alerts.yml"
KEYS = {"k1": "5e" * 32, "k2": "6f" * 32}
# How long a fault may take to make its alert fire, and an alert to fall silent.
PATIENCE = 60


def say(text):
    print(f"alerts: {text}", flush=True)


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def wait_until(what, is_so, seconds=PATIENCE):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        result = is_so()
        if result:
            return result
        time.sleep(0.2)
    raise SystemExit(f"alerts: waited in vain for: {what}")


class Fake:
    """An HTTP server of this process whose `mode` a fault changes. `down` closes its port."""

    def __init__(self, answer):
        self.port, self.mode, self.server = free_port(), "ok", None
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self):
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    answer(fake, self, body)

            do_GET = do_POST = do_DELETE = handle_any

            def log_message(self, *_):
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            allow_reuse_address = True

            def handle_error(self, *_):
                pass

        self.classes = (Server, Handler)
        self.up()

    def up(self):
        server, handler = self.classes
        self.server = server(("127.0.0.1", self.port), handler)
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def down(self):
        self.server.shutdown()
        self.server.server_close()

    def wait(self, mode, seconds):
        """Waits so long, or until the mode is another one."""
        end = time.monotonic() + seconds
        while self.mode == mode and time.monotonic() < end:
            time.sleep(0.05)


def reply(handler, status, body=b"", kind="application/json"):
    handler.send_response(status)
    handler.send_header("content-type", kind)
    handler.send_header("content-length", str(len(body)))
    # A server that goes down must not live on in a connection that is kept.
    handler.send_header("connection", "close")
    handler.end_headers()
    handler.wfile.write(body)


def model(fake, handler, _):
    """OpenAI's chat completions."""
    mode = fake.mode
    if mode in ("slow", "hang"):
        fake.wait(mode, 12 if mode == "slow" else 90)
    if mode in ("400", "401", "500"):
        return reply(handler, int(mode), b'{"error":{"message":"as the test wants"}}')
    chunk = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    said = {**chunk, "choices": [{"index": 0, "delta": {"role": "assistant", "content": "Hello."}, "finish_reason": None}]}
    end = {**chunk, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    body = "".join(f"data: {json.dumps(part)}\n\n" for part in (said, end)) + "data: [DONE]\n\n"
    reply(handler, 200, body.encode(), "text/event-stream")


def tools(fake, handler, body):
    """An MCP server over streamable HTTP, with the tools `ask` and `send`."""
    if handler.command != "POST":
        return reply(handler, 405)
    request = json.loads(body)
    if "id" not in request:
        return reply(handler, 202)
    method, result, error = request["method"], None, None
    if method == "initialize":
        result = {"protocolVersion": request["params"]["protocolVersion"], "capabilities": {"tools": {}},
                  "serverInfo": {"name": "desk", "version": "1"}}
    elif method == "ping":
        result = {}
    elif method == "tools/list":
        result = {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in ("ask", "send")]}
    elif method == "tools/call" and fake.mode == "cut":
        # The request was read, and nothing says what became of it.
        return handler.connection.shutdown(socket.SHUT_RDWR)
    elif method == "tools/call":
        result = {"content": [{"type": "text", "text": "as you like"}], "isError": fake.mode == "fail"}
    else:
        error = {"code": -32601, "message": "no such method"}
    answer = {"jsonrpc": "2.0", "id": request["id"], **({"error": error} if error else {"result": result})}
    reply(handler, 200, json.dumps(answer).encode())


def receiver(fake, handler, _):
    reply(handler, 204 if fake.mode == "ok" else 500)


class Postgres:
    """A new server at a Unix socket, which can be stopped."""

    def __init__(self, folder):
        found = sorted(pathlib.Path("/usr/lib/postgresql").glob("*/bin")) or [pathlib.Path(shutil.which("initdb") or "").parent]
        self.bin, self.folder = found[-1], folder
        folder.mkdir()
        self.be = []
        if os.geteuid() == 0:
            shutil.chown(folder, "postgres")
            self.be = ["runuser", "-u", "postgres", "--"]
        self.run("initdb", "--username=postgres", "--auth=trust", "--encoding=UTF8", "--no-locale", "--no-sync", "-D", str(folder / "data"))
        self.start()
        self.sql("create role chatelaine login createrole", "create database chatelaine owner chatelaine", database="postgres")
        self.url = f"postgres://chatelaine@localhost/chatelaine?host={folder}&sslmode=disable"

    def run(self, program, *arguments):
        subprocess.run([*self.be, str(self.bin / program), *arguments], check=True, stdout=subprocess.DEVNULL, cwd=self.folder)

    def start(self):
        self.run("pg_ctl", "--silent", "-w", "-D", str(self.folder / "data"), "-l", str(self.folder / "log"),
                 "-o", f"-c listen_addresses='' -c fsync=off -k {self.folder}", "start")

    def stop(self):
        self.run("pg_ctl", "--silent", "-D", str(self.folder / "data"), "-m", "immediate", "stop")

    def psql(self, database="chatelaine"):
        return [*self.be, str(self.bin / "psql"), "-qAtX", "-v", "ON_ERROR_STOP=1", "-h", str(self.folder), "-U", "postgres", database]

    def sql(self, *statements, database="chatelaine"):
        for statement in statements:
            subprocess.run([*self.psql(database), "-c", statement], check=True, stdout=subprocess.DEVNULL, cwd=self.folder)


class Installation:
    """Postgres, a model, a server, a receiver, two replicas and a Prometheus."""

    def __init__(self, folder):
        self.folder = folder
        self.model, self.tools, self.receiver = Fake(model), Fake(tools), Fake(receiver)
        self.postgres = Postgres(folder / "postgres")
        self.write_pack()
        self.env = {
            "PATH": os.environ["PATH"], "HOME": str(folder), "DATABASE_URL": self.postgres.url,
            "CHATELAINE_PACKS": str(folder / "packs"), "CHATELAINE_DATA": str(folder / "data"),
            "CHATELAINE_EGRESS_ALLOW": "127.0.0.1", "CHATELAINE_TENANT_EGRESS_ALLOW": "127.0.0.1",
            "CHATELAINE_RUN_LEASE_SECONDS": "2", "CHATELAINE_DATABASE_CONNECTIONS": "4", "CHATELAINE_RUNS_AT_ONCE": "2",
            "CHATELAINE_RUNS_PER_USER_AT_ONCE": "2",
            "CHATELAINE_RUNS_PER_TENANT_AT_ONCE": "2", "CHATELAINE_MODEL_TITLES": "off", "CHATELAINE_DRAIN_SECONDS": "1",
            "CHATELAINE_REQUESTS_PER_MINUTE": "1000000", "CHATELAINE_MAX_CONNECTIONS": "200", "CHATELAINE_LOG": "warn",
        }
        self.ports = [(free_port(), free_port()) for _ in range(2)]
        self.replicas = [None, None]
        self.rings = ["k1", "k1"]
        self.packs = [folder / "packs"] * 2
        self.command("tenant", "add", "acme")
        self.token = self.command("token", "--tenant", "acme", "--user", "ann", "--role", "staff")
        self.admin = self.command("token", "--tenant", "acme", "--user", "alice", "--admin")
        for number in range(2):
            self.start(number)
        self.is_busy = True
        threading.Thread(target=self.ask_all_the_time, daemon=True).start()
        self.start_prometheus()

    def write_pack(self):
        server = {"name": "desk", "transport": "streamable-http", "url": f"http://127.0.0.1:{self.tools.port}/mcp",
                  "toolAccess": {"default": "all", "approval": [
                      {"tools": ["send"], "approvers": ["boss"], "selfApproval": False, "timeoutMinutes": 30}]}}
        own = {"name": "notes", "transport": "streamable-http", "url": f"http://127.0.0.1:{self.tools.port}/mcp",
               "accessMode": "user-controlled", "toolAccess": {"default": "all"},
               "userConfig": {"fields": [{"name": "token", "type": "secret", "label": {"en": "Token"}, "headerTemplate": "Bearer {value}"}]}}
        skill = lambda name, server, tool: {"id": name, "mcpBinding": {"server": server, "tools": [tool]}}
        pack = {
            "metadata": {"id": "desk", "displayName": "Desk", "description": "Papers", "defaultLanguage": "en"},
            "languages": {"en": {"systemPrompt": "You are a desk."}},
            "llm": {"provider": "openai", "model": "m", "baseUrl": f"http://127.0.0.1:{self.model.port}/v1", "apiKey": "a-key"},
            "flows": {"authentication": {"required": True, "rolesAttribute": "roles"}},
            "mcp": {"servers": [server, own]},
            "skills": [skill("ask", "desk", "ask"), skill("send", "desk", "send"), skill("own", "notes", "ask")],
        }
        folder = self.folder / "packs/desk"
        folder.mkdir(parents=True)
        (folder / "agent-pack.yaml").write_text(json.dumps(pack))

    def with_ring(self, ring):
        keys = ",".join(f"{key}:{KEYS[key]}" for key in ring.split(","))
        return {**self.env, "MCP_CONFIG_ENCRYPTION_KEYS": keys}

    def command(self, *arguments, ring="k1"):
        done = subprocess.run([PROGRAM, *arguments], env=self.with_ring(ring), check=True, capture_output=True, text=True)
        return done.stdout.strip()

    def start(self, number):
        listen, metrics = self.ports[number]
        env = {**self.with_ring(self.rings[number]), "CHATELAINE_LISTEN": f"127.0.0.1:{listen}",
               "CHATELAINE_METRICS_LISTEN": f"127.0.0.1:{metrics}", "CHATELAINE_PACKS": str(self.packs[number])}
        log = (self.folder / f"replica-{number}.log").open("ab")
        self.replicas[number] = subprocess.Popen([PROGRAM, "serve"], env=env, stderr=log, stdout=log)
        wait_until(f"replica {number} is ready", lambda: self.request("GET", "/readyz", number=number)[0] == 200)

    def kill(self, number):
        self.replicas[number].kill()
        self.replicas[number].wait()

    def request(self, method, path, body=None, token=None, number=0, seconds=8):
        """Status and answer; 0 where nobody answers in time."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.ports[number][0]}{path}", data, method=method)
        request.add_header("authorization", f"Bearer {token or self.token}")
        request.add_header("content-type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=seconds) as answer:
                text = answer.read()
                return answer.status, json.loads(text) if text.startswith((b"{", b"[")) else text
        except urllib.error.HTTPError as error:
            return error.code, error.read()
        except (OSError, ValueError):
            return 0, None

    def ask_all_the_time(self):
        """What is usual: a request now and then, at each replica."""
        while self.is_busy:
            for number in range(2):
                self.request("GET", "/v1/conversations?limit=1", number=number)
            time.sleep(0.1)

    def say(self, number=0):
        """Begins a run."""
        status, conversation = self.request("POST", "/v1/conversations", {"agent": "desk"}, number=number)
        if status == 201:
            self.request("POST", f"/v1/conversations/{conversation['id']}/messages", {"text": "hi"}, number=number)

    def skill(self, name, number=0):
        return self.request("POST", f"/v1/agents/desk/skills/{name}", {"arguments": {}}, number=number)

    def start_prometheus(self):
        rules = RULES.read_text()
        # The whole of the difference: seconds in the place of minutes and hours.
        rules = re.sub(r"\[(\d+)[mh]\]", r"[\1s]", rules)
        rules = re.sub(r"for: (\d+)[mh]", r"for: \1s", rules)
        rules = re.sub(r"\* (60|3600)\b", "* 1", rules)
        # A rate needs two scrapes.
        rules = rules.replace("[1s]", "[3s]")
        (self.folder / "alerts.yml").write_text(rules)
        targets = [f"127.0.0.1:{metrics}" for _, metrics in self.ports]
        (self.folder / "prometheus.yml").write_text(json.dumps({
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": ["alerts.yml"],
            "scrape_configs": [{"job_name": "chatelaine", "static_configs": [{"targets": targets}]}],
        }))
        self.prometheus_port = free_port()
        self.prometheus = subprocess.Popen(
            ["prometheus", f"--config.file={self.folder}/prometheus.yml", f"--storage.tsdb.path={self.folder}/tsdb",
             f"--web.listen-address=127.0.0.1:{self.prometheus_port}", "--log.level=error"])
        wait_until("Prometheus has scraped both replicas", lambda: len(self.ask_prometheus("up == 1")) == 2)
        # The longest window.
        time.sleep(5)

    def ask_prometheus(self, query):
        with contextlib.suppress(OSError):
            url = f"http://127.0.0.1:{self.prometheus_port}/api/v1/query?query={urllib.request.quote(query)}"
            with urllib.request.urlopen(url, timeout=3) as answer:
                return json.load(answer)["data"]["result"]
        return []

    def alerts(self):
        """The alerts that fire or are about to."""
        return {one["metric"]["alertname"]: one["metric"]["alertstate"] for one in self.ask_prometheus("ALERTS")}

    def stop(self):
        self.is_busy = False
        for process in [*self.replicas, getattr(self, "prometheus", None)]:
            if process and process.poll() is None:
                process.kill()
                process.wait()
        with contextlib.suppress(subprocess.CalledProcessError):
            self.postgres.stop()


# The faults. Each is made, held while the alert is awaited, and then mended.

@contextlib.contextmanager
def mode(fake, name):
    fake.mode = name
    try:
        yield
    finally:
        fake.mode = "ok"


@contextlib.contextmanager
def down(fake):
    fake.down()
    try:
        yield
    finally:
        fake.up()


@contextlib.contextmanager
def repeating(work, pause=0.2, threads=1):
    """Does something again and again meanwhile."""
    ended = threading.Event()

    def repeat():
        while not ended.is_set():
            work()
            ended.wait(pause)

    workers = [threading.Thread(target=repeat, daemon=True) for _ in range(threads)]
    for worker in workers:
        worker.start()
    try:
        yield
    finally:
        ended.set()
        for worker in workers:
            worker.join()


@contextlib.contextmanager
def all_of(*faults):
    with contextlib.ExitStack() as stack:
        for fault in faults:
            stack.enter_context(fault)
        yield


@contextlib.contextmanager
def killed(here, number):
    here.kill(number)
    try:
        yield
    finally:
        here.start(number)


@contextlib.contextmanager
def other_pack(here):
    """One replica starts with a pack in which somebody else consents."""
    usual, other = here.packs[1], here.folder / "other-packs"
    shutil.copytree(usual, other)
    pack = other / "desk/agent-pack.yaml"
    pack.write_text(pack.read_text().replace('"boss"', '"chief"'))
    here.packs[1] = other
    try:
        with killed(here, 1):
            pass
        yield
    finally:
        here.packs[1] = usual
        with killed(here, 1):
            pass


@contextlib.contextmanager
def database_stopped(here):
    """With clients that wait for their 503."""
    here.postgres.stop()
    try:
        with repeating(lambda: here.request("GET", "/v1/conversations?limit=1", seconds=20), threads=8):
            yield
    finally:
        here.postgres.start()


@contextlib.contextmanager
def table_locked(here, seconds):
    """Statements wait for a lock for so long, again and again."""
    holding = f"begin; lock table conversations in access exclusive mode; select pg_sleep({seconds}); rollback"
    with repeating(lambda: here.postgres.sql(holding), pause=0.05):
        yield


@contextlib.contextmanager
def run_of_a_dead_replica(here):
    """A replica dies while it works on a run."""
    with mode(here.model, "hang"):
        here.say(number=1)
        wait_until("replica 1 works", lambda: here.ask_prometheus("chatelaine_runs_working > 0"))
        here.kill(1)
        try:
            yield
        finally:
            here.start(1)


@contextlib.contextmanager
def few_files(here):
    pid = here.replicas[0].pid
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    opened = len(os.listdir(f"/proc/{pid}/fd"))
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (opened, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


@contextlib.contextmanager
def restarts(here):
    def restart():
        here.kill(1)
        here.start(1)

    with repeating(restart, pause=1.5):
        yield


@contextlib.contextmanager
def many_runs(here):
    """More runs than the replicas have places, of a model that hangs."""
    with mode(here.model, "hang"):
        for _ in range(6):
            here.say()
        yield
    wait_until("the queue is empty", lambda: here.ask_prometheus("max(chatelaine_runs_waiting) + sum(chatelaine_runs_working) == 0"))


@contextlib.contextmanager
def request_for_consent(here):
    status, answer = here.skill("send")
    assert status in (200, 202), (status, answer)
    yield
    _, waiting = here.request("GET", "/v1/approvals?role=requester&state=pending")
    for one in waiting["items"]:
        here.request("POST", f"/v1/approvals/{one['id']}/cancel", {})


@contextlib.contextmanager
def late_request_for_consent(here):
    """A request that has waited for more than three quarters of its time."""
    with request_for_consent(here):
        time.sleep(24)
        here.postgres.sql("update approvals set expires_at = now() + interval '8 seconds' where state = 'pending'")
        yield


@contextlib.contextmanager
def tenant_key_damaged(here):
    """A byte of the key of a tenant is another one, and then the same again."""
    flip = "update tenant_keys set wrapped = set_byte(wrapped, 90, get_byte(wrapped, 90) # 1)"
    path = "/v1/agents/desk/connections/notes"
    status, answer = here.request("PUT", path, {"fields": {"token": secrets.token_hex(16)}})
    assert status in (200, 201), (status, answer)
    here.postgres.sql(flip)
    for number in range(2):
        here.kill(number)
        here.start(number)
    with repeating(lambda: here.skill("own"), pause=1):
        yield
    here.postgres.sql(flip)
    here.skill("own")
    here.request("DELETE", path)


@contextlib.contextmanager
def webhook_refused(here):
    """Events for a receiver that answers 500."""
    body = {"url": f"http://127.0.0.1:{here.receiver.port}/hook", "events": ["approval.*"]}
    status, hook = here.request("POST", "/v1/admin/webhooks", body, token=here.admin)
    assert status == 201, hook
    with mode(here.receiver, "500"), request_for_consent(here):
        yield
    here.request("DELETE", f"/v1/admin/webhooks/{hook['id']}", token=here.admin)


@contextlib.contextmanager
def credential_damaged(here):
    """A byte of a stored credential is another one."""
    path = "/v1/agents/desk/connections/notes"
    status, answer = here.request("PUT", path, {"fields": {"token": secrets.token_hex(16)}})
    assert status in (200, 201), (status, answer)
    here.postgres.sql("update credentials set sealed = set_byte(sealed, length(sealed) - 1, get_byte(sealed, length(sealed) - 1) # 1)")
    # A replica that has it in memory does not open it again.
    for number in range(2):
        here.kill(number)
        here.start(number)
    with repeating(lambda: here.skill("own"), pause=1):
        yield
    here.request("DELETE", path)


@contextlib.contextmanager
def key_missing(here):
    """The database goes on to a key that one replica does not have."""
    here.kill(1)
    here.rings[1] = "k2,k1"
    here.start(1)
    wait_until("the database knows the key", lambda: "k2" in here.command("keys", "list", ring="k2,k1"))
    here.postgres.sql("update keks set state = 'opening' where id = 'k1'", "update keks set state = 'sealing' where id = 'k2'")
    yield
    here.kill(0)
    here.rings[0] = "k2,k1"
    here.start(0)


def bad_token(here):
    here.request("GET", "/v1/me", token="not.a.token")


FAULTS = {
    "ChatelaineRequestsSlow": lambda here: table_locked(here, 3),
    "ChatelainePoolExhausted": lambda here: all_of(
        table_locked(here, 4), repeating(lambda: here.request("GET", "/v1/conversations?limit=1"), pause=0, threads=12)),
    "ChatelaineSignInsRefused": lambda here: repeating(lambda: bad_token(here), pause=0.01),
    "ChatelaineFilesRunOut": few_files,
    "ChatelaineDatabaseTroubles": lambda here: repeating(
        lambda: here.postgres.sql("select pg_terminate_backend(pid) from pg_stat_activity where usename = 'chatelaine'"), pause=0.5),
    "ChatelaineModelFails": lambda here: all_of(mode(here.model, "500"), repeating(here.say, pause=0.5)),
    "ChatelaineModelRefuses": lambda here: all_of(mode(here.model, "401"), repeating(here.say, pause=0.5)),
    "ChatelaineRunsFail": lambda here: all_of(mode(here.model, "400"), repeating(here.say, pause=0.5)),
    "ChatelaineModelPaused": lambda here: all_of(down(here.model), repeating(here.say, pause=0.5)),
    "ChatelaineModelSlow": lambda here: all_of(mode(here.model, "slow"), repeating(here.say, pause=1)),
    "ChatelaineRunsWait": many_runs,
    # Nobody notices before somebody calls.
    "ChatelaineServersDown": lambda here: all_of(down(here.tools), repeating(lambda: here.skill("ask"), pause=1)),
    "ChatelaineToolCallsFail": lambda here: all_of(mode(here.tools, "fail"), repeating(lambda: here.skill("ask"), pause=0.5)),
    "ChatelaineOutcomeUnknown": lambda here: all_of(mode(here.tools, "cut"), repeating(lambda: here.skill("ask"), pause=1)),
    "ChatelaineApprovalsWait": late_request_for_consent,
    "ChatelaineApprovalsExpire": late_request_for_consent,
    # A replica that can purges at its next look.
    "ChatelainePurgeStops": lambda here: repeating(
        lambda: here.postgres.sql("update jobs set done_at = now() - interval '4 hours', lease_until = now() + interval '1 minute'"), pause=0.3),
    "ChatelaineWebhooksFail": webhook_refused,
    "ChatelaineWebhooksLate": webhook_refused,
    "ChatelaineDatabaseDown": database_stopped,
    "ChatelaineRequestErrors": database_stopped,
    "ChatelaineReplicaRestarts": restarts,
    "ChatelaineRunsTakenOver": run_of_a_dead_replica,
    "ChatelaineReplicaAbsent": lambda here: killed(here, 1),
    "ChatelaineReplicasDisagree": other_pack,
    "ChatelaineCredentialsUnreadable": credential_damaged,
    "ChatelaineTenantKeysUnreadable": tenant_key_damaged,
    "ChatelaineKeysIncomplete": key_missing,
}


def check_scrape(here):
    """`promtool check metrics` has nothing to say of what a replica measures."""
    with urllib.request.urlopen(f"http://127.0.0.1:{here.ports[0][1]}/metrics") as answer:
        scraped = answer.read()
    checked = subprocess.run(["promtool", "check", "metrics"], input=scraped, capture_output=True, check=False)
    if checked.returncode:
        raise SystemExit(f"alerts: promtool check metrics: {checked.stdout.decode()}{checked.stderr.decode()}")
    say(f"promtool check metrics: {len(scraped.splitlines())} lines are fine")


def main():
    named = set(re.findall(r"- alert: (\w+)", RULES.read_text()))
    if named != set(FAULTS):
        raise SystemExit(f"alerts: no fault for {named - set(FAULTS)}, no alert for {set(FAULTS) - named}")
    chosen = os.environ.get("ALERTS", "").split() or list(FAULTS)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="chatelaine-alerts."))
    folder.chmod(0o755)
    here, failed = None, []
    try:
        here = Installation(folder)
        check_scrape(here)
        for alert in chosen:
            # Those before may take a moment to fall silent.
            with contextlib.suppress(SystemExit):
                wait_until("silence", lambda: not here.alerts())
            before = here.alerts()
            if alert in before:
                failed.append(alert)
                say(f"{alert}: it fires without its fault")
                continue
            with FAULTS[alert](here):
                begun, others = time.monotonic(), set()
                while here.alerts().get(alert) != "firing" and time.monotonic() < begun + PATIENCE:
                    time.sleep(0.2)
                state, took = here.alerts(), time.monotonic() - begun
                others = {name for name, how in state.items() if how == "firing"} - {alert}
            if state.get(alert) == "firing":
                say(f"{alert}: fired after {took:.0f} s" + (f", with {', '.join(sorted(others))}" if others else ""))
            else:
                failed.append(alert)
                say(f"{alert}: did not fire in {took:.0f} s; {state}")
    finally:
        if here:
            here.stop()
        if failed:
            say(f"the logs are in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    say(f"{len(chosen) - len(failed)} of {len(chosen)} alerts were silent, and fired by their faults")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    main()
