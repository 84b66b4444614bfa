"""A misbehaving stdio server for the tests, without any library. Speaks the older era.

Arguments, in any order, say how it behaves:
  silent      says nothing to what it does not know, `server/discover` above all
  mortal      dies of `server/discover`
  chatty      prints lines that are no messages
  doomed      writes $PROBE_SECRET to standard error and ends at once
  frail       shakes hands and ends when its tools are asked for
  stubborn    starts a child, writes both ids into the ledger, and then neither speaks nor ends when asked to
  crlf        ends its lines as Windows does
  greedy      asks for samples without end when its tools were listed, and reads nothing any more
  noisy       writes a hundred long lines in a second to standard error, again and again, and lines that are no
              messages, when its tools were listed
  curious     has the tools `ask`, which asks the user for a name; `ask_late`, which does so when the next request is
              there, too; and `forget`, which is never answered
Its tool `note` writes its number into the ledger. Its tool `refuse`, which it does not list, is answered with an error that has no id.
"""

import json
import os
import resource
import signal
import subprocess
import sys
import time

MODES = set(sys.argv[1:])
LATER = []
FORGOTTEN = {}
TOOLS = ["environment", "limits", "die", "flood", "spawn", "sleep", "echo", "note"]


def say(message):
    sys.stdout.write(json.dumps(message, ensure_ascii=False) + ("\r\n" if "crlf" in MODES else "\n"))
    sys.stdout.flush()


def count(what):
    """Every execution leaves a line behind."""
    ledger = os.environ.get("PROBE_LEDGER")
    if ledger:
        with open(ledger, "a") as file:
            file.write(what + "\n")


def text(value):
    return {"content": [{"type": "text", "text": value}]}


def call(name, arguments):
    if name == "note":
        count(f"note {arguments['n']}")
        time.sleep(0.05)
        return text("noted")
    count(name)
    if name == "environment":
        return text(json.dumps(dict(os.environ)))
    if name == "limits":
        names = ["RLIMIT_CORE", "RLIMIT_NOFILE", "RLIMIT_DATA"]
        limits = {name: resource.getrlimit(getattr(resource, name))[1] for name in names}
        with open("/proc/self/status") as status:
            limits["NoNewPrivs"] = next(line.split()[1] for line in status if line.startswith("NoNewPrivs"))
        return text(json.dumps(limits))
    if name == "die":
        os._exit(3)
    if name == "flood":
        sys.stdout.write("x" * (9 * 1024 * 1024) + "\n")
        sys.stdout.flush()
        return text("too late")
    if name == "spawn":
        child = subprocess.Popen(["sleep", "600"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        return text(str(child.pid))
    if name == "sleep":
        time.sleep(600)
    if name == "ask":
        return text(json.dumps(ask(arguments)))
    if name == "ask_late":
        LATER.append(sys.stdin.readline())
        return text(json.dumps(ask(arguments)))
    if name == "forget":
        return FORGOTTEN
    if name == "refuse":
        say({"jsonrpc": "2.0", "id": None, "error": {"code": arguments["code"], "message": "not understood"}})
        return FORGOTTEN
    return text(json.dumps(arguments, ensure_ascii=False))


def ask(arguments):
    schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    params = {"message": f"Who is {arguments.get('who')}?", "requestedSchema": schema}
    say({"jsonrpc": "2.0", "id": "q1", "method": "elicitation/create", "params": params})
    while True:
        message = json.loads(sys.stdin.readline())
        if message.get("id") == "q1":
            return message["result"]


def lines():
    while True:
        line = LATER.pop() if LATER else sys.stdin.readline()
        if not line:
            return
        yield line


def answer(request):
    method, params = request["method"], request.get("params") or {}
    if method == "initialize":
        count("initialize")
        return {
            "protocolVersion": "2025-06-18",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "probe", "version": "0"},
        }
    if method == "ping":
        return {}
    if method == "tools/list":
        curious = ["ask", "ask_late", "forget"] if "curious" in MODES else []
        return {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in TOOLS + curious]}
    if method == "tools/call":
        return call(params["name"], params.get("arguments"))
    if method == "server/discover" and "mortal" in MODES:
        os._exit(1)
    return None


def ask_without_end():
    number = 0
    while True:
        number += 1
        try:
            say({"jsonrpc": "2.0", "id": f"s{number}", "method": "sampling/createMessage", "params": {}})
        except BrokenPipeError:
            os._exit(0)
        if number % 1000 == 0:
            count("thousand")


def make_noise():
    while True:
        for number in range(100):
            print(f"NOISE {number} \033[31m" + "x" * 4000, file=sys.stderr, flush=True)
        print("no message", flush=True)
        time.sleep(1)


def be_stubborn():
    for signal_to_ignore in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signal_to_ignore, signal.SIG_IGN)
    child = subprocess.Popen(["sleep", "600"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    count(f"pids {os.getpid()} {child.pid}")
    time.sleep(600)


def main():
    count("start")
    if "stubborn" in MODES:
        be_stubborn()
    if "doomed" in MODES:
        for number in range(9):
            print("early", number, file=sys.stderr)
        print("\033[1;31merror\033[0m: cannot start with key", os.environ["PROBE_SECRET"], file=sys.stderr)
        print("x" * 900, file=sys.stderr)
        print("\nRun 'probe --help' for more", file=sys.stderr, flush=True)
        return
    for line in lines():
        if "chatty" in MODES:
            print("hello from the probe")
        request = json.loads(line)
        if "id" not in request:
            continue
        if "frail" in MODES and request["method"] == "tools/list":
            os._exit(3)
        result = answer(request)
        if result is FORGOTTEN:
            continue
        if result is not None:
            say({"jsonrpc": "2.0", "id": request["id"], "result": result})
            if "greedy" in MODES and request["method"] == "tools/list":
                ask_without_end()
            if "noisy" in MODES and request["method"] == "tools/list":
                make_noise()
        elif "silent" not in MODES:
            say({"jsonrpc": "2.0", "id": request["id"], "error": {"code": -32601, "message": "Method not found"}})


main()
