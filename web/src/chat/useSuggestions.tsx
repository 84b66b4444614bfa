/** The commands that begin like what is typed. Arrow keys choose one, Tab or Enter takes it, Escape closes the list. */
import { Code, Text } from '@radix-ui/themes';
import { useQuery } from '@tanstack/react-query';
import { type KeyboardEvent, useId, useState } from 'react';
import { get } from '../api/queries';
import { type TextKey, useTexts } from '../texts/texts';

interface Suggestion {
  command: string;
  about: string;
}

const COMMANDS = ['tools', 'connections', 'connect', 'disconnect', 'approvals', 'approve', 'reject', 'cancel', 'prompts', 'menu', 'call', 'help'] as const;

export function useSuggestions(agent: string | undefined, text: string, onTake: (text: string) => void) {
  const { say } = useTexts();
  const id = useId();
  const [active, setActive] = useState(-1);
  const [closedAt, setClosedAt] = useState('');
  const isCommand = /^\/\S*$/.test(text);
  const offered = useOffered(isCommand ? agent : undefined);
  const builtIn = COMMANDS.map((name) => ({ command: `/${name}`, about: say(`command.${name}` satisfies TextKey) }));
  const all = [...offered, ...builtIn];
  const found = isCommand && text !== closedAt ? all.filter(({ command }) => command.startsWith(text) && command !== text) : [];
  const chosen = found[active];
  const first = found[0];
  const take = (suggestion: Suggestion) => {
    setActive(-1);
    onTake(`${suggestion.command} `);
  };
  /** Whether the key was for the list. */
  const onKey = (event: KeyboardEvent): boolean => {
    if (!first || event.shiftKey || event.nativeEvent.isComposing) return false;
    if (event.key === 'ArrowDown') setActive((active + 1) % found.length);
    else if (event.key === 'ArrowUp') setActive((active <= 0 ? found.length : active) - 1);
    else if (event.key === 'Escape') setClosedAt(text);
    else if (event.key === 'Tab' || (event.key === 'Enter' && chosen)) take(chosen ?? first);
    else {
      setActive(-1);
      return false;
    }
    event.preventDefault();
    return true;
  };
  const list = found.length > 0 && (
    <ul className="suggestions" role="listbox" id={id} aria-label={say('command.list')}>
      {found.map((suggestion, at) => (
        <li
          key={suggestion.command} id={`${id}${at}`} role="option" aria-selected={at === active}
          ref={(item) => { if (at === active) item?.scrollIntoView({ block: 'nearest' }); }}
          onMouseDown={(event) => { event.preventDefault(); take(suggestion); }}
        ><Code variant="ghost">{suggestion.command}</Code> <Text size="2" color="gray">{suggestion.about}</Text></li>
      ))}
    </ul>
  );
  const field = {
    'aria-autocomplete': 'list' as const,
    ...(found.length > 0 && { 'aria-controls': id }),
    ...(chosen && { 'aria-activedescendant': `${id}${active}` }),
  };
  return { list, field, onKey };
}

/** What the agent and its servers add to the commands of the program. */
function useOffered(agent: string | undefined): Suggestion[] {
  const params = { path: { agent: agent ?? '' } };
  const rarely = { enabled: agent !== undefined, staleTime: 60_000 };
  const skills = useQuery({ ...get('/v1/agents/{agent}/skills', params), ...rarely });
  const prompts = useQuery({ ...get('/v1/agents/{agent}/prompts', params), ...rarely });
  return [
    ...(skills.data?.items ?? []).map(({ command, name, description }) => ({ command, about: description || name })),
    ...(prompts.data?.items ?? []).map(({ command, title, description }) => ({ command, about: title ?? description })),
  ];
}
