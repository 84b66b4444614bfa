"""A server for the tests, of fastmcp 2 or 4, whose tool leaves a line behind for each execution.

Arguments: the file of the lines, the transport (`http` or `sse`), and the port, 0 for a free one. The port is printed as
`listening on port N`.
"""

import asyncio
import socket
import sys

import uvicorn
from fastmcp import FastMCP

LEDGER, TRANSPORT, PORT = sys.argv[1], sys.argv[2], int(sys.argv[3])
desk = FastMCP("ledger")


@desk.tool
async def note(n: int) -> str:
    """Notes a number."""
    with open(LEDGER, "a") as file:
        file.write(f"note {n}\n")
    await asyncio.sleep(0.05)
    return "noted"


def main() -> None:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", PORT))
    listener.listen()
    print(f"listening on port {listener.getsockname()[1]}", flush=True)
    path = {"http": "/mcp", "sse": "/sse"}[TRANSPORT]
    app = desk.http_app(path=path, transport=TRANSPORT)
    uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[listener])


main()
