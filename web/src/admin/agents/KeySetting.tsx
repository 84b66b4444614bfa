import { Code, Text } from '@radix-ui/themes';
import { ChoiceEntry } from '../../parts/Field';
import { FaultOf } from '../../parts/Faults';
import { StateBadge } from '../../parts/parts';
import { valueText } from '../../parts/values';
import { useTexts } from '../../texts/texts';
import type { Level } from '../registry/Placeholders';
import { ValueField } from '../registry/ValueField';
import type { ConfigKey } from './settings';

/** What a value begins as when a person sets it: that of before where the field can show it. */
function begin({ type, value: before, sensitive }: ConfigKey): unknown {
  const value: unknown = before;
  if (sensitive) return '';
  if (type === 'boolean') return value === true || value === 'true';
  return value ?? (type === 'string' ? '' : undefined);
}

/**
 * One key of a server at this level: what it has from before, what is set, or that it is taken away. `value` is absent
 * where nothing is set here, and `null` where the key is taken away.
 */
export function KeySetting({ view, level, isSet, value, onChange }: {
  view: ConfigKey;
  level: Level;
  isSet: boolean;
  value: unknown;
  onChange: (isSet: boolean, value?: unknown) => void;
}) {
  const { say } = useTexts();
  const { key, description, required, sensitive, internal, example, origin, note } = view;
  const how = !isSet ? 'kept' : value === null ? 'removed' : 'set';
  const choose = (next: string) => onChange(next !== 'kept', next === 'removed' ? null : begin(view));
  return (
    <FaultOf name={`config.${key}`}>
      <fieldset className="key" aria-label={key}>
        <div className="about">
          <Code variant="ghost">{key}</Code>
          {required && <StateBadge>{say('server.key.required')}</StateBadge>}
          {sensitive && <StateBadge>{say('server.key.sensitive')}</StateBadge>}
          {internal && <StateBadge>{say('server.key.internal')}</StateBadge>}
          {description && <Text as="p" size="2" color="gray">{description}</Text>}
          {example && <Text as="p" size="1" color="gray">{say('server.key.example')}: <Code variant="ghost">{example}</Code></Text>}
        </div>
        {!internal && (
          <ChoiceEntry
            label={say('setting.how')} value={how} onChange={choose}
            options={[['kept', say('setting.kept')], ['set', say('setting.set')], ['removed', say('setting.removed')]]}
          />
        )}
        <div className="entry">
          {how === 'set' && <ValueField label={say('agents.value')} schema={view} value={value} level={level} isRequired onChange={(next) => onChange(true, next)} />}
          {how === 'kept' && (view.value === undefined ? <Text size="2" color="gray">{say('agents.unset')}</Text> : <Code variant="ghost" className="value">{valueText(view.value)}</Code>)}
          {how === 'kept' && origin && !note.includes(origin) && <div><StateBadge>{origin}</StateBadge></div>}
          <Text as="p" size="1" color="gray" className="origin">↑ {note.charAt(0).toUpperCase() + note.slice(1)}</Text>
        </div>
      </fieldset>
    </FaultOf>
  );
}
