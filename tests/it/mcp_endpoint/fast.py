"""What FastMCP's client sees of the endpoint, as JSON on standard output: `fast.py URL TOKEN`."""

import asyncio
import json
import sys

from fastmcp import Client

URL, TOKEN = sys.argv[1:]


async def main():
    async with Client(URL, auth=TOKEN) as client:
        tools = await client.list_tools()
        rate = "bank__get_exchange_rate"
        good = await client.call_tool(rate, {"from": "EUR", "to": "USD"})
        misfit = await client.call_tool(rate, {"from": 1}, raise_on_error=False)
        try:
            answer = await client.call_tool("bank__send_money", {}, raise_on_error=False)
            unknown = answer.is_error
        except Exception:
            unknown = True
    print(json.dumps({
        "tools": [tool.name for tool in tools],
        "structured": isinstance(good.structured_content, dict),
        "unknown": unknown,
        "misfit": misfit.is_error,
    }))


asyncio.run(main())
