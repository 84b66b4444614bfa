// Clients that send a request again by themselves when it has failed. Each asks for something on which the model fails
// after it has called a tool; the statuses that they end with, as JSON on standard output.
import { createOpenAI } from '@ai-sdk/openai';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { generateText } from 'ai';
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

// Each asks in words of its own, so that only its own attempts are equal.
console.log(JSON.stringify({
  'AI SDK, responses': await status(() =>
    generateText({ model: createOpenAI({ baseURL, apiKey })('bank'), prompt: 'responses: rate?' })),
  'AI SDK, compatible': await status(() =>
    generateText({ model: createOpenAICompatible({ name: 'x', baseURL, apiKey })('bank'), prompt: 'compatible: rate?' })),
  'openai, chat': await status(() =>
    sdk.chat.completions.create({ model: 'bank', messages: [{ role: 'user', content: 'chat: rate?' }] })),
  'openai, responses': await status(() => sdk.responses.create({ model: 'bank', input: 'sdk: rate?' })),
}));
