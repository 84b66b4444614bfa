"""What LangChain and the command line tool llm see of this program, as JSON on standard output."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import openai
from langchain_openai import ChatOpenAI

BASE_URL = sys.argv[1]


def chat(**options):
    return ChatOpenAI(model="bank", base_url=BASE_URL, max_retries=0, **options)


def refusal(ask):
    """How a request fails. LangChain's exceptions are openai's."""
    try:
        ask()
    except openai.NotFoundError as error:
        return ["NotFoundError", error.code]
    return "not refused"


def llm():
    """A prompt, and another one in the same conversation."""
    with tempfile.TemporaryDirectory() as folder:
        models = f"- {{ model_id: agent, model_name: bank, api_base: '{BASE_URL}', api_key_name: agent }}\n"
        Path(folder, "extra-openai-models.yaml").write_text(models)
        environment = os.environ | {"LLM_USER_PATH": folder}
        command = [str(Path(sys.executable).parent / "llm"), "prompt", "--key", os.environ["OPENAI_API_KEY"]]

        def run(*arguments):
            done = subprocess.run([*command, *arguments], env=environment, capture_output=True, text=True)
            return (done.stdout + done.stderr).strip()

        return [run("-m", "agent", "three"), run("-c", "four")]


answer = chat().invoke("How much?")
follow_up = [("user", "How much?"), ("ai", answer.content), ("user", "More?")]
print(json.dumps({
    "invoke": [answer.content, answer.usage_metadata["total_tokens"]],
    "continued": chat().invoke(follow_up).content,
    "stream": "".join(chunk.content for chunk in chat().stream("How much?")),
    "batch": [answer.content for answer in chat().batch(["one", "two"])],
    "responses": chat(use_responses_api=True).invoke("How much?").text,
    "responses streamed": "".join(chunk.text for chunk in chat(use_responses_api=True).stream("How much?")),
    "no such model": refusal(lambda: ChatOpenAI(model="gpt-4o", base_url=BASE_URL, max_retries=0).invoke("hi")),
    "llm": llm(),
}))
