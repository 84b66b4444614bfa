"""People who chat, ask for payments, approve them and sign in, at whichever replica answers, with a scripted model and
a bank that notes each payment. Afterwards what was acknowledged is compared with the rows. For tests/upgrade,
tests/cluster and tests/citus.
"""
import http.server
import json
import os
import random
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request

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
    - name: safe
      transport: streamable-http
      url: "%s/mcp"
      accessMode: user-controlled
      userConfig: { fields: [{ name: token, type: secret, headerTemplate: "Bearer {value}" }] }
      toolAccess: { default: public }
"""


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


class Safe(Bank):
    """A server that wants a token."""

    def do_POST(self):
        if not self.headers.get("authorization", "").startswith("Bearer good-"):
            self.body()
            return self.answer(401, "text/plain", "")
        super().do_POST()


def listen(handler):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_address[1]}"


def write_pack(folder):
    folder.mkdir(parents=True)
    (folder / "agent-pack.yaml").write_text(PACK % (listen(Model), listen(Bank), listen(Safe)))


class Service:
    """A program on a database, with its pack in a folder. The addresses of its replicas are in `urls` while they are ready;
    programs may share that list, and a folder."""

    def __init__(self, program, folder, database, urls):
        self.program, self.folder, self.database, self.urls = os.path.abspath(program), folder, database, urls

    def environment(self, port=0):
        return {
            "PATH": os.environ["PATH"], "HOME": str(self.folder), "DATABASE_URL": self.database,
            "CHATELAINE_DATA": str(self.folder / "data"), "CHATELAINE_PACKS": str(self.folder / "packs"),
            "CHATELAINE_LISTEN": f"127.0.0.1:{port}", "CHATELAINE_EGRESS_ALLOW": "127.0.0.1",
            "CHATELAINE_MODEL_TITLES": "off", "CHATELAINE_DRAIN_SECONDS": "1", "CHATELAINE_RUN_LEASE_SECONDS": "5",
            "MCP_CONFIG_ENCRYPTION_KEY": "5e" * 32, "CHATELAINE_REQUESTS_PER_MINUTE": "100000",
            "CHATELAINE_APPROVALS_PER_USER": "1000",
        }

    def command(self, *arguments):
        done = subprocess.run([self.program, *arguments], env=self.environment(), capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def token(self, tenant, user, role):
        """The headers of a user."""
        token = self.command("token", "--tenant", tenant, "--user", user, "--role", role)
        return {"authorization": f"Bearer {token}"}

    def begin(self, tenant, chats, patience=20):
        """People of a new tenant who chat and pay, one who approves, and new ones who sign in."""
        self.command("tenant", "add", tenant)
        key = self.command("tenant", "key", "create", tenant, "frontend", "--frontend", "open-webui").split()[0]
        people = Load(self.urls, patience)
        for number in range(chats):
            people.start(people.chat, self.token(tenant, f"user{number}", "employee"), number)
        people.start(people.approve, self.token(tenant, "chief", "chief"))
        people.start(people.sign_in, key)
        return people


class Replica:
    """A replica that is ready."""

    def __init__(self, service, name):
        self.service, self.name, port = service, name, random.randint(20000, 30000)
        self.url = f"http://127.0.0.1:{port}"
        path = service.folder / f"{name}.log"
        log = open(path, "a")
        self.process = subprocess.Popen([service.program, "serve"], env=service.environment(port), stdout=log, stderr=log)
        began, seen = time.time(), set()
        while True:
            assert self.process.poll() is None, path.read_text()[-2000:]
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
        service.urls.append(self.url)

    def stop(self):
        self.service.urls.remove(self.url)
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(60) == 0, f"{self.name} did not stop in order"
        print(f"{self.name}: stopped", flush=True)


class Load:
    """`urls` are the addresses of the replicas that may be asked; it may change."""

    def __init__(self, urls, patience=20):
        self.urls, self.patience = urls, patience
        self.over, self.faults, self.workers = threading.Event(), [], []
        # What was acknowledged: (conversation, run, text), ids of requests, and names of people.
        self.said, self.approved, self.signed_in = [], [], []
        # How often each status was answered; None: no answer.
        self.statuses, self.slowest = {}, 0.0

    def start(self, function, *arguments):
        def work():
            try:
                while not self.over.is_set():
                    function(*arguments)
            except Exception as error:
                self.faults.append(f"{function.__name__}: {error!r}")

        self.workers.append(threading.Thread(target=work, daemon=True))
        self.workers[-1].start()

    def stop(self):
        self.over.set()
        for worker in self.workers:
            worker.join()

    def send(self, url, headers, method, path, body=None, timeout=30):
        """Asks once. Returns the status and the answer; None when there was none."""
        headers = {"content-type": "application/json", **headers}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url + path, data, headers, method=method)
        began, status, answered = time.time(), None, None
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                status, answered = answer.status, json.load(answer)
        except urllib.error.HTTPError as answer:
            status, answered = answer.code, json.load(answer)
            if status == 503 and not answer.headers.get("retry-after"):
                self.faults.append(f"{method} {path}: 503 without Retry-After")
            if status >= 500 and status != 503:
                self.faults.append(f"{method} {path}: {status} {answered}")
        except (OSError, ValueError):
            status = None
        with lock:
            self.statuses[status] = self.statuses.get(status, 0) + 1
            self.slowest = max(self.slowest, time.time() - began)
        return status, answered

    def ask(self, headers, method, path, body=None):
        """Asks any replica, and again while none answers. Returns the status and the answer."""
        end = time.time() + self.patience
        while time.time() < end:
            status, answer = self.send(random.choice(self.urls), headers, method, path, body)
            if status is not None and status < 500:
                return status, answer
            time.sleep(0.1)
        raise AssertionError(f"nobody answers {method} {path}")

    def chat(self, headers, number):
        """A conversation whose every second message is a payment."""
        conversation = self.ask(headers, "POST", "/v1/conversations", {"agent": "bank"})[1]["id"]
        count = 0
        while not self.over.is_set():
            count += 1
            text = f"{'pay' if count % 2 else 'hello'} {number}-{count}"
            # A repeated message has its key.
            keyed = {**headers, "idempotency-key": f"{number}-{count}"}
            posted = self.ask(keyed, "POST", f"/v1/conversations/{conversation}/messages", {"text": text})[1]
            run = posted["run"]["id"]
            self.said.append((conversation, run, text))
            while not self.over.is_set():
                if self.ask(headers, "GET", f"/v1/runs/{run}")[1]["status"] not in ("queued", "running"):
                    break
                time.sleep(0.05)

    def approve(self, headers):
        for request in self.ask(headers, "GET", "/v1/approvals?state=pending&limit=20")[1].get("items", []):
            body = {"decision": "approve", "args_sha256": request["args_sha256"]}
            status, _ = self.ask(headers, "POST", f"/v1/approvals/{request['id']}/decision", body)
            if status == 200:
                self.approved.append(request["id"])
        time.sleep(0.1)

    def sign_in(self, key):
        """Somebody new comes with a frontend and enters a token."""
        name = f"guest-{len(self.signed_in)}-{random.randrange(10**9)}"
        headers = {"authorization": f"Bearer {key}", "x-openwebui-user-id": name, "x-openwebui-user-name": name}
        fields = {"fields": {"token": f"good-{name}"}}
        status, answer = self.ask(headers, "PUT", "/v1/agents/bank/connections/safe", fields)
        if status == 200:
            self.signed_in.append(name)
        elif status != 409:
            raise AssertionError(f"{status} {answer}")
        time.sleep(0.2)

    def judge(self, psql, may_break=False):
        """Waits until all work has ended, and compares it with what was acknowledged. `psql` answers a query of the
        database. `may_break` says that processes died, so that a run may have failed and an outcome be unknown."""
        ends = time.time() + 120
        open_work = ("select (select count(*) from runs where status in ('queued', 'running'))"
                     " + (select count(*) from approvals where state in ('approved', 'executing'))")
        while time.time() < ends and psql(open_work) != "0":
            time.sleep(0.2)
        rows = lambda sql: dict(line.split("|", 1) for line in psql(sql).splitlines())
        status = rows("select id, status from runs")
        good = ("succeeded", "failed") if may_break else ("succeeded",)
        self.faults.extend(f"{text}: its run is {status.get(run)}" for _, run, text in self.said if status.get(run) not in good)
        texts = rows("select run_id, coalesce(string_agg(parts::text, ' '), '') from messages where role = 'user' and"
                     " run_id is not null group by run_id")
        self.faults.extend(f"{text}: {texts.get(run)}" for _, run, text in self.said if texts.get(run, "").count(f'{text}"') != 1)
        states = rows("select id, state from approvals")
        good = ("succeeded", "outcome_unknown") if may_break else ("succeeded",)
        self.faults.extend(f"request {one} is {states.get(one)}" for one in self.approved if states.get(one) not in good)
        self.faults.extend(f"payment {one} was made {times} times" for one, times in payments.items() if times != 1)
        succeeded = sum(state == "succeeded" for state in states.values())
        unknown = sum(state == "outcome_unknown" for state in states.values())
        if not succeeded <= len(payments) <= succeeded + unknown:
            self.faults.append(f"{succeeded} requests succeeded, {unknown} are unknown, {len(payments)} payments were made")
        names = psql("select user_id from credentials where server = 'safe'")
        self.faults.extend(f"{name} is not signed in" for name in self.signed_in if name not in names)
        failed = sum(one == "failed" for one in status.values())
        return (f"{len(self.said)} messages, {len(self.approved)} decisions and {len(self.signed_in)} sign-ins acknowledged, "
                f"{len(payments)} payments, {unknown} outcomes unknown, {failed} runs failed")
