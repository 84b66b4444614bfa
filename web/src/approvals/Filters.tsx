import { ChoiceEntry, TextEntry } from '../parts/Field';
import { type TextKey, useTexts } from '../texts/texts';
import type { Filter } from './ApprovalList';
import type { Approval } from './news';

const STATES: Approval['state'][] = [
  'pending', 'approved', 'executing', 'succeeded', 'failed', 'outcome_unknown', 'rejected', 'expired', 'cancelled', 'revoked', 'lapsed',
];

/** Chooses some of the requests. An empty field chooses all. */
export function Filters({ filter, hasRequester, onChange }: {
  filter: Filter;
  hasRequester: boolean;
  onChange: (filter: Filter) => void;
}) {
  const { say } = useTexts();
  const change = (name: keyof Filter, value: string) => {
    const { [name]: _, ...others } = filter;
    onChange(value ? { ...others, [name]: value } : others);
  };
  const text = (name: 'tool' | 'requester', label: string) => (
    <TextEntry label={label} type="search" autoComplete="off" maxLength={255} value={filter[name] ?? ''} onChange={(value) => change(name, value.trim())} />
  );
  return (
    <div className="filters">
      <ChoiceEntry
        label={say('approval.state')} value={filter.state ?? ''} onChange={(value) => change('state', value)}
        options={[['', say('approval.anyState')], ...STATES.map((state) => [state, say(`approval.${state}` satisfies TextKey)] as const)]}
      />
      {text('tool', say('audit.tool'))}
      {hasRequester && text('requester', say('approval.requester'))}
    </div>
  );
}
