import { Button, Heading, IconButton } from '@radix-ui/themes';
import { Plus, Trash2 } from 'lucide-react';
import { useRef } from 'react';
import { CheckEntry } from '../../parts/CheckEntry';
import { ChoiceEntry, TextEntry } from '../../parts/Field';
import { FaultOf } from '../../parts/Faults';
import { PlainButton } from '../../parts/PlainButton';
import { useTexts } from '../../texts/texts';
import { type Definition, type Key, type KeySchema, keysOf, withKeys } from './entry';
import { insertAt, Placeholders } from './Placeholders';
import { ValueField } from './ValueField';

/** The fields of an entry. What the form does not have stays as the JSON has it. */
export function EntryForm({ definition, isNew, onChange }: {
  definition: Definition;
  isNew: boolean;
  onChange: (definition: Definition) => void;
}) {
  const { say } = useTexts();
  const url = useRef<HTMLInputElement>(null);
  const set = (name: 'id' | 'name' | 'url' | 'description') => (value: string) => onChange({ ...definition, [name]: value });
  const text = (name: 'id' | 'name' | 'url' | 'description', label: string, isRequired: boolean) => (
    <FaultOf name={name}>
      <TextEntry ref={name === 'url' ? url : undefined} label={label} required={isRequired} value={definition[name] ?? ''} onChange={set(name)} />
    </FaultOf>
  );
  return (
    <>
      {isNew && text('id', say('server.id'), true)}
      {text('name', say('server.name'), true)}
      {text('url', say('server.url'), true)}
      <Placeholders level="agent" onInsert={(placeholder) => insertAt(url.current, definition.url, placeholder, set('url'))} />
      {text('description', say('server.description'), false)}
      <Heading as="h3" size="3">{say('server.config')}</Heading>
      <Keys keys={keysOf(definition)} onChange={(keys) => onChange(withKeys(definition, keys))} />
      <Heading as="h3" size="3">{say('server.auth')}</Heading>
      <Auth definition={definition} onChange={onChange} />
    </>
  );
}

const TYPES: KeySchema['type'][] = ['string', 'number', 'boolean', 'json'];

function Keys({ keys, onChange }: { keys: Key[]; onChange: (keys: Key[]) => void }) {
  const { say } = useTexts();
  const replace = (at: number, next: Key) => onChange(keys.map((key, place) => (place === at ? next : key)));
  const add = () => onChange([...keys, { name: `key_${keys.length + 1}`, schema: { type: 'string' }, value: undefined }]);
  return (
    <div className="keys">
      {keys.map((key, at) => (
        <FaultOf key={at} name={`config_schema.${key.name}`}>
          <fieldset className="key" aria-label={key.name}>
            <KeyFields item={key} onChange={(next) => replace(at, next)} />
            <IconButton type="button" variant="soft" color="red" aria-label={say('server.key.remove', { key: key.name })} onClick={() => onChange(keys.filter((_, place) => place !== at))}><Trash2 size={16} /></IconButton>
          </fieldset>
        </FaultOf>
      ))}
      <div><PlainButton onClick={add}><Plus size={16} /> {say('server.key.add')}</PlainButton></div>
    </div>
  );
}

function KeyFields({ item: { name, schema, value }, onChange }: { item: Key; onChange: (key: Key) => void }) {
  const { say } = useTexts();
  const change = (part: Partial<KeySchema>) => onChange({ name, value, schema: { ...schema, ...part } });
  const flag = (flagName: 'required' | 'sensitive' | 'internal') => (
    <CheckEntry label={say(`server.key.${flagName}`)} checked={schema[flagName] ?? false} onChange={(checked) => change({ [flagName]: checked })} />
  );
  return (
    <>
      <TextEntry label={say('server.key')} required value={name} onChange={(next) => onChange({ name: next, schema, value })} />
      <ChoiceEntry
        label={say('server.key.type')} value={schema.type} onChange={(type) => change({ type: type as KeySchema['type'] })}
        options={TYPES.map((type) => [type, type] as const)}
      />
      <TextEntry label={say('server.description')} value={schema.description ?? ''} onChange={(next) => change({ description: next })} />
      <TextEntry label={say('server.key.example')} value={schema.example ?? ''} onChange={(next) => change({ example: next || null })} />
      <span>{flag('required')}{flag('sensitive')}{flag('internal')}</span>
      <FaultOf name={`default_config.${name}`}>
        <ValueField label={say('server.key.default')} level="registry" schema={schema} value={value} onChange={(next) => onChange({ name, schema, value: next })} />
      </FaultOf>
    </>
  );
}

/** Client credentials: the service gets tokens for the server by itself. */
function Auth({ definition, onChange }: { definition: Definition; onChange: (definition: Definition) => void }) {
  const { say } = useTexts();
  const { auth, ...others } = definition;
  const begin = () => onChange({ ...definition, auth: { type: 'oauth2_client_credentials', token_url: '', client_id: '', client_secret: { $secret: '' } } });
  if (!auth) return <div><PlainButton onClick={begin}>{say('server.auth.add')}</PlainButton></div>;
  const change = (part: object) => onChange({ ...definition, auth: { ...auth, ...part } });
  const secret = auth.client_secret as { $secret?: string } | string | undefined;
  const shown = (value: unknown) => (typeof value === 'string' ? value : '');
  return (
    <>
      <FaultOf name="auth.token_url"><TextEntry label={say('server.auth.url')} required value={auth.token_url} onChange={(value) => change({ token_url: value })} /></FaultOf>
      <FaultOf name="auth.client_id"><TextEntry label={say('server.auth.client')} required value={shown(auth.client_id)} onChange={(value) => change({ client_id: value })} /></FaultOf>
      <FaultOf name="auth.client_secret"><TextEntry label={say('server.auth.secret')} value={typeof secret === 'object' ? (secret?.$secret ?? '') : ''} onChange={(value) => change({ client_secret: { $secret: value } })} /></FaultOf>
      <FaultOf name="auth.scope"><TextEntry label={say('server.auth.scope')} value={auth.scope ?? ''} onChange={(value) => change({ scope: value || null })} /></FaultOf>
      <div><Button type="button" variant="soft" color="red" onClick={() => onChange(others)}>{say('remove')}</Button></div>
    </>
  );
}
