"""A fastmcp server for the tests: a help desk. Speaks both eras, over HTTP (default) or stdio (`--stdio`).

Over HTTP two tokens are known: `reader-token` sees what everybody sees, `writer-token` may also close tickets.
The port is chosen by the system and printed as `listening on port N`.
"""

import asyncio
import socket
import sys

from fastmcp import Context, FastMCP
from fastmcp.server.auth import require_scopes
from fastmcp.server.auth.providers.jwt import StaticTokenVerifier

STDIO = "--stdio" in sys.argv
TOKENS = {
    "reader-token": {"client_id": "reader", "scopes": ["read"]},
    "writer-token": {"client_id": "writer", "scopes": ["read", "write"]},
}
desk = FastMCP("desk", version="1.2.3", auth=None if STDIO else StaticTokenVerifier(tokens=TOKENS))


@desk.tool
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


@desk.tool
def fail(why: str) -> str:
    """Fails."""
    raise ValueError(why)


@desk.tool
async def count(to: int, ctx: Context) -> str:
    """Counts aloud."""
    for n in range(1, to + 1):
        await ctx.report_progress(n, to, f"at {n}")
    return "done"


if not STDIO:

    @desk.tool(auth=require_scopes("write"))
    def close_ticket(ticket: str) -> str:
        """Closes a ticket."""
        return f"closed {ticket}"


def main() -> None:
    if STDIO:
        desk.run(transport="stdio", show_banner=False)
        return
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    print(f"listening on port {listener.getsockname()[1]}", flush=True)
    serving = desk.run_http_async(
        show_banner=False, transport="http", path="/mcp", sockets=[listener], log_level="error"
    )
    asyncio.run(serving)


main()
