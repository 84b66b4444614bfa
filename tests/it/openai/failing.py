"""LlamaIndex with its own repetitions: how it ends when the model fails after a call, as JSON on standard output."""

import json
import os
import sys

import openai
from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike

llm = OpenAILike(
    model="bank",
    api_base=sys.argv[1],
    api_key=os.environ["OPENAI_API_KEY"],
    is_chat_model=True,
    max_retries=3,
)
try:
    llm.chat([ChatMessage("rate?")])
    print(json.dumps("not refused"))
except openai.APIStatusError as error:
    print(json.dumps([error.status_code, error.code]))
