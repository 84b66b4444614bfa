"""What the official Python client sees of the endpoint in both eras, as JSON on standard output: `client.py URL TOKEN`."""

import asyncio
import json
import sys

import httpx2
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client

URL, TOKEN = sys.argv[1:]
RATE = "bank__get_exchange_rate"


async def look(mode):
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with httpx2.AsyncClient(headers=headers, timeout=20) as http:
        async with Client(streamable_http_client(URL, http_client=http), mode=mode) as client:
            listed = await client.list_tools()
            good = await client.call_tool(RATE, {"from": "EUR", "to": "USD"})
            misfit = await client.call_tool(RATE, {"from": 1})
            try:
                unknown = (await client.call_tool("bank__send_money", {})).is_error
            except Exception:
                unknown = True
    return {
        "tools": [tool.name for tool in listed.tools],
        "structured": isinstance(good.structured_content, dict) and not good.is_error,
        "unknown": unknown,
        "misfit": misfit.is_error,
    }


async def main():
    seen = [await look("legacy"), await look("2026-07-28")]
    assert seen[0] == seen[1], seen
    print(json.dumps(seen[0]))


asyncio.run(main())
