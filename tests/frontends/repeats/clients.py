"""Asks on behalf of the test: a request in each line of standard input, its answer in a line of standard output."""

import contextlib
import importlib
import json
import sys
import threading

out, sys.stdout = sys.stdout, sys.stderr
lock = threading.Lock()

# What is in this environment; threads that import at the same time see halves of modules.
for package in ("openai", "litellm", "llama_index.llms.openai", "llama_index.llms.openai_like"):
    with contextlib.suppress(ImportError):
        importlib.import_module(package)


def settings(at, timeout="timeout"):
    return {"default_headers": at["headers"]} | ({timeout: at["timeout"]} if "timeout" in at else {})


def sdk(at):
    import openai

    return openai.OpenAI(base_url=at["baseURL"], api_key=at["apiKey"], **settings(at))


def chat(at, messages, stream):
    answer = sdk(at).chat.completions.create(model=at["model"], messages=messages, stream=stream)
    return joined(answer) if stream else answer.choices[0].message.content


def joined(chunks):
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


def responses(at, messages, stream):
    answer = sdk(at).responses.create(model=at["model"], input=messages, stream=stream)
    if not stream:
        return answer.output_text
    text = ""
    for event in answer:
        if event.type in ("response.failed", "error"):
            raise RuntimeError(event)
        text += event.delta if event.type == "response.output_text.delta" else ""
    return text


def llama(kind):
    def ask(at, messages, stream):
        from llama_index.core.llms import ChatMessage
        from llama_index.llms.openai import OpenAIResponses
        from llama_index.llms.openai_like import OpenAILike

        options = {"model": at["model"], "api_base": at["baseURL"], "api_key": at["apiKey"], **settings(at)}
        if kind == "like":
            llm = OpenAILike(is_chat_model=True, **options)
        else:
            llm = OpenAIResponses(context_window=8000, **options)
        asked = [ChatMessage(message["content"], role=message["role"]) for message in messages]
        if stream:
            return "".join(piece.delta or "" for piece in llm.stream_chat(asked))
        return llm.chat(asked).message.content

    return ask


def litellm(**more):
    def ask(at, messages, stream):
        import litellm

        options = {"extra_headers": at["headers"]} | ({"timeout": at["timeout"]} if "timeout" in at else {})
        answer = litellm.completion(model=f"openai/{at['model']}", api_base=at["baseURL"], api_key=at["apiKey"],
                                    messages=messages, stream=stream, **options, **more)
        return joined(answer) if stream else answer.choices[0].message.content

    return ask


def litellm_router(at, messages, stream):
    import litellm

    place = {"model": f"openai/{at['model']}", "api_base": at["baseURL"], "api_key": at["apiKey"],
             "extra_headers": at["headers"]} | ({"timeout": at["timeout"]} if "timeout" in at else {})
    names = ["agent", "the same agent"]
    router = litellm.Router(model_list=[{"model_name": name, "litellm_params": place} for name in names],
                            fallbacks=[{"agent": ["the same agent"]}])
    answer = router.completion(model="agent", messages=messages, stream=stream)
    return joined(answer) if stream else answer.choices[0].message.content


CLIENTS = {
    "chat": chat,
    "responses": responses,
    "openai_like": llama("like"),
    "llama_responses": llama("responses"),
    "litellm": litellm(),
    "litellm_retries": litellm(num_retries=3),
    "litellm_router": litellm_router,
}


def serve(request):
    answer = {"id": request["id"]}
    try:
        answer["text"] = CLIENTS[request["client"]](request["at"], request["messages"], request["stream"])
    except Exception as error:
        status = getattr(error, "status_code", None)
        answer["error"] = {"name": type(error).__name__, "message": str(error)[:500], "status": status}
    with lock:
        print(json.dumps(answer), file=out, flush=True)


for line in sys.stdin:
    threading.Thread(target=serve, args=[json.loads(line)], daemon=True).start()
