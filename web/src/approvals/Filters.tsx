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
    <label>{label}<input type="search" autoComplete="off" maxLength={255} value={filter[name] ?? ''} onChange={(event) => change(name, event.target.value.trim())} /></label>
  );
  return (
    <div className="filters">
      <label>{say('approval.state')}
        <select value={filter.state ?? ''} onChange={(event) => change('state', event.target.value)}>
          <option value="">{say('approval.anyState')}</option>
          {STATES.map((state) => <option key={state} value={state}>{say(`approval.${state}` satisfies TextKey)}</option>)}
        </select>
      </label>
      {text('tool', say('audit.tool'))}
      {hasRequester && text('requester', say('approval.requester'))}
    </div>
  );
}
