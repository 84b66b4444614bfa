import { Plus, Trash2 } from 'lucide-react';
import { useId } from 'react';
import { useTexts } from '../../texts/texts';
import { type Definition, type Key, type KeySchema, keysOf, withKeys } from './entry';
import { ValueField } from './ValueField';

/** The fields of an entry. What the form does not have stays as the JSON has it. */
export function EntryForm({ definition, isNew, onChange }: {
  definition: Definition;
  isNew: boolean;
  onChange: (definition: Definition) => void;
}) {
  const { say } = useTexts();
  const text = (name: 'id' | 'name' | 'url' | 'description', label: string, isRequired: boolean) => (
    <TextField label={label} isRequired={isRequired} value={definition[name] ?? ''} onChange={(value) => onChange({ ...definition, [name]: value })} />
  );
  return (
    <>
      {isNew && text('id', say('server.id'), true)}
      {text('name', say('server.name'), true)}
      {text('url', say('server.url'), true)}
      {text('description', say('server.description'), false)}
      <h3>{say('server.config')}</h3>
      <Keys keys={keysOf(definition)} onChange={(keys) => onChange(withKeys(definition, keys))} />
      <h3>{say('server.auth')}</h3>
      <Auth definition={definition} onChange={onChange} />
    </>
  );
}

function TextField({ label, value, isRequired, onChange }: {
  label: string;
  value: string;
  isRequired: boolean;
  onChange: (value: string) => void;
}) {
  const id = useId();
  return (
    <div className="field">
      <label htmlFor={id}>{label}</label>
      <input id={id} required={isRequired} value={value} onChange={(event) => onChange(event.target.value)} />
    </div>
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
        <fieldset key={at} className="key" aria-label={key.name}>
          <KeyFields item={key} onChange={(next) => replace(at, next)} />
          <button type="button" className="quiet icon danger" aria-label={say('server.key.remove', { key: key.name })} onClick={() => onChange(keys.filter((_, place) => place !== at))}><Trash2 size={16} /></button>
        </fieldset>
      ))}
      <div><button type="button" onClick={add}><Plus size={16} /> {say('server.key.add')}</button></div>
    </div>
  );
}

function KeyFields({ item: { name, schema, value }, onChange }: { item: Key; onChange: (key: Key) => void }) {
  const { say } = useTexts();
  const change = (part: Partial<KeySchema>) => onChange({ name, value, schema: { ...schema, ...part } });
  const flag = (flagName: 'required' | 'sensitive') => (
    <label className="check"><input type="checkbox" checked={schema[flagName] ?? false} onChange={(event) => change({ [flagName]: event.target.checked })} /> {say(`server.key.${flagName}`)}</label>
  );
  return (
    <>
      <label>{say('server.key')}<input required value={name} onChange={(event) => onChange({ name: event.target.value, schema, value })} /></label>
      <label>{say('server.key.type')}
        <select value={schema.type} onChange={(event) => change({ type: event.target.value as KeySchema['type'] })}>
          {TYPES.map((type) => <option key={type} value={type}>{type}</option>)}
        </select>
      </label>
      <ValueField schema={schema} value={value} onChange={(next) => onChange({ name, schema, value: next })} />
      <span>{flag('required')}{flag('sensitive')}</span>
    </>
  );
}

/** Client credentials: the service gets tokens for the server by itself. */
function Auth({ definition, onChange }: { definition: Definition; onChange: (definition: Definition) => void }) {
  const { say } = useTexts();
  const { auth, ...others } = definition;
  const begin = () => onChange({ ...definition, auth: { type: 'oauth2_client_credentials', token_url: '', client_id: '', client_secret: { $secret: '' } } });
  if (!auth) return <div><button type="button" onClick={begin}>{say('server.auth.add')}</button></div>;
  const change = (part: object) => onChange({ ...definition, auth: { ...auth, ...part } });
  const secret = auth.client_secret as { $secret?: string } | string | undefined;
  const shown = (value: unknown) => (typeof value === 'string' ? value : '');
  return (
    <>
      <TextField label={say('server.auth.url')} isRequired value={auth.token_url} onChange={(value) => change({ token_url: value })} />
      <TextField label={say('server.auth.client')} isRequired value={shown(auth.client_id)} onChange={(value) => change({ client_id: value })} />
      <TextField label={say('server.auth.secret')} isRequired={false} value={typeof secret === 'object' ? (secret?.$secret ?? '') : ''} onChange={(value) => change({ client_secret: { $secret: value } })} />
      <TextField label={say('server.auth.scope')} isRequired={false} value={auth.scope ?? ''} onChange={(value) => change({ scope: value || null })} />
      <div><button type="button" className="quiet danger" onClick={() => onChange(others)}>{say('remove')}</button></div>
    </>
  );
}
