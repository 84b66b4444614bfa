/** Small things that several pages show. */
import { Badge, Button, Callout, Code, DataList, Flex, Heading, Spinner, Text } from '@radix-ui/themes';
import type { UseInfiniteQueryResult } from '@tanstack/react-query';
import { CircleAlert, CircleCheck, Info } from 'lucide-react';
import { type ReactNode, useEffect, useId, useRef, useState } from 'react';
import { Refused } from '../api/client';
import { keepDigits } from '../api/digits';
import { PlainButton } from './PlainButton';
import { nameTexts, valueText } from './values';
import { useTexts } from '../texts/texts';

const TONES = {
  good: { color: 'green', Icon: CircleCheck },
  bad: { color: 'red', Icon: CircleAlert },
  wait: { color: 'amber', Icon: Info },
  plain: { color: 'gray', Icon: Info },
} as const;

/** A sentence that stands out. */
export function Notice({ tone, role, children }: { tone: keyof typeof TONES; role?: 'alert' | 'status'; children: ReactNode }) {
  const { color, Icon } = TONES[tone];
  return (
    <Callout.Root size="1" color={color} role={role}>
      <Callout.Icon><Icon size={16} /></Callout.Icon>
      <Callout.Text>{children}</Callout.Text>
    </Callout.Root>
  );
}

/** What went wrong, and how to try again. The service's own words say more, and are English. */
export function Failure({ error, retry }: { error: Error | null | undefined; retry?: () => void }) {
  const { say, language, nameOf } = useTexts();
  if (!error) return null;
  const inWords = ({ code, message }: Refused) => {
    const words = nameOf('refused', code);
    return language === 'en' || words === code ? message : words;
  };
  const text = error instanceof Refused ? inWords(error) : say('error.network');
  return <Notice tone="bad" role="alert">{text} {retry && <Button type="button" size="1" variant="outline" ml="2" onClick={retry}>{say('retry')}</Button>}</Notice>;
}

/** The colour that a state is shown in; any other is grey. */
const STATES: Record<string, 'green' | 'red' | 'amber'> = Object.fromEntries([
  ...['succeeded', 'ready', 'configured', 'approved', 'allow', 'delivered', 'active', 'live'].map((state) => [state, 'green']),
  ...['failed', 'denied', 'rejected', 'down', 'revoked', 'outcome_unknown', 'lapsed'].map((state) => [state, 'red']),
  ...['pending', 'awaiting_approval', 'awaiting_input', 'executing', 'needs_attention', 'saved', 'running', 'approve', 'connecting', 'unfit'].map((state) => [state, 'amber']),
]);

/** How something stands, in words and a colour. */
export function StateBadge({ state = '', children }: { state?: string; children: ReactNode }) {
  return <Badge className={`state ${state}`} color={STATES[state] ?? 'gray'}>{children}</Badge>;
}

/** In place of what is not there yet: it is on its way, or could not be loaded. */
export function Pending({ query: { error, refetch } }: { query: { error: Error | null; refetch: () => Promise<unknown> } }) {
  return error ? <Failure error={error} retry={() => void refetch()} /> : <Loading />;
}

/** The button for the next page of a list, and why the list could not be loaded. */
export function More({ query: { error, hasNextPage, isFetchingNextPage, fetchNextPage, refetch } }: { query: UseInfiniteQueryResult }) {
  const { say } = useTexts();
  return (
    <>
      {hasNextPage && <div><PlainButton loading={isFetchingNextPage} onClick={() => void fetchNextPage()}>{say('more')}</PlainButton></div>}
      <Failure error={error} retry={() => void refetch()} />
    </>
  );
}

export function Loading() {
  const { say } = useTexts();
  return <Flex className="loading" role="status" align="center" justify="center" gap="2" py="5"><Spinner /> <Text color="gray">{say('loading')}</Text></Flex>;
}

export function Empty({ children }: { children: ReactNode }) {
  return <Text as="p" color="gray" my="4">{children}</Text>;
}

export type Fact = [name: ReactNode, value: ReactNode];

/** Names and what is said of each; on a phone below one another. */
export function Facts({ children }: { children: Fact[] }) {
  return (
    <DataList.Root size="2" className="facts" orientation={{ initial: 'vertical', sm: 'horizontal' }}>
      {children.map(([name, value], at) => (
        <DataList.Item key={at} align="baseline"><DataList.Label minWidth="7rem">{name}</DataList.Label><DataList.Value>{value}</DataList.Value></DataList.Item>
      ))}
    </DataList.Root>
  );
}

/** JSON as a list of names and values, the way a person checks it. Nothing is shortened. `amounts` stand beside their exact values as the reader writes them. */
export function Values({ value, amounts = {} }: { value: unknown; amounts?: Record<string, string> | undefined }) {
  if (Array.isArray(value) && value.length > 0) return <ol className="values">{value.map((item, at) => <li key={at}><Values value={item} /></li>)}</ol>;
  const entries = typeof value === 'object' && value !== null ? Object.entries(value) : [];
  const names = nameTexts(entries.map(([name]) => name));
  if (entries.length > 0) return <Facts>{entries.map(([name, item], at) => [<bdi className="value">{names[at]}</bdi>, Object.hasOwn(amounts, name) ? <span key={name}><Values value={item} /> = <bdi>{amounts[name]}</bdi></span> : <Values key={name} value={item} />])}</Facts>;
  return <Code variant="ghost" className="value">{valueText(value)}</Code>;
}

/** A text that may be JSON; `undefined` where it is none. */
export function parsed(text: string): unknown {
  if (!/^\s*[[{]/.test(text)) return undefined;
  try {
    return JSON.parse(keepDigits(text)) as unknown;
  } catch {
    return undefined;
  }
}

/** Whole seconds until then; below zero it is over. */
export function useSecondsLeft(until: string): number {
  const left = () => Math.ceil((Date.parse(until) - Date.now()) / 1000);
  const [seconds, setSeconds] = useState(left);
  useEffect(() => {
    const timer = setInterval(() => setSeconds(left()), 1000);
    setSeconds(left());
    return () => clearInterval(timer);
  }, [until]);
  return seconds;
}

export function TimeLeft({ until }: { until: string }) {
  const { say } = useTexts();
  const seconds = useSecondsLeft(until);
  if (seconds <= 0) return <span className="time over">{say('time.over')}</span>;
  // Without seconds the minutes are rounded up, so that no time is shown as less than it is.
  const minutes = Math.ceil(seconds / 60);
  const text = seconds >= 3600
    ? say('time.hours', { hours: Math.floor(minutes / 60), minutes: minutes % 60 })
    : `${Math.floor(seconds / 60)}:${String(seconds % 60).padStart(2, '0')}`;
  return <span className="time" title={new Date(until).toLocaleString()}>{say('time.left', { time: text })}</span>;
}

export function Moment({ at }: { at: string }) {
  const { language } = useTexts();
  return <time dateTime={at}>{new Date(at).toLocaleString(language, { dateStyle: 'medium', timeStyle: 'short' })}</time>;
}

/** Asks once more before something is done that cannot be undone. */
export function ConfirmButton({ label, icon, question, onConfirm, disabled = false }: {
  label: string;
  icon?: ReactNode;
  question: string;
  onConfirm: () => void;
  disabled?: boolean;
}) {
  const { say } = useTexts();
  const dialog = useRef<HTMLDialogElement>(null);
  const id = useId();
  const close = () => dialog.current?.close();
  return (
    <>
      <Button type="button" variant="soft" color="red" disabled={disabled} onClick={() => dialog.current?.showModal()}>{icon}{label}</Button>
      <dialog ref={dialog} role="alertdialog" aria-labelledby={id} className="raised">
        <Heading as="h2" size="3" mb="3" id={id}>{question}</Heading>
        <Flex gap="2" justify="end" wrap="wrap">
          <PlainButton onClick={close}>{say('keep')}</PlainButton>
          <Button type="button" color="red" onClick={() => { close(); onConfirm(); }}>{label}</Button>
        </Flex>
      </dialog>
    </>
  );
}
