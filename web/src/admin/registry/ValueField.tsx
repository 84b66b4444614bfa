import { writeJson } from '../../api/digits';
import { ChoiceEntry, TextEntry } from '../../parts/Field';
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
      <ChoiceEntry
        label={say('server.key.default')} value={value === undefined ? '' : String(value)} onChange={(next) => onChange(next === '' ? undefined : next === 'true')}
        options={[['', say('server.key.none')], ['true', say('yes')], ['false', say('no')]]}
      />
    );
  const isKept = value === MASK;
  return (
    <TextEntry
      label={say('server.key.default')} type={schema.sensitive && !refersToSecret(value) ? 'password' : 'text'} autoComplete="off"
      value={isKept ? '' : textOf(value)} placeholder={isKept ? say('server.key.kept') : ''}
      onChange={(text) => onChange(valueOf(text, schema, isKept))}
    />
  );
}

const refersToSecret = (value: unknown) => typeof value === 'object' && value !== null && '$secret' in value;

function textOf(value: unknown): string {
  if (value === undefined || value === null) return '';
  const json = writeJson(value) ?? '';
  return typeof value === 'string' && json.startsWith('"') ? value : json;
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
