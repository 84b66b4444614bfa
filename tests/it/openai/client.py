"""What the official OpenAI client sees of this program, as JSON on standard output."""

import asyncio
import json
import sys

import openai

BASE_URL = sys.argv[1]
QUESTION = [{"role": "user", "content": "How much?"}]


def refusal(ask):
    """How a request fails, as the client tells it."""
    try:
        ask()
    except openai.APIError as error:
        return [type(error).__name__, getattr(error, "status_code", None), error.code, error.param]
    return "not refused"


def whole(client):
    answer = client.chat.completions.create(model="bank", messages=QUESTION)
    choice = answer.choices[0]
    return {
        "content": choice.message.content,
        "finish": choice.finish_reason,
        "tokens": answer.usage.total_tokens,
    }


def streamed(client):
    stream = client.chat.completions.create(
        model="bank", messages=QUESTION, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    choices = [choice for chunk in chunks for choice in chunk.choices]
    texts = [choice.delta.content for choice in choices if choice.delta.content]
    return {
        "content": "".join(texts),
        "finish": choices[-1].finish_reason,
        "tokens": [chunk.usage.total_tokens for chunk in chunks if chunk.usage],
        "pieces": len(texts) > 1,
    }


async def asynchronous():
    async with openai.AsyncOpenAI(base_url=BASE_URL) as client:
        stream = await client.chat.completions.create(model="bank", messages=QUESTION, stream=True)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])


def responses(client):
    """A response, and one after it as a stream."""
    first = client.responses.create(model="bank", input="How much?")
    with client.responses.stream(model="bank", input="More?", previous_response_id=first.id) as stream:
        deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    return [first.output_text, first.usage.total_tokens, "".join(deltas), final.output_text, final.status]


def conversations(client):
    """A conversation of ours, page by page, and one item of it."""
    made = client.conversations.create(items=[], extra_body={"agent": "bank"})
    client.responses.create(model="bank", input="How much?", conversation=made.id)
    items = client.conversations.items
    listed = list(items.list(made.id, limit=1, order="asc", include=["message.output_text.logprobs"]))
    one = items.retrieve(listed[1].id, conversation_id=made.id)
    new = [{"type": "message", "role": "user", "content": "More?"}]
    read = client.conversations.retrieve(made.id)
    return {
        "shape": [made.object, type(read.created_at).__name__, read.metadata],
        "items": [[item.role, item.content[0].type, item.content[0].text] for item in listed],
        "one": one.content[0].text,
        "new": refusal(lambda: items.create(made.id, items=new)),
        "deleted": refusal(lambda: items.delete(listed[0].id, conversation_id=made.id)),
        "gone": refusal(lambda: items.retrieve("msg_1", conversation_id=made.id)),
        "removed": client.conversations.delete(made.id).deleted,
    }


client = openai.OpenAI(base_url=BASE_URL)
create = client.chat.completions.create
tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
print(json.dumps({
    "models": [model.id for model in client.models.list()],
    "model": client.models.retrieve("bank").id,
    "whole": whole(client),
    "streamed": streamed(client),
    "async": asyncio.run(asynchronous()),
    "responses": responses(client),
    "conversations": conversations(client),
    "no such model": refusal(lambda: create(model="gpt-4o", messages=QUESTION)),
    "wrong key": refusal(lambda: openai.OpenAI(base_url=BASE_URL, api_key="wrong").models.list()),
    "forced tools": refusal(
        lambda: create(model="bank", messages=QUESTION, tools=[tool], tool_choice="required")),
    "failed run": refusal(lambda: create(model="bank", messages=QUESTION)),
    "failed response": refusal(lambda: client.responses.create(model="bank", input="How much?")),
    "failed stream": refusal(lambda: list(create(model="bank", messages=QUESTION, stream=True))),
}))
