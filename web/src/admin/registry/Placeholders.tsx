import { Code, Text } from '@radix-ui/themes';
import { flushSync } from 'react-dom';
import { PlainButton } from '../../parts/PlainButton';
import { type TextKey, useTexts } from '../../texts/texts';

/** Where a value is written: only an agent, and an address, may refer to parameters. */
export type Level = 'registry' | 'capability' | 'agent';

const SOURCES: [placeholder: string, meaning: TextKey][] = [
  ['${scope.name}', 'placeholder.scope'],
  ['${env.NAME}', 'placeholder.env'],
  ['${runtime.session_id}', 'placeholder.session'],
  ['${runtime.run_id}', 'placeholder.run'],
  ['${runner.orchestrator_mcp_url}', 'placeholder.runner'],
];
const PARAMS: (typeof SOURCES)[number] = ['${params.name}', 'placeholder.params'];

/** The placeholders that are valid at a level, each with what it means. One is put where the cursor is. */
export function Placeholders({ level, onInsert }: { level: Level; onInsert: (placeholder: string) => void }) {
  const { say } = useTexts();
  const sources = level === 'agent' ? [PARAMS, ...SOURCES] : SOURCES;
  return (
    <details className="placeholders">
      <summary>{say('placeholder')}</summary>
      <ul>
        {sources.map(([placeholder, meaning]) => (
          <li key={placeholder}>
            <PlainButton size="1" onClick={() => onInsert(placeholder)}><Code variant="ghost">{placeholder}</Code></PlainButton>
            <Text size="1" color="gray">{say(meaning)}</Text>
          </li>
        ))}
      </ul>
    </details>
  );
}

type Input = HTMLInputElement | HTMLTextAreaElement;

/** Puts a placeholder where the cursor of a field is, and selects the name in it, which a person replaces. */
export function insertAt(input: Input | null, text: string, placeholder: string, onChange: (text: string) => void) {
  // A field of numbers has no cursor that can be asked for.
  const [from, to] = input?.selectionStart == null ? [0, text.length] : [input.selectionStart, input.selectionEnd ?? input.selectionStart];
  // At once, so that the next letter that is typed replaces the name.
  flushSync(() => onChange(text.slice(0, from) + placeholder + text.slice(to)));
  if (!input?.isConnected) return;
  input.focus();
  if (input.selectionStart !== null) input.setSelectionRange(from + placeholder.indexOf('.') + 1, from + placeholder.length - 1);
}
