import { useCallback, useEffect, useReducer, useRef, useState } from 'react';
import { api, newKey, read, Refused, type Schemas } from '../api/client';
import { invalidate } from '../api/queries';
import { listen, type StreamState } from '../api/stream';
import type { Branch } from './branches';
import { type Change, change, EMPTY, type Message, type Thread } from './thread';

export type Said = { text?: string; attachments?: string[]; replaces?: string } | { menu: string } | { answer: { field: string; value: string } };

export interface OpenConversation {
  thread: Thread;
  conversation: Schemas['Conversation'] | undefined;
  state: StreamState;
  isLoaded: boolean;
  isGone: boolean;
  say: (said: Said) => Promise<void>;
  stop: () => Promise<void>;
  branches: Branch[];
  showBranch: (branch: number) => Promise<void>;
}

/** Follows one conversation. The component is mounted anew for another one. */
export function useConversation(id: string): OpenConversation {
  const [thread, dispatch] = useReducer(change, EMPTY);
  const [conversation, setConversation] = useState<Schemas['Conversation']>();
  const [state, setState] = useState<StreamState>('connecting');
  const [isLoaded, setIsLoaded] = useState(false);
  const [isGone, setIsGone] = useState(false);
  const shownBranch = useLatest(thread.branch);
  const { branches, keep, reload, showBranch } = useBranches(id, dispatch);
  const opened = useRef<PromiseWithResolvers<void>>(undefined);

  useEffect(() => {
    let [isCurrent, wasOpen] = [true, false];
    let close = () => {};
    opened.current = withResolvers();
    const onState = (next: StreamState) => {
      setState(next);
      if (next === 'open') opened.current?.resolve();
      if (next === 'lost' && wasOpen) dispatch({ type: 'interrupted' });
      wasOpen = next === 'open';
    };
    const open = async () => {
      const found = await persist(() => read(api.GET('/v1/conversations/{id}', { params: { path: { id } } })), () => isCurrent);
      if (!found || !isCurrent) return;
      setConversation(found);
      // Listens from here on before the messages are loaded: what comes twice is merged.
      close = listen(`/v1/conversations/${id}/events`, {
        onEvent: (event) => {
          if (event.name === 'title') void invalidate('/v1/conversations');
          // Another tab goes on in another branch.
          if (event.name === 'message' && (event.data as Message).branch !== shownBranch.current) void reload().catch(() => {});
          dispatch({ type: 'event', event });
        },
        onState,
        onGone: () => setIsGone(true),
      }, String(found.last_event));
      const shown = await persist(() => loadShown(id), () => isCurrent);
      if (!shown || !isCurrent) return;
      const { messages } = shown;
      keep(shown);
      setIsLoaded(true);
      const last = messages.findLast((message) => message.run_id)?.run_id;
      const run = last && (await read(api.GET('/v1/runs/{id}', { params: { path: { id: last } } })).catch(() => null));
      if (run && isCurrent) dispatch({ type: 'run', id: run.id, status: run.status, error: run.error, isPartial: true });
    };
    open().catch(() => isCurrent && setIsGone(true));
    return () => {
      isCurrent = false;
      close();
    };
  }, [id, keep, reload, shownBranch]);

  const say = useCallback(async (said: Said) => {
    // A piece of the answer is sent only to those who listen already.
    await Promise.race([opened.current?.promise, new Promise((resolve) => setTimeout(resolve, 5000))]);
    const { message, run } = await postOnce(id, said);
    if (message.branch === shownBranch.current) dispatch({ type: 'messages', messages: [message] });
    else await reload();
    dispatch({ type: 'run', id: run.id, status: run.status, error: run.error, isPartial: false });
  }, [id, reload, shownBranch]);

  const running = Object.keys(thread.active);
  const stop = useCallback(async () => {
    // Whoever stops an answer takes nothing back that waits for approval: that has a button of its own.
    const query = { keep_requests: true };
    await Promise.all(running.map((run) => read(api.POST('/v1/runs/{id}/cancel', { params: { path: { id: run }, query } }))));
  }, [running.join()]);

  return { thread, conversation, state, isLoaded, isGone, say, stop, branches, showBranch };
}

/** The last message of a conversation to which no answer came. Perhaps it arrived, so that it keeps its key when it is sent again. */
const unanswered = new Map<string, { said: string; key: string }>();

async function postOnce(id: string, said: Said) {
  const body = JSON.stringify(said);
  const earlier = unanswered.get(id);
  const key = earlier?.said === body ? earlier.key : newKey();
  unanswered.set(id, { said: body, key });
  const post = async () => {
    try {
      const posted = await read(api.POST('/v1/conversations/{id}/messages', {
        params: { path: { id } }, headers: { 'Idempotency-Key': key }, body: said as Schemas['MessageRequest'],
      }));
      unanswered.delete(id);
      return posted;
    } catch (error) {
      if (error instanceof Refused && error.status < 500) unanswered.delete(id);
      throw error;
    }
  };
  return post().catch((error: unknown) => {
    if (error instanceof Refused) throw error;
    return new Promise((resolve) => setTimeout(resolve, 1000)).then(post);
  });
}

/** The branches of a conversation, and the messages of the one that is shown. */
function useBranches(id: string, dispatch: (change: Change) => void) {
  const [branches, setBranches] = useState<Branch[]>([]);
  const keep = useCallback((shown: Shown) => {
    setBranches(shown.branches);
    dispatch({ type: 'branch', branch: shown.branch, messages: shown.messages });
  }, [dispatch]);
  const reload = useCallback(async () => keep(await loadShown(id)), [id, keep]);
  const showBranch = useCallback(async (branch: number) => {
    await read(api.PATCH('/v1/conversations/{id}', { params: { path: { id } }, body: { branch } }));
    await reload();
  }, [id, reload]);
  return { branches, keep, reload, showBranch };
}

/** The newest value, for listeners that stay. */
function useLatest<T>(value: T) {
  const latest = useRef(value);
  latest.current = value;
  return latest;
}

interface Shown {
  branch: number;
  messages: Message[];
  branches: Branch[];
}

/** What is shown of a conversation: the messages of its active branch. */
async function loadShown(id: string): Promise<Shown> {
  const params = { path: { id } };
  const [conversation, messages, { items: branches }] = await Promise.all([
    read(api.GET('/v1/conversations/{id}', { params })), allMessages(id), read(api.GET('/v1/conversations/{id}/branches', { params })),
  ]);
  return { branch: conversation.branch, messages, branches };
}

async function allMessages(id: string): Promise<Message[]> {
  const found: Message[] = [];
  let after: number | null | undefined = 0;
  while (typeof after === 'number') {
    const query: { after: number; limit: number } = { after, limit: 100 };
    const page: Schemas['MessagePage'] = await read(api.GET('/v1/conversations/{id}/messages', { params: { path: { id }, query } }));
    found.push(...page.items);
    after = page.next;
  }
  return found;
}

/** Tries again while the network is away. */
async function persist<T>(work: () => Promise<T>, isWanted: () => boolean): Promise<T | undefined> {
  while (isWanted()) {
    try {
      return await work();
    } catch (error) {
      if (error instanceof Refused && error.status < 500 && error.status !== 429) throw error;
      await new Promise((resolve) => setTimeout(resolve, 2000));
    }
  }
  return undefined;
}

function withResolvers(): PromiseWithResolvers<void> {
  let [resolve, reject] = [(_: void | PromiseLike<void>) => {}, (_: unknown) => {}];
  const promise = new Promise<void>((yes, no) => {
    [resolve, reject] = [yes, no];
  });
  return { promise, resolve, reject };
}
