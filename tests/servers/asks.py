"""A fastmcp server for the tests that asks in the middle of a call, as the revisions before 2026-07-28 do: over HTTP with
SSE, which only they know.

The port is chosen by the system and printed as `listening on port N`.
"""

import asyncio
import socket

from fastmcp import Context, FastMCP

desk = FastMCP("desk", version="1.2.3")


@desk.tool
async def book(ctx: Context) -> str:
    """Books a place."""
    answer = await ctx.elicit("For how many?", response_type=int)
    return f"{answer.action} {getattr(answer, 'data', None)}"


def main() -> None:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    print(f"listening on port {listener.getsockname()[1]}", flush=True)
    asyncio.run(
        desk.run_http_async(show_banner=False, transport="sse", path="/sse", sockets=[listener], log_level="error")
    )


main()
