// How the AI SDK's chat confirms and declines a call, as JSON on standard output.
import { AbstractChat, DefaultChatTransport, lastAssistantMessageIsCompleteWithApprovalResponses } from 'ai';

class Plain {
  status = 'ready';
  error = undefined;
  messages = [];
  pushMessage = (message) => { this.messages = [...this.messages, message]; };
  popMessage = () => { this.messages = this.messages.slice(0, -1); };
  replaceMessage = (at, message) => { this.messages = this.messages.map((old, i) => (i === at ? message : old)); };
  snapshot = (value) => structuredClone(value);
}

class Chat extends AbstractChat {
  constructor(id) {
    super({
      id,
      state: new Plain(),
      transport: new DefaultChatTransport({
        api: `${process.env.URL}/v1/ui/chat`,
        headers: { Authorization: `Bearer ${process.env.TOKEN}` },
        body: { agent: 'bank' },
      }),
      sendAutomaticallyWhen: lastAssistantMessageIsCompleteWithApprovalResponses,
    });
  }
}

const tools = (chat) => chat.messages.flatMap(({ parts }) => parts.filter(({ type }) => type === 'dynamic-tool'));
const text = ({ parts }) => parts.filter(({ type }) => type === 'text').map((part) => part.text).join('\n');

async function run(id, approved) {
  const chat = new Chat(id);
  await chat.sendMessage({ text: 'pay 5.00' });
  const [{ state, approval }] = tools(chat);
  await chat.addToolApprovalResponse({ id: approval.id, approved });
  while (chat.status !== 'ready' || tools(chat)[0].state === 'approval-responded') {
    if (chat.error) throw chat.error;
    await new Promise((go) => { setTimeout(go, 20); });
  }
  const answered = {
    asked: [state, approval.isAutomatic ?? null],
    reason: approval.requestReason,
    tools: tools(chat).map((tool) => tool.state),
    text: text(chat.messages.at(-1)),
    messages: chat.messages.length,
  };
  await chat.sendMessage({ text: 'hello' });
  return { ...answered, next: text(chat.messages.at(-1)) };
}

console.log(JSON.stringify({ yes: await run('chat-yes', true), no: await run('chat-no', false) }));
