// A request whose answer takes longer than the client waits; the client sends it again by itself.
import OpenAI from 'openai';

const client = new OpenAI({ timeout: 1000, maxRetries: 5 });
const response = await client.responses.create({ model: 'bank', input: 'hi' });
console.log(JSON.stringify(response.output_text));
