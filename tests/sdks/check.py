"""Reads model requests that the tests sent with the types of the official SDKs: every member must be one that they know,
with a value that they allow.

usage: check.py FOLDER, with one file for each kind of provider, a request a line
"""

import collections.abc
import json
import pathlib
import sys
import types
import typing

import pydantic
import typing_extensions
from anthropic.types import message_create_params as anthropic
from google.genai import types as google
from openai.types.chat import completion_create_params as openai

# What other makers of models want in OpenAI's protocol: DeepSeek and Kimi, and Gemini behind it.
FOREIGN = {"reasoning_content", "extra_content"}
# Models before Opus 4.7 take it. One that refuses it is asked again without, and from then on.
OLD = {"anthropic.temperature"}


def faults(value, kind, at):
    """What is wrong with a value of a type, as lines; none when it fits."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if kind in (typing.Any, object):
        return []
    if origin in (typing.Annotated, typing.Required, typing.NotRequired, typing_extensions.Required):
        return faults(value, parts[0], at)
    if isinstance(kind, typing_extensions.TypeAliasType):
        return faults(value, kind.__value__, at)
    if origin in (typing.Union, types.UnionType):
        return faults_of_union(value, parts, at)
    if origin is typing.Literal:
        return [] if value in parts else [f"{at}: {value!r} is none of {parts}"]
    if typing.is_typeddict(kind) or typing_extensions.is_typeddict(kind):
        return faults_of_object(value, kind, at)
    if origin in (dict, collections.abc.Mapping):
        if not isinstance(value, dict):
            return [f"{at}: is no object"]
        return [fault for key, part in value.items() for fault in faults(part, parts[1], f"{at}.{key}")]
    if kind in (str, bool, int, float, type(None)):
        fits = isinstance(value, (int, float) if kind is float else kind)
        fits = fits and not (isinstance(value, bool) and kind in (int, float))
        return [] if fits else [f"{at}: {value!r:.60} is no {kind.__name__}"]
    if kind is dict:
        return [] if isinstance(value, dict) else [f"{at}: is no object"]
    if parts:
        # A list, however the SDK calls it.
        if not isinstance(value, list):
            return [f"{at}: is no list"]
        return [fault for number, part in enumerate(value) for fault in faults(part, parts[0], f"{at}[{number}]")]
    if isinstance(kind, type):
        # Bytes and files, which JSON does not carry.
        return [f"{at}: cannot be a {kind.__name__}"]
    raise TypeError(f"{at}: no rule for {kind!r}")


def faults_of_union(value, kinds, at):
    found = [faults(value, kind, at) for kind in kinds]
    if [] in found:
        return []
    # The kind that the value says it is tells most; else the one with the fewest faults.
    named = [each for each in found if not any(": 'type'" in one or ".type: " in one or ".role: " in one for one in each)]
    return min(named or found, key=len)


def faults_of_object(value, kind, at):
    if not isinstance(value, dict):
        return [f"{at}: is no object"]
    members = typing_extensions.get_type_hints(kind, include_extras=True)
    missing = [f"{at}.{name}: is missing" for name in kind.__required_keys__ if name not in value]
    known = {*members, *FOREIGN}
    unknown = [f"{at}.{name}: is not known" for name in value if name not in known and f"{at}.{name}" not in OLD]
    inner = [
        fault for name, part in value.items() if name in members for fault in faults(part, members[name], f"{at}.{name}")
    ]
    return missing + unknown + inner


def faults_of_gemini(body):
    """Google's SDK has models instead of types, for the parts of a request."""
    models = {
        "contents": list[google.Content],
        "systemInstruction": google.Content,
        "tools": list[google.Tool],
        "generationConfig": google.GenerationConfig,
    }
    found = [f"gemini.{name}: is not known" for name in body if name not in models]
    for name, part in body.items():
        if name not in models:
            continue
        try:
            pydantic.TypeAdapter(models[name]).validate_python(part)
        except pydantic.ValidationError as error:
            found += [f"gemini.{name}.{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()]
    return found


def check(kind, body):
    if kind == "Anthropic":
        return faults(body, anthropic.MessageCreateParamsStreaming, "anthropic")
    if kind == "Gemini":
        return faults_of_gemini(body)
    kind = openai.CompletionCreateParamsStreaming if body.get("stream") else openai.CompletionCreateParamsNonStreaming
    return faults(body, kind, "openai")


def main():
    failed = 0
    # Ollama's own protocol is in none of these SDKs.
    files = [file for file in sorted(pathlib.Path(sys.argv[1]).iterdir()) if file.name != "Ollama"]
    if not files:
        sys.exit("sdks: no request was kept")
    for file in files:
        lines = set(file.read_text().splitlines())
        told = {}
        for line in sorted(lines):
            for fault in check(file.name, json.loads(line)):
                told.setdefault("".join(c for c in fault if not c.isdigit()), (fault, line))
        print(f"sdks: {file.name}: {len(lines)} requests, {len(told)} kinds of faults")
        for fault, line in told.values():
            print(f"  {fault}\n    in {line[:200]}")
        failed += len(told)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
