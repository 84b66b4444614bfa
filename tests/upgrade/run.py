#!/usr/bin/env python3
"""usage: .ci/with-postgres tests/upgrade/run.py OLD NEW

Replaces one release by the next under load, and back: OLD and NEW are two programs. Users chat and ask for payments,
an approver approves, at whichever replica answers. Afterwards every message that was acknowledged must be there with
its answer, every payment that was approved must have been made once, and nobody may have waited two seconds for a lock.
Needs psql, and a Postgres whose DATABASE_URL has the socket's folder as its parameter `host`.
"""
import http.server
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

OLD, NEW = map(os.path.abspath, sys.argv[1:3])
CHATS, PHASE = 8, int(os.environ.get("SECONDS_OF_A_PHASE", "5"))
folder = pathlib.Path(tempfile.mkdtemp(prefix="chatelaine-upgrade."))
socket = re.search(r"host=([^&]+)", os.environ["DATABASE_URL"]).group(1)
url = f"postgres://chatelaine@localhost/upgrade?host={socket}"


class Quiet(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def body(self):
        return json.loads(self.rfile.read(int(self.headers.get("content-length", 0))) or "null")

    def answer(self, status, kind, text):
        data = text.encode()
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


class Model(Quiet):
    """Pays what it is asked to pay, and repeats anything else."""

    def do_POST(self):
        last = self.body()["messages"][-1]
        text = last["content"] if isinstance(last["content"], str) else last["content"][0]["text"]
        if last["role"] == "user" and text.startswith("pay "):
            call = {"name": "bank__pay", "arguments": json.dumps({"payment": text[4:]})}
            delta = {"tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": call}]}
            end = "tool_calls"
        else:
            delta, end = {"content": "you said " + text[:40]}, "stop"
        first = {"choices": [{"index": 0, "delta": {"role": "assistant", **delta}, "finish_reason": None}]}
        second = {"choices": [{"index": 0, "delta": {}, "finish_reason": end}]}
        events = [json.dumps(first), json.dumps(second), "[DONE]"]
        self.answer(200, "text/event-stream", "".join(f"data: {event}\n\n" for event in events))


payments, lock = {}, threading.Lock()


class Bank(Quiet):
    """An MCP server that notes each payment."""

    def do_GET(self):
        self.answer(405, "text/plain", "")

    do_DELETE = do_GET

    def do_POST(self):
        message = self.body()
        method = message.get("method")
        if "id" not in message:
            return self.answer(202, "text/plain", "")
        if method == "initialize":
            result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
                      "serverInfo": {"name": "bank", "version": "1"}}
        elif method == "tools/list":
            schema = {"type": "object", "properties": {"payment": {"type": "string"}}, "required": ["payment"]}
            result = {"tools": [{"name": "pay", "description": "Pays", "inputSchema": schema}]}
        elif method == "tools/call":
            payment = message["params"]["arguments"]["payment"]
            with lock:
                payments[payment] = payments.get(payment, 0) + 1
            result = {"content": [{"type": "text", "text": "paid"}]}
        elif method == "ping":
            result = {}
        else:
            error = {"code": -32601, "message": "no such method"}
            return self.answer(200, "application/json", json.dumps({"jsonrpc": "2.0", "id": message["id"], "error": error}))
        self.answer(200, "application/json", json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}))


def listen(handler):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_address[1]}"


def psql(sql, database="upgrade"):
    command = ["psql", "-X", "-At", "-v", "ON_ERROR_STOP=1", "-h", socket, "-U", "postgres", "-d", database, "-c", sql]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


PACK = """
metadata: { id: bank, displayName: Bank, description: Money, defaultLanguage: en }
languages: { en: { systemPrompt: You are a bank. } }
llm: { provider: openai, model: scripted, baseUrl: "%s/v1", apiKey: model-key-0123456789 }
flows: { authentication: { required: true, rolesAttribute: roles } }
mcp:
  servers:
    - name: bank
      transport: streamable-http
      url: "%s/mcp"
      toolAccess:
        default: none
        roles: { employee: [pay], chief: [pay] }
        approval: [{ tools: [pay], approvers: [chief], timeoutMinutes: 60 }]
"""


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


slowest, refused = [0.0], [0]


def ask(token, method, path, body=None, key=None):
    """Asks any replica that is ready, and again while none answers. A repeated message has its key."""
    for _ in range(200):
        headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
        if key:
            headers["idempotency-key"] = key
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(random.choice(ready) + path, data, headers, method=method)
        began = time.time()
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                slowest[0] = max(slowest[0], time.time() - began)
                return json.load(answer)
        except urllib.error.HTTPError as answer:
            if answer.code < 500:
                return {"status": answer.code, **json.load(answer)}
            refused[0] += answer.code == 503
            assert answer.code == 503, (answer.code, answer.read())
        except OSError:
            pass
        time.sleep(0.1)
    raise AssertionError(f"nobody answers {method} {path}")


said, approved, faults, over = [], [], [], threading.Event()


def chat(token, number):
    try:
        conversation = ask(token, "POST", "/v1/conversations", {"agent": "bank"})["id"]
        count = 0
        while not over.is_set():
            count += 1
            text = f"{'pay' if count % 2 else 'hello'} {number}-{count}"
            posted = ask(token, "POST", f"/v1/conversations/{conversation}/messages", {"text": text}, f"{number}-{count}")
            run = posted["run"]["id"]
            said.append((conversation, run, text))
            while not over.is_set() and ask(token, "GET", f"/v1/runs/{run}").get("status") in ("queued", "running"):
                time.sleep(0.05)
    except Exception as error:
        faults.append(f"chat {number}: {error!r}")


def approve(token):
    try:
        while not over.is_set():
            for request in ask(token, "GET", "/v1/approvals?state=pending&limit=20").get("items", []):
                body = {"decision": "approve", "args_sha256": request["args_sha256"]}
                answer = ask(token, "POST", f"/v1/approvals/{request['id']}/decision", body)
                if "status" not in answer:
                    approved.append(request["id"])
            time.sleep(0.1)
    except Exception as error:
        faults.append(f"approver: {error!r}")


longest = [0.0]


def watch_locks():
    sql = ("select coalesce(max(extract(epoch from clock_timestamp() - waitstart)), 0) from pg_locks l "
           "where not granted and locktype in ('relation', 'tuple', 'transactionid')")
    while not over.is_set():
        try:
            longest[0] = max(longest[0], float(psql(sql)))
        except Exception as error:
            faults.append(f"locks: {error!r}")
        time.sleep(0.1)


def main():
    (folder / "packs/bank").mkdir(parents=True)
    (folder / "packs/bank/agent-pack.yaml").write_text(PACK % (listen(Model), listen(Bank)))
    psql("create role chatelaine login createrole", "postgres")
    # Whoever started this Postgres may have made them.
    for role in ("chatelaine_tenant", "chatelaine_system", "chatelaine_retention"):
        if psql(f"select 1 from pg_roles where rolname = '{role}'", "postgres"):
            psql(f"grant {role} to chatelaine", "postgres")
    psql("create database upgrade owner chatelaine", "postgres")
    old = Replica(OLD, "old")
    command(OLD, "tenant", "add", "acme")
    token = lambda user, role: command(OLD, "token", "--tenant", "acme", "--user", user, "--role", role)
    workers = [threading.Thread(target=chat, args=(token(f"user{n}", "employee"), n)) for n in range(CHATS)]
    approver = token("chief", "chief")
    workers += [threading.Thread(target=approve, args=(approver,)), threading.Thread(target=watch_locks)]
    for worker in workers:
        worker.start()
    time.sleep(PHASE)
    print(f"old alone: {len(said)} messages, {len(approved)} decisions", flush=True)
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
    print(f"old alone on the new schema: {len(said)} messages, {len(approved)} decisions", flush=True)
    new = Replica(NEW, "new")
    old.stop()
    time.sleep(PHASE)
    over.set()
    for worker in workers:
        worker.join()
    # What was acknowledged ends within moments.
    ends = time.time() + 60
    open_runs = "select count(*) from runs where status in ('queued', 'running')"
    going = "select count(*) from approvals where state in ('approved', 'executing')"
    while time.time() < ends and (psql(open_runs), psql(going)) != ("0", "0"):
        time.sleep(0.2)
    status = dict(line.split("|") for line in psql("select id, status from runs").splitlines())
    faults.extend(f"{text}: its run is {status.get(run)}" for _, run, text in said if status.get(run) != "succeeded")
    for conversation, run, text in said:
        there = psql(f"select count(*) from messages where run_id = '{run}' and role = 'user' and parts::text like '%{text}\"%'")
        if there != "1":
            faults.append(f"{text}: {there} messages")
    states = dict(line.split("|") for line in psql("select id, state from approvals").splitlines())
    faults.extend(f"request {one} is {states.get(one)}" for one in approved if states.get(one) != "succeeded")
    faults.extend(f"payment {one} was made {times} times" for one, times in payments.items() if times != 1)
    succeeded = sum(state == "succeeded" for state in states.values())
    if succeeded != len(payments):
        faults.append(f"{succeeded} requests succeeded, {len(payments)} payments were made")
    if longest[0] > 2.5:
        faults.append(f"somebody waited {longest[0]:.1f} s for a lock")
    print(f"{len(said)} messages and {len(approved)} decisions acknowledged, {len(payments)} payments; slowest answer "
          f"{slowest[0]:.2f} s, longest wait for a lock {longest[0]:.2f} s, {refused[0]} answers 503")
    new.stop()
    for fault in faults:
        print("FAULT:", fault)
    return 1 if faults or not said or not approved else 0


if __name__ == "__main__":
    sys.exit(main())
