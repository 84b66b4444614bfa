/** Server-sent events with an `Authorization` header, which `EventSource` cannot send. Reconnects by itself. */
import { authorization, credential, refusal } from './client';
import { keepDigits } from './digits';

export interface StreamEvent {
  name: string;
  data: unknown;
}

export type StreamState = 'connecting' | 'open' | 'lost';

export interface Listener {
  onEvent: (event: StreamEvent) => void;
  onState: (state: StreamState) => void;
  /** The thing is not there, or the caller may not listen to it. */
  onGone?: () => void;
}

/** A server says every 15 seconds that it is there; silence of this length is a lost connection. */
const SILENCE = 40_000;
const MAX_WAIT = 15_000;

/** Listens until the function that it returns is called. */
export function listen(path: string, listener: Listener, lastId = ''): () => void {
  const ended = new AbortController();
  void keepListening(path, listener, lastId, ended.signal);
  return () => ended.abort();
}

async function keepListening(path: string, listener: Listener, lastId: string, ended: AbortSignal) {
  let wait = 500;
  let id = lastId;
  let isRenewed = false;
  listener.onState('connecting');
  while (!ended.aborted) {
    const attempt = new AbortController();
    const abort = () => attempt.abort();
    ended.addEventListener('abort', abort);
    window.addEventListener('offline', abort);
    let timer = setTimeout(abort, SILENCE);
    try {
      const headers: Record<string, string> = { ...authorization(), Accept: 'text/event-stream' };
      if (id) headers['Last-Event-ID'] = id;
      const response = await fetch(path, { headers, signal: attempt.signal, cache: 'no-store' });
      if (response.status === 401 && !isRenewed && (await credential.renew())) {
        isRenewed = true;
        continue;
      }
      if (response.status === 401 || response.status === 403 || response.status === 404) {
        const gone = refusal(response.status, await response.json().catch(() => null));
        listener.onState('lost');
        if (gone.status !== 401) listener.onGone?.();
        return;
      }
      if (!response.ok || !response.body) throw refusal(response.status, null);
      wait = 500;
      isRenewed = false;
      listener.onState('open');
      await readEvents(response.body, () => {
        clearTimeout(timer);
        timer = setTimeout(abort, SILENCE);
      }, (eventId, event) => {
        if (eventId) id = eventId;
        if (!ended.aborted) listener.onEvent(event);
      });
    } catch {
      // The network, or the server, is away for a while: the loop tries again.
    } finally {
      clearTimeout(timer);
      ended.removeEventListener('abort', abort);
      window.removeEventListener('offline', abort);
    }
    if (ended.aborted) return;
    listener.onState('lost');
    await pause(wait, ended);
    wait = Math.min(wait * 2, MAX_WAIT);
  }
}

/** Calls `onEvent` for each event of the stream, and `onPiece` whenever something arrives. */
async function readEvents(body: ReadableStream<Uint8Array>, onPiece: () => void, onEvent: (id: string, event: StreamEvent) => void) {
  const reader = body.pipeThrough(new TextDecoderStream() as ReadableWritablePair<string, Uint8Array>).getReader();
  let buffer = '';
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    onPiece();
    buffer += value;
    const blocks = buffer.split('\n\n');
    buffer = blocks.pop() ?? '';
    for (const block of blocks) {
      let [id, name, data] = ['', '', ''];
      for (const line of block.split('\n')) {
        if (line.startsWith('id: ')) id = line.slice(4);
        if (line.startsWith('event: ')) name = line.slice(7);
        if (line.startsWith('data: ')) data += line.slice(6);
      }
      if (name && data) onEvent(id, { name, data: JSON.parse(keepDigits(data)) as unknown });
    }
  }
}

/** Waits, but not longer than until the network is back. */
function pause(time: number, ended: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const done = () => {
      clearTimeout(timer);
      window.removeEventListener('online', done);
      ended.removeEventListener('abort', done);
      resolve();
    };
    const timer = setTimeout(done, time);
    window.addEventListener('online', done);
    ended.addEventListener('abort', done);
  });
}
