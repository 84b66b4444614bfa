import { ChoiceEntry } from '../../parts/Field';
import { FaultOf } from '../../parts/Faults';
import { JsonField } from '../../parts/JsonField';
import { useTexts } from '../../texts/texts';

export type Access = Record<string, unknown> | undefined;

/** Where a rule of its own begins. */
const RULES = { roles: { role: ['*'] }, approval: [{ tools: ['tool'], approvers: ['role'] }] };
const DEFAULTS = ['users', 'public', 'admin'] as const;

/** Who may call which tool of a server that is added. */
export function AccessField({ access, onChange }: { access: Access; onChange: (access: Access) => void }) {
  const { say } = useTexts();
  const isSimple = access && Object.keys(access).length === 1 && DEFAULTS.some((name) => name === access.default);
  const chosen = isSimple ? String(access.default) : access ? 'rules' : '';
  const choose = (name: string) => onChange(name === 'rules' ? RULES : name ? { default: name } : undefined);
  return (
    <FaultOf name="toolAccess">
      <ChoiceEntry
        label={say('setting.access.field')} required value={chosen} onChange={choose}
        options={[['', say('setting.access.choose')], ...DEFAULTS.map((name) => [name, say(`setting.access.${name}`)] as const), ['rules', say('setting.access.rules')]]}
      />
      {chosen === 'rules' && <JsonField label="toolAccess" rows={8} isRequired value={access} onChange={(next) => onChange(next as Access)} />}
    </FaultOf>
  );
}
