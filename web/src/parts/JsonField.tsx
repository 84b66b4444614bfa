import { Text, TextArea } from '@radix-ui/themes';
import { type RefObject, useEffect, useId, useRef, useState } from 'react';
import { keepDigits, writeJson } from '../api/digits';
import { useTexts } from '../texts/texts';
import { Field } from './Field';
import { jsonFault } from './json';

/** A text that must be JSON. What is wrong with it is said below, with its line and column, and nothing is sent until it is right. */
export function JsonText({ label, text, onChange, rows, isRequired = false, placeholder, areaRef }: {
  label: string;
  text: string;
  onChange: (text: string) => void;
  rows: number;
  isRequired?: boolean;
  placeholder?: string;
  areaRef?: RefObject<HTMLTextAreaElement | null>;
}) {
  const { say } = useTexts();
  const own = useRef<HTMLTextAreaElement>(null);
  const area = areaRef ?? own;
  const id = useId();
  const fault = text.trim() === '' ? undefined : jsonFault(text);
  const message = fault ? say('json.wrong', { line: fault.line, column: fault.column }) : '';
  useEffect(() => area.current?.setCustomValidity(message), [area, message]);
  return (
    <div className="entry">
      <Field label={label}>
        <TextArea
          ref={area} className="json" rows={rows} spellCheck={false} required={isRequired} value={text} placeholder={placeholder}
          aria-invalid={message !== ''} aria-describedby={message ? id : undefined} onChange={(event) => onChange(event.target.value)}
        />
      </Field>
      {message && <Text as="p" size="2" color="red" id={id} role="alert">{message}</Text>}
    </div>
  );
}

/** A value that is JSON. While its text is none, the value is the one of before and the text stays. */
export function JsonField({ value, onChange, ...others }: {
  value: unknown;
  onChange: (value: unknown) => void;
} & Omit<Parameters<typeof JsonText>[0], 'text' | 'onChange'>) {
  const written = writeJson(value, 2) ?? '';
  const [draft, setDraft] = useState({ text: written, of: written });
  const change = (text: string) => {
    const isNone = text.trim() === '';
    if (!isNone && jsonFault(text)) return setDraft({ text, of: written });
    const next: unknown = isNone ? undefined : JSON.parse(keepDigits(text));
    setDraft({ text, of: writeJson(next, 2) ?? '' });
    onChange(next);
  };
  // What changed elsewhere is shown in place of what was typed.
  return <JsonText {...others} text={draft.of === written ? draft.text : written} onChange={change} />;
}
