/** Small things that several pages show. */
import type { UseInfiniteQueryResult } from '@tanstack/react-query';
import { type ReactNode, useEffect, useState } from 'react';
import { Refused } from '../api/client';
import { useTexts } from '../texts/texts';

/** What went wrong, and how to try again. */
export function Failure({ error, retry }: { error: Error | null | undefined; retry?: () => void }) {
  const { say } = useTexts();
  if (!error) return null;
  const text = error instanceof Refused ? error.message : say('error.network');
  return (
    <p className="failure" role="alert">
      {text} {retry && <button type="button" className="quiet" onClick={retry}>{say('retry')}</button>}
    </p>
  );
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
      {hasNextPage && <div><button type="button" disabled={isFetchingNextPage} onClick={() => void fetchNextPage()}>{say('more')}</button></div>}
      <Failure error={error} retry={() => void refetch()} />
    </>
  );
}

export function Loading() {
  const { say } = useTexts();
  return <p className="loading" role="status">{say('loading')}</p>;
}

export function Empty({ children }: { children: ReactNode }) {
  return <p className="empty">{children}</p>;
}

/** JSON as a list of names and values, the way a person checks it. Nothing is shortened. */
export function Values({ value }: { value: unknown }) {
  if (Array.isArray(value))
    return <ol className="values">{value.map((item, at) => <li key={at}><Values value={item} /></li>)}</ol>;
  if (typeof value === 'object' && value !== null) {
    const entries = Object.entries(value);
    if (entries.length === 0) return <code className="value">{'{}'}</code>;
    return (
      <dl className="values">
        {entries.map(([name, item]) => (
          <div key={name}><dt>{name}</dt><dd><Values value={item} /></dd></div>
        ))}
      </dl>
    );
  }
  return <code className="value">{typeof value === 'string' ? value : JSON.stringify(value)}</code>;
}

/** A text that may be JSON: laid out when it is. */
export function TextOrValues({ text }: { text: string }) {
  const value = parsed(text);
  return value === undefined ? <pre className="plain">{text}</pre> : <Values value={value} />;
}

function parsed(text: string): unknown {
  if (!/^\s*[[{]/.test(text)) return undefined;
  try {
    return JSON.parse(text) as unknown;
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
  const [minutes, rest] = [Math.floor(seconds / 60), String(seconds % 60).padStart(2, '0')];
  const text = minutes >= 60 ? say('time.hours', { hours: Math.floor(minutes / 60), minutes: minutes % 60 }) : `${minutes}:${rest}`;
  return <span className="time" title={new Date(until).toLocaleString()}>{say('time.left', { time: text })}</span>;
}

export function Moment({ at }: { at: string }) {
  const { language } = useTexts();
  return <time dateTime={at}>{new Date(at).toLocaleString(language, { dateStyle: 'medium', timeStyle: 'short' })}</time>;
}

/** Asks once more before something is done that cannot be undone. */
export function ConfirmButton({ label, question, onConfirm, disabled = false }: {
  label: string;
  question: string;
  onConfirm: () => void;
  disabled?: boolean;
}) {
  const { say } = useTexts();
  const [isAsking, setIsAsking] = useState(false);
  if (!isAsking)
    return <button type="button" className="quiet danger" disabled={disabled} onClick={() => setIsAsking(true)}>{label}</button>;
  return (
    <span className="confirm" role="group" aria-label={question}>
      <span>{question}</span>
      <button type="button" className="danger" autoFocus disabled={disabled} onClick={() => { setIsAsking(false); onConfirm(); }}>{label}</button>
      <button type="button" className="quiet" onClick={() => setIsAsking(false)}>{say('keep')}</button>
    </span>
  );
}
