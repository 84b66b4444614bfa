/** One thing that a person enters: its kind decides how. */
import type { TextField } from '@radix-ui/themes';
import type { ComponentProps } from 'react';
import type { Schemas } from '../api/client';
import { useTexts } from '../texts/texts';
import { ChoiceEntry, TextEntry } from './Field';

export interface Entry {
  name: string;
  kind: Schemas['FieldKind'];
  label: string;
  isRequired: boolean;
  options: Schemas['Choice'][];
  /** What a server says of its field: type, format, limits. */
  schema?: Record<string, unknown> | undefined;
}

export function EntryField({ entry, value, onChange, autoFocus = false }: {
  entry: Entry;
  value: string;
  onChange: (value: string) => void;
  autoFocus?: boolean;
}) {
  const { say } = useTexts();
  const common = { label: `${entry.label}${entry.isRequired ? '' : ` ${say('optional')}`}`, required: entry.isRequired, autoFocus, value, onChange };
  if (entry.kind !== 'select' && entry.kind !== 'boolean') return <TextEntry {...common} {...inputOf(entry)} />;
  const options = entry.kind === 'boolean' ? [['true', say('yes')], ['false', say('no')]] as const : entry.options.map((option) => [option.value, option.label] as const);
  return <ChoiceEntry {...common} options={[['', say('choose')], ...options]} />;
}

const FORMATS: Record<string, 'email' | 'date' | 'url'> = { email: 'email', date: 'date', uri: 'url' };

function inputOf({ kind, schema }: Entry): Partial<Omit<ComponentProps<typeof TextField.Root>, 'onChange'>> {
  if (kind === 'secret') return { type: 'password', autoComplete: 'off', spellCheck: false };
  if (kind === 'url') return { type: 'url', autoComplete: 'off', spellCheck: false };
  // A number is text here: a browser would read `1.234` by its own language, and the program asks what is meant.
  const type = schema?.type;
  if (type === 'number' || type === 'integer') return { type: 'text', inputMode: Number(schema?.minimum) < 0 ? 'text' : 'decimal', autoComplete: 'off' };
  return { type: FORMATS[String(schema?.format)] ?? 'text', autoComplete: 'off' };
}
