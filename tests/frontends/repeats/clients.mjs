// The clients, each as its documentation begins: one question, and the number of attempts is the package's own.
import { spawn } from 'node:child_process';
import { createInterface } from 'node:readline';
import { join } from 'node:path';
import { createOpenAI } from '@ai-sdk/openai';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { ChatOpenAI } from '@langchain/openai';
import { generateText, streamText } from 'ai';
import OpenAI from 'openai';

const aiSdk = (modelOf) => async ({ baseURL, apiKey, model, headers, timeout }, messages, stream) => {
  const call = { model: modelOf({ name: 'x', baseURL, apiKey, headers })(model), messages, allowSystemInMessages: true, ...(timeout && { timeout: 1000 * timeout }) };
  if (!stream) return (await generateText(call)).text;
  let [text, failed] = [''];
  const answer = streamText({ ...call, onError: ({ error }) => (failed = error), onAbort: () => (failed ??= new Error('aborted')) });
  for await (const piece of answer.textStream) text += piece;
  if (failed) throw failed;
  return text;
};

const openai = ({ baseURL, apiKey, headers, timeout }) =>
  new OpenAI({ baseURL, apiKey, defaultHeaders: headers, ...(timeout && { timeout: 1000 * timeout }) });

async function chat(at, messages, stream) {
  const answer = await openai(at).chat.completions.create({ model: at.model, messages, stream });
  if (!stream) return answer.choices[0].message.content;
  let text = '';
  for await (const { choices } of answer) text += choices[0]?.delta.content ?? '';
  return text;
}

async function responses(at, input, stream) {
  const answer = await openai(at).responses.create({ model: at.model, input, stream });
  if (!stream) return answer.output_text;
  let text = '';
  for await (const event of answer) {
    if (event.type === 'response.output_text.delta') text += event.delta;
    if (event.type === 'response.failed' || event.type === 'error') throw new Error(JSON.stringify(event));
  }
  return text;
}

const langChain = (useResponsesApi) => async ({ baseURL, apiKey, model, headers, timeout }, messages, stream) => {
  const agent = new ChatOpenAI({ model, apiKey, useResponsesApi, configuration: { baseURL, defaultHeaders: headers }, ...(timeout && { timeout: 1000 * timeout }) });
  if (!stream) return (await agent.invoke(messages)).text;
  let text = '';
  for await (const piece of await agent.stream(messages)) text += piece.text;
  return text;
};

/** A process that asks on behalf of the Python clients. */
function python(environment) {
  const waiting = new Map();
  let child;
  const start = () => {
    child = spawn(join(import.meta.dirname, environment, 'bin/python'), [join(import.meta.dirname, 'clients.py')], {
      stdio: ['pipe', 'pipe', process.env.DEBUG ? 'inherit' : 'ignore'],
      env: { PATH: process.env.PATH, HOME: process.env.HOME, LITELLM_LOCAL_MODEL_COST_MAP: 'True' },
    });
    createInterface({ input: child.stdout }).on('line', (line) => {
      const { id, text, error } = JSON.parse(line);
      const [resolve, reject] = waiting.get(id);
      waiting.delete(id);
      if (error) reject(Object.assign(new Error(error.message), error));
      else resolve(text);
    });
    child.unref();
  };
  const client = (name) => (at, messages, stream) => new Promise((resolve, reject) => {
    if (!child) start();
    const id = crypto.randomUUID();
    waiting.set(id, [resolve, reject]);
    child.stdin.write(`${JSON.stringify({ id, client: name, at, messages, stream })}\n`);
  });
  return { client, stop: () => child?.kill() };
}

const litellm = python('litellm');
const llama = python('llama');
export const stopClients = () => [litellm, llama].forEach(({ stop }) => stop());

/** By name: who asks `messages` of an agent at `at` and gives back the text of the answer. */
export const CLIENTS = {
  'AI SDK, responses': aiSdk((settings) => createOpenAI(settings)),
  'AI SDK, chat': aiSdk((settings) => createOpenAI(settings).chat),
  'AI SDK, compatible': aiSdk((settings) => createOpenAICompatible(settings)),
  'LangChain JS, chat': langChain(false),
  'LangChain JS, responses': langChain(true),
  'openai-node, chat': chat,
  'openai-node, responses': responses,
  'openai-python, chat': litellm.client('chat'),
  'openai-python, responses': litellm.client('responses'),
  'LlamaIndex, OpenAILike': llama.client('openai_like'),
  'LlamaIndex, responses': llama.client('llama_responses'),
  LiteLLM: litellm.client('litellm'),
  'LiteLLM, num_retries': litellm.client('litellm_retries'),
  'LiteLLM, Router': litellm.client('litellm_router'),
};
