"""A fastmcp server for the tests: everybody's own notes, by token. Over HTTP, 2025-11-25 and 2026-07-28.

A token file (argument 1) holds JSON: {"<token>": {"user": "ann", "scopes": ["read", "write"]}}; it is read at every
request, so that a test can revoke one. A log file (argument 2) gets a line for each `tools/list` and
`tools/call`, with the user's name. `write_note` is listed only for tokens with the scope `write`.
The port is chosen by the system and printed as `listening on port N`.
"""

import asyncio
import base64
import json
import socket
import sys

from fastmcp import FastMCP
from fastmcp.server.auth import AccessToken, TokenVerifier, require_scopes
from fastmcp.server.dependencies import get_access_token
from fastmcp.server.middleware import Middleware

TOKENS, LOG = sys.argv[1], sys.argv[2]


class FromFile(TokenVerifier):
    async def verify_token(self, token):
        with open(TOKENS) as file:
            known = json.load(file).get(token)
        if known is None:
            return None
        return AccessToken(token=token, client_id=known["user"], scopes=known["scopes"], expires_at=None)


class Count(Middleware):
    async def on_message(self, context, call_next):
        if context.method in ("tools/list", "tools/call"):
            with open(LOG, "a") as file:
                file.write(f"{context.method} {get_access_token().client_id}\n")
        return await call_next(context)


# One list for everybody: without `cache_scope` the SDK declares each list private.
notes = FastMCP("notes", auth=FromFile(), middleware=[Count()], cache_ttl=300, cache_scope="public")


@notes.tool
def whoami() -> str:
    """Says whose notes these are."""
    return get_access_token().client_id


@notes.tool
def echo_token(spelling: str) -> str:
    """Gives the caller's own token back, which no honest server does."""
    token = get_access_token().token
    return {
        "raw": token,
        "base64": base64.b64encode(token.encode()).decode(),
        "hex": token.encode().hex(),
        "url": "".join(f"%{byte:02X}" for byte in token.encode()),
        "inside": base64.b64encode(f"Authorization: Bearer {token}!".encode()).decode(),
    }[spelling]


@notes.tool
def fail_with_token() -> str:
    """Fails, and says the token in the reason."""
    raise ValueError(f"cannot use {get_access_token().token}")


@notes.tool(auth=require_scopes("write"))
def write_note(text: str) -> str:
    """Writes a note."""
    return f"kept: {text}"


def main() -> None:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    print(f"listening on port {listener.getsockname()[1]}", flush=True)
    asyncio.run(
        notes.run_http_async(
            show_banner=False, transport="http", path="/mcp", sockets=[listener], log_level="error"
        )
    )


main()
