"""What LlamaIndex sees of this program, as JSON on standard output."""

import asyncio
import json
import os
import sys

import openai
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike


def llm(model="bank"):
    return OpenAILike(
        model=model,
        api_base=sys.argv[1],
        api_key=os.environ["OPENAI_API_KEY"],
        is_chat_model=True,
        is_function_calling_model=True,
        max_retries=0,
    )


def streamed(question):
    """The whole text, and whether it came in pieces that grow to it."""
    pieces = list(llm().stream_chat([ChatMessage(question)]))
    text = "".join(piece.delta or "" for piece in pieces)
    return [text, len(pieces) > 1 and pieces[-1].message.content == text]


def refusal(ask):
    """How a request fails. LlamaIndex's exceptions are openai's."""
    try:
        ask()
    except openai.NotFoundError as error:
        return ["NotFoundError", error.code]
    return "not refused"


def with_own_tools():
    """A tool of the client is offered; the agent here answers without it."""
    def weather(city: str) -> str:
        """Tells the weather."""
        return "rain"

    model = llm()
    answer = model.chat_with_tools([FunctionTool.from_defaults(weather)], user_msg="How is the weather?")
    return [answer.message.content, model.get_tool_calls_from_response(answer, error_on_no_tool_call=False)]


async def asynchronous():
    answer = await llm().achat([ChatMessage("Again?")])
    return answer.message.content


# One after the other: the model of the test answers in this order.
answer = llm().chat([ChatMessage("How much?")])
print(json.dumps({
    "chat": [answer.message.content, answer.additional_kwargs["total_tokens"]],
    "streamed": streamed("How much?"),
    "tool": llm().chat([ChatMessage("What is a euro?")]).message.content,
    "tool streamed": streamed("What is a euro?"),
    "own tools": with_own_tools(),
    "async": asyncio.run(asynchronous()),
    "no such model": refusal(lambda: llm("gpt-4o").chat([ChatMessage("hi")])),
}))
