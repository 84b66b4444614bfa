"""A fastmcp server that is its own authorization server, as fastmcp has it for tests: clients register themselves, and
everybody is let in. The port is chosen by the system and printed as `listening on port N`."""

import asyncio
import socket

from fastmcp import FastMCP
from fastmcp.server.auth.providers.in_memory import InMemoryOAuthProvider
from mcp.server.auth.settings import ClientRegistrationOptions, RevocationOptions


def main() -> None:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    port = listener.getsockname()[1]
    auth = InMemoryOAuthProvider(
        base_url=f"http://127.0.0.1:{port}",
        client_registration_options=ClientRegistrationOptions(enabled=True, valid_scopes=["notes"]),
        revocation_options=RevocationOptions(enabled=True),
        required_scopes=["notes"],
    )
    notes = FastMCP("notes", auth=auth)

    @notes.tool
    def hello() -> str:
        """Says hello."""
        return "hello"

    print(f"listening on port {port}", flush=True)
    asyncio.run(
        notes.run_http_async(
            show_banner=False, transport="http", path="/mcp", sockets=[listener], log_level="error"
        )
    )


main()
