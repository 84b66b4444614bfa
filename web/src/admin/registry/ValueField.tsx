import { useTexts } from '../../texts/texts';
import type { KeySchema } from './entry';

/** What the API shows of a value that it does not give away. Sent back, it stays. */
const MASK = '••••';

/** The default of a key. A secret one is written and never read. */
export function ValueField({ schema, value, onChange }: {
  schema: KeySchema;
  value: unknown;
  onChange: (value: unknown) => void;
}) {
  const { say } = useTexts();
  if (schema.type === 'boolean')
    return (
      <label>{say('server.key.default')}
        <select value={value === undefined ? '' : String(value)} onChange={(event) => onChange(event.target.value === '' ? undefined : event.target.value === 'true')}>
          <option value="">{say('server.key.none')}</option>
          <option value="true">{say('yes')}</option>
          <option value="false">{say('no')}</option>
        </select>
      </label>
    );
  const isKept = value === MASK;
  return (
    <label>{say('server.key.default')}
      <input
        type={schema.sensitive && !refersToSecret(value) ? 'password' : 'text'} autoComplete="off" spellCheck={false}
        value={isKept ? '' : textOf(value)} placeholder={isKept ? say('server.key.kept') : ''}
        onChange={(event) => onChange(valueOf(event.target.value, schema, isKept))}
      />
    </label>
  );
}

const refersToSecret = (value: unknown) => typeof value === 'object' && value !== null && '$secret' in value;

function textOf(value: unknown): string {
  if (value === undefined || value === null) return '';
  return typeof value === 'string' ? value : JSON.stringify(value);
}

/** Text stays text; JSON and numbers are read as such when they can be. */
function valueOf(text: string, { type }: KeySchema, isKept: boolean): unknown {
  if (text === '') return isKept ? MASK : undefined;
  if (type === 'string' && !text.startsWith('{"$secret"')) return text;
  try {
    return JSON.parse(text) as unknown;
  } catch {
    return text;
  }
}
