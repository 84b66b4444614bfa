import { Flex, Text } from '@radix-ui/themes';
import { useRef } from 'react';
import { keepDigits, writeJson } from '../../api/digits';
import { CheckEntry } from '../../parts/CheckEntry';
import { TextEntry } from '../../parts/Field';
import { JsonField } from '../../parts/JsonField';
import { PlainButton } from '../../parts/PlainButton';
import { useTexts } from '../../texts/texts';
import type { KeySchema } from './entry';
import { insertAt, type Level, Placeholders } from './Placeholders';

/** What the API shows of a value that it does not give away. Sent back, it stays. */
export const MASK = '••••';

/** A value of a key by its type, with the placeholders of its level. A secret one is written and never read. */
export function ValueField({ label, schema, value, level, isRequired = false, onChange }: {
  label: string;
  schema: KeySchema;
  value: unknown;
  level: Level;
  isRequired?: boolean;
  onChange: (value: unknown) => void;
}) {
  const { say } = useTexts();
  const input = useRef<HTMLInputElement>(null);
  const area = useRef<HTMLTextAreaElement>(null);
  const isKept = value === MASK || (schema.sensitive === true && isRequired && refersToSecret(value));
  const change = (text: string) => onChange(valueOf(text, schema, isKept ? value : undefined));
  const shown = isKept ? '' : textOf(value);
  const kept = isKept ? say('server.key.kept') : (schema.example ?? '');
  if (schema.type === 'json' && !schema.sensitive) {
    const insert = (placeholder: string) => {
      const text = area.current?.value ?? '';
      if (text.trim() === '') return onChange(placeholder);
      // The field keeps what it was given, as if it were typed.
      insertAt(area.current, text, placeholder, (next) => type(area.current, next));
    };
    return (
      <>
        <JsonField label={label} rows={4} isRequired={isRequired} placeholder={kept} value={isKept ? undefined : value} areaRef={area} onChange={(next) => onChange(next ?? (isKept ? value : undefined))} />
        <Placeholders level={level} onInsert={insert} />
      </>
    );
  }
  if (schema.type === 'boolean' && !isReference(value))
    return (
      <>
        <Flex align="center" gap="2" wrap="wrap" className="flag">
          <CheckEntry label={label} checked={value === undefined ? 'indeterminate' : value === true || value === 'true'} onChange={onChange} />
          <Text size="2" color="gray">{value === undefined ? say('server.key.none') : say(value === true || value === 'true' ? 'yes' : 'no')}</Text>
          {!isRequired && value !== undefined && <PlainButton size="1" onClick={() => onChange(undefined)}>{say('server.key.clear')}</PlainButton>}
        </Flex>
        <Placeholders level={level} onInsert={onChange} />
      </>
    );
  const isNumber = schema.type === 'number' && !isReference(value);
  const isHidden = schema.sensitive && !isReference(value) && (isRequired || !refersToSecret(value));
  return (
    <>
      <TextEntry
        ref={input} label={label} type={isHidden ? 'password' : isNumber ? 'number' : 'text'} step="any" autoComplete="off"
        required={isRequired && !isKept && schema.type !== 'string'} value={shown} placeholder={kept} onChange={change}
      />
      <Placeholders level={level} onInsert={(placeholder) => insertAt(input.current, isNumber ? '' : shown, placeholder, change)} />
    </>
  );
}

/** Changes a field of the page as a person does. */
function type(area: HTMLTextAreaElement | null, text: string) {
  if (!area) return;
  Object.getOwnPropertyDescriptor(HTMLTextAreaElement.prototype, 'value')?.set?.call(area, text);
  area.dispatchEvent(new Event('input', { bubbles: true }));
}

export const refersToSecret = (value: unknown): boolean => typeof value === 'object' && value !== null && '$secret' in value;

export const isReference = (value: unknown): boolean => typeof value === 'string' && value.includes('${');

function textOf(value: unknown): string {
  if (value === undefined || value === null) return '';
  const json = writeJson(value) ?? '';
  return typeof value === 'string' && json.startsWith('"') ? value : json;
}

/** Text stays text; JSON and numbers are read as such when they can be. `kept` is what stays where nothing is typed. */
function valueOf(text: string, { type }: KeySchema, kept: unknown): unknown {
  if (text === '') return kept;
  if (type === 'string' && !text.startsWith('{"$secret"')) return text;
  try {
    return JSON.parse(keepDigits(text)) as unknown;
  } catch {
    return text;
  }
}
