// Clients that send a request again by themselves when it has failed. Each asks for something on which the model fails
// after it has called a tool; the statuses that they end with, as JSON on standard output.
import { createOpenAI } from '@ai-sdk/openai';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { generateText, streamText } from 'ai';
import OpenAI from 'openai';

const apiKey = process.env.TOKEN;
const baseURL = `${process.env.URL}/v1`;
const sdk = new OpenAI({ maxRetries: 2 });

async function status(ask) {
  try {
    await ask();
  } catch (error) {
    return error.statusCode ?? error.status ?? error.name;
  }
  return 'not refused';
}

/** How a client ends that reads the answer as it comes. */
async function ending(stream) {
  try {
    for await (const part of await stream()) {
      if (part.type === 'error') return 'error';
      if (part.type === 'response.failed') return 'error';
    }
  } catch (error) {
    return 'error';
  }
  return 'success';
}

// Each asks in words of its own, so that only its own attempts are equal.
console.log(JSON.stringify({
  'AI SDK, responses': await status(() =>
    generateText({ model: createOpenAI({ baseURL, apiKey })('bank'), prompt: 'responses: rate?' })),
  'AI SDK, compatible': await status(() =>
    generateText({ model: createOpenAICompatible({ name: 'x', baseURL, apiKey })('bank'), prompt: 'compatible: rate?' })),
  'openai, chat': await status(() =>
    sdk.chat.completions.create({ model: 'bank', messages: [{ role: 'user', content: 'chat: rate?' }] })),
  'openai, responses': await status(() => sdk.responses.create({ model: 'bank', input: 'sdk: rate?' })),
  'AI SDK, compatible, stream': await ending(() => streamText({
    model: createOpenAICompatible({ name: 'x', baseURL, apiKey })('bank'), prompt: 'ai stream: rate?', onError() {},
  }).fullStream),
  'openai, chat, stream': await ending(() => sdk.chat.completions.create({
    model: 'bank', stream: true, messages: [{ role: 'user', content: 'chat stream: rate?' }] })),
  'openai, responses, stream': await ending(() =>
    sdk.responses.create({ model: 'bank', stream: true, input: 'sdk stream: rate?' })),
}));
