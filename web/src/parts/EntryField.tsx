/** One thing that a person enters: its kind decides how. */
import { useId } from 'react';
import { useTexts } from '../texts/texts';
import type { Schemas } from '../api/client';

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
  const id = useId();
  const common = { id, required: entry.isRequired, autoFocus, value };
  const options = entry.kind === 'boolean' ? [{ value: 'true', label: say('yes') }, { value: 'false', label: say('no') }] : entry.options;
  return (
    <div className="field">
      <label htmlFor={id}>{entry.label}{entry.isRequired ? '' : ` ${say('optional')}`}</label>
      {entry.kind === 'select' || entry.kind === 'boolean' ? (
        <select {...common} onChange={(event) => onChange(event.target.value)}>
          <option value="">{say('choose')}</option>
          {options.map((option) => <option key={option.value} value={option.value}>{option.label}</option>)}
        </select>
      ) : (
        <input {...common} {...inputOf(entry)} onChange={(event) => onChange(event.target.value)} />
      )}
    </div>
  );
}

const FORMATS: Record<string, string> = { email: 'email', date: 'date', uri: 'url' };

function inputOf({ kind, schema }: Entry) {
  if (kind === 'secret') return { type: 'password', autoComplete: 'off', spellCheck: false };
  if (kind === 'url') return { type: 'url', autoComplete: 'off', spellCheck: false };
  const type = schema?.type;
  if (type === 'number' || type === 'integer') {
    const limit = (name: string) => (typeof schema?.[name] === 'number' ? schema[name] : undefined);
    return { type: 'number', step: type === 'integer' ? 1 : 'any', min: limit('minimum'), max: limit('maximum') };
  }
  return { type: FORMATS[String(schema?.format)] ?? 'text', autoComplete: 'off' };
}
