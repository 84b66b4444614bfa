"""Runs the fastmcp servers beside this file, each in a process of its own that is forked from this one. Importing fastmcp
takes seconds, and here all of them share it.

Prints the path of a socket. Who connects writes the name of a script and its arguments as a line of JSON, and then
reads what the script prints. The script ends with its connection; this process ends with its standard input.
"""

import gc
import json
import os
import runpy
import select
import shutil
import signal
import socket
import sys
import tempfile
import threading

import anyio._backends._asyncio
import fastmcp.server.auth.providers.in_memory
import fastmcp.server.auth.providers.jwt
import fastmcp.server.dependencies
import mcp.server.auth.settings
import uvicorn.lifespan.on
import uvicorn.loops.auto
import uvicorn.protocols.http.auto
import uvicorn.protocols.websockets.auto
from fastmcp import FastMCP

SCRIPTS = ("asks.py", "desk.py", "ledger.py", "notes.py", "oauth.py")


def end_with(connection) -> None:
    while connection.recv(1):
        pass
    os._exit(0)


def run(connection) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    line = b""
    while not line.endswith(b"\n"):
        line += connection.recv(1) or b"\n"
    script, *arguments = json.loads(line)
    if script not in SCRIPTS:
        raise ValueError(f"{script} is none of {SCRIPTS}")
    os.dup2(connection.fileno(), 1)
    os.dup2(connection.fileno(), 2)
    threading.Thread(target=end_with, args=[connection], daemon=True).start()
    sys.argv = [os.path.join(os.path.dirname(__file__), script), *arguments]
    runpy.run_path(sys.argv[0], run_name="__main__")


def import_the_rest() -> None:
    """Some modules are imported by the first server, its first tool and its first application."""
    server = FastMCP("first")

    @server.tool
    def tool(text: str) -> str:
        """A tool with a description."""
        return text

    server.http_app()
    server.http_app(transport="sse")


def main() -> None:
    import_the_rest()
    # The collector of a script has nothing to do with what all of them share.
    gc.freeze()
    # Nobody waits for the scripts.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    folder = tempfile.mkdtemp()
    try:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(os.path.join(folder, "socket"))
        listener.listen()
        print(listener.getsockname(), flush=True)
        while sys.stdin not in (ready := select.select([listener, sys.stdin], [], [])[0]):
            connection, _ = ready[0].accept()
            if os.fork() == 0:
                listener.close()
                return run(connection)
            connection.close()
    finally:
        shutil.rmtree(folder)


main()
