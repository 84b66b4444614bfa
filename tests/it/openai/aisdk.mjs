// What the AI SDK sees of this program through its providers, as JSON on standard output.
import { createOpenAI } from '@ai-sdk/openai';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { generateText, streamText } from 'ai';

const apiKey = process.env.TOKEN;
const baseURL = `${process.env.URL}/v1`;
// The default of this provider is the Responses API.
const responses = createOpenAI({ baseURL, apiKey })('bank');
const compatible = createOpenAICompatible({ name: 'chatelaine', baseURL, apiKey })('bank');
const user = (content) => ({ role: 'user', content });

async function whole(model) {
  const result = await generateText({ model, prompt: 'How much?' });
  return [result.text, result.finishReason, result.usage.totalTokens];
}

async function streamed(model, messages) {
  const result = streamText({ model, messages });
  return { text: await result.text, said: (await result.response).messages };
}

async function refusal(model) {
  try {
    await generateText({ model, prompt: 'hi', maxRetries: 0 });
  } catch (error) {
    return [error.name, error.statusCode, error.isRetryable && error.responseHeaders['x-should-retry'] !== 'false'];
  }
  return 'not refused';
}

const first = await generateText({ model: responses, messages: [user('one')] });
const seen = { responses: [first.text, first.finishReason, first.usage.totalTokens] };
const chat = [user('one'), ...first.response.messages, user('two')];
const second = await streamed(responses, chat);
seen['responses streamed'] = second.text;
const third = await generateText({ model: responses, messages: [...chat, ...second.said, user('three')] });
seen['responses continued'] = third.text;
seen.compatible = await whole(compatible);
seen['compatible streamed'] = (await streamed(compatible, [user('How much?')])).text;
seen.failed = await refusal(responses);
seen['no such model'] = await refusal(createOpenAI({ baseURL, apiKey })('gpt-4o'));
console.log(JSON.stringify(seen));
