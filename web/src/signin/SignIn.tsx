import { Button, Card, Flex, Heading, Strong, Text } from '@radix-ui/themes';
import { LogIn } from 'lucide-react';
import { useState } from 'react';
import { Refused } from '../api/client';
import { TextEntry } from '../parts/Field';
import { Panel } from '../parts/Panel';
import { Failure, Notice } from '../parts/parts';
import { Brand } from '../parts/Brand';
import { LanguageChoice } from '../parts/LanguageChoice';
import { useAction } from '../parts/useAction';
import { type TextKey, useTexts } from '../texts/texts';
import { useSession } from './session';

/** The order in which the demo shows its people; others follow. */
const ORDER = ['guest', 'employee', 'finance', 'manager', 'admin'];

export function SignIn() {
  const { say } = useTexts();
  const { providers, demo: { people }, hasEnded, error } = useSession();
  const hasMore = providers.length > 0 || Object.keys(people).length > 0;
  return (
    <main className="signin">
      <h1><Brand /></h1>
      {hasEnded && <Notice tone="plain" role="status">{say('signin.ended')}</Notice>}
      {error && <Notice tone="bad" role="alert">{error instanceof Refused ? error.message : say('signin.provider.failed')}</Notice>}
      <Providers />
      <People />
      <Panel>
        <details open={!hasMore}>
          <summary><Heading as="h2" size="3">{say('signin.token')}</Heading></summary>
          <PastedToken />
        </details>
      </Panel>
      <LanguageChoice />
    </main>
  );
}

function Providers() {
  const { say } = useTexts();
  const { providers, signInAt } = useSession();
  const { isBusy, error, run } = useAction();
  if (providers.length === 0) return null;
  return (
    <Panel>
      <section>
        {providers.map((provider) => (
          <Button key={`${provider.issuer} ${provider.client_id}`} type="button" size="3" disabled={isBusy} onClick={() => void run(() => signInAt(provider))}>
            <LogIn size={18} /> {say('signin.with', { name: provider.name })}
          </Button>
        ))}
        <Failure error={error} />
      </section>
    </Panel>
  );
}

function People() {
  const { say } = useTexts();
  const { demo: { people }, signIn } = useSession();
  const { isBusy, error, run } = useAction();
  const names = Object.keys(people).sort((a, b) => ORDER.indexOf(a) - ORDER.indexOf(b));
  if (names.length === 0) return null;
  return (
    <section>
      <Heading as="h2" size="4">{say('signin.demo')}</Heading>
      <Text as="p" size="2" color="gray">{say('signin.demo.help')}</Text>
      <ul className="people">
        {names.map((name) => (
          <li key={name}>
            <Card asChild size="1">
              <button type="button" disabled={isBusy} onClick={() => void run(() => signIn(people[name] ?? ''))}>
                <Strong>{ORDER.includes(name) ? say(`person.${name}` as TextKey) : name}</Strong>
                {ORDER.includes(name) && <Text as="div" size="2" color="gray">{say(`person.${name}.can` as TextKey)}</Text>}
              </button>
            </Card>
          </li>
        ))}
      </ul>
      <Failure error={error} />
    </section>
  );
}

function PastedToken() {
  const { say } = useTexts();
  const { signIn } = useSession();
  const [token, setToken] = useState('');
  const { isBusy, error, run } = useAction();
  const known = error instanceof Refused && error.status === 401 ? new Refused(401, error.code, say('signin.refused')) : error;
  return (
    <form className="fields" onSubmit={(event) => { event.preventDefault(); void run(() => signIn(token.trim())); }}>
      <TextEntry label={say('signin.label')} type="password" autoComplete="off" value={token} onChange={setToken} aria-describedby="token-help" />
      <Text as="p" id="token-help" size="2" color="gray">{say('signin.help')}</Text>
      <Flex><Button type="submit" disabled={isBusy || !token.trim()}>{say('signin')}</Button></Flex>
      <Failure error={known} />
    </form>
  );
}
