"""What the official A2A client sees of this program, as JSON on standard output: `client.py URL TOKEN`."""

import asyncio
import json
import sys
import uuid

import httpx
from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
from a2a.types import (
    CancelTaskRequest, GetExtendedAgentCardRequest, GetTaskRequest, Message, Part, Role, SendMessageRequest, TaskState,
)
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.struct_pb2 import Value

URL, TOKEN = sys.argv[1:]


def for_skill(skill, data=None, text=None):
    parts = []
    if data is not None:
        parts.append(Part(data=ParseDict(data, Value())))
    if text is not None:
        parts.append(Part(text=text))
    message = Message(message_id=str(uuid.uuid4()), role=Role.ROLE_USER, parts=parts)
    request = SendMessageRequest(message=message)
    if skill:
        request.metadata.update({"skillId": skill})
    return request


async def task(client, request):
    async for event in client.send_message(request):
        return event.task


async def refusal(asking):
    try:
        await asking
    except Exception as error:
        return type(error).__name__
    return "not refused"


async def seen(card, http):
    """All that is done with one version of the protocol."""
    client = ClientFactory(ClientConfig(httpx_client=http, streaming=False)).create(card)
    done = await task(client, for_skill("web-search", {"repo": "x"}, "rust async"))
    again = await client.get_task(GetTaskRequest(id=done.id))
    structured = await task(client, for_skill("structured", text="x"))
    failed = await task(client, for_skill("broken", text="x"))
    payment = {"from_account": "current", "to": "acme", "amount": "12.50", "currency": "EUR"}
    waits = await task(client, for_skill("pay", payment))
    stopped = await client.cancel_task(CancelTaskRequest(id=waits.id))
    own = await client.get_extended_agent_card(GetExtendedAgentCardRequest())
    return {
        "done": TaskState.Name(done.status.state),
        "text": done.artifacts[0].parts[0].text,
        "the same again": again == done,
        "structured": MessageToDict(structured.artifacts[0].parts[1].data),
        "failed": [TaskState.Name(failed.status.state), failed.status.message.parts[0].text],
        "waits": TaskState.Name(waits.status.state),
        "stopped": TaskState.Name(stopped.status.state),
        "own skills": [skill.id for skill in own.skills],
        "unknown skill": await refusal(task(client, for_skill("nonsense", text="x"))),
        "unknown task": await refusal(client.get_task(GetTaskRequest(id=str(uuid.uuid4())))),
    }


async def main():
    async with httpx.AsyncClient() as nobody:
        public = await A2ACardResolver(nobody, URL).get_agent_card()
    found = {"public": [skill.id for skill in public.skills]}
    for version in ["1.0", "0.3"]:
        card = type(public)()
        card.CopyFrom(public)
        interfaces = [at for at in public.supported_interfaces if at.protocol_version == version]
        del card.supported_interfaces[:]
        card.supported_interfaces.extend(interfaces)
        async with httpx.AsyncClient(headers={"Authorization": f"Bearer {TOKEN}"}) as http:
            found[version] = await seen(card, http)
    print(json.dumps(found))


asyncio.run(main())
