import { Text } from '@radix-ui/themes';
import { useMe } from '../signin/session';
import { useTexts } from '../texts/texts';

/** What the user has used of a limit today, as it was at the sign-in. Without a limit there is nothing to say. */
export function OwnUsage() {
  const { say, language } = useTexts();
  const { usage } = useMe();
  const lines = [
    { name: say('usage.runs'), used: usage.runs, limit: usage.runs_limit },
    { name: say('usage.tokens'), used: usage.tokens, limit: usage.tokens_limit },
  ].filter(({ limit }) => limit != null);
  return lines.map(({ name, used, limit }) => (
    <Text as="p" size="2" color="gray" key={name}>{name}: {used.toLocaleString(language)} / {limit?.toLocaleString(language)}</Text>
  ));
}
