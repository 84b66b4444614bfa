/** What the API says of one field of a form is shown at the field. */
import { Text } from '@radix-ui/themes';
import { createContext, type ReactNode, useContext, useEffect, useRef, useState } from 'react';
import { Refused } from '../api/client';
import { Failure } from './parts';

interface Fault {
  field: string;
  message: string;
  /** The fields that show their own fault. */
  shown: Set<string>;
}

const Context = createContext<Fault>({ field: '', message: '', shown: new Set() });

/** A form's refusal: at its field where the form has the field, and otherwise below the form. */
export function Faults({ error, children }: { error: Error | undefined; children: ReactNode }) {
  const [shown] = useState(() => new Set<string>());
  const field = error instanceof Refused ? error.field : '';
  const isShown = [...shown].some((name) => isAt(field, name));
  return (
    <Context value={{ field, message: error?.message ?? '', shown }}>
      {children}
      {!isShown && <Failure error={error} />}
    </Context>
  );
}

/** A field, or one below it that has no place of its own. */
const isAt = (field: string, name: string) => field !== '' && (field === name || field.startsWith(`${name}.`) || field.startsWith(`${name}[`));

/** The place of a field: `name` as the API calls it. */
export function FaultOf({ name, children }: { name: string; children: ReactNode }) {
  const { field, message, shown } = useContext(Context);
  const place = useRef<HTMLParagraphElement>(null);
  useEffect(() => {
    shown.add(name);
    return () => void shown.delete(name);
  }, [shown, name]);
  // The most exact of the fields says it.
  const isHere = isAt(field, name) && ![...shown].some((other) => other.length > name.length && isAt(field, other));
  useEffect(() => {
    if (isHere) place.current?.scrollIntoView({ block: 'center' });
  }, [isHere, message]);
  return (
    <div className="entry">
      {children}
      {isHere && <Text as="p" size="2" color="red" role="alert" ref={place}>{message}</Text>}
    </div>
  );
}
