import { LogIn } from 'lucide-react';
import { useState } from 'react';
import { Refused } from '../api/client';
import { Brand } from '../parts/Brand';
import { LanguageChoice } from '../parts/LanguageChoice';
import { Failure } from '../parts/parts';
import { useAction } from '../parts/useAction';
import { type TextKey, useTexts } from '../texts/texts';
import { useSession } from './session';

/** The order in which the demo shows its people; others follow. */
const ORDER = ['guest', 'employee', 'finance', 'manager', 'admin'];

export function SignIn() {
  const { say } = useTexts();
  const { providers, people, hasEnded, error } = useSession();
  const hasMore = providers.length > 0 || Object.keys(people).length > 0;
  return (
    <main className="signin">
      <h1><Brand /></h1>
      {hasEnded && <p className="notice" role="status">{say('signin.ended')}</p>}
      {error && <p className="failure" role="alert">{error instanceof Refused ? error.message : say('signin.provider.failed')}</p>}
      <Providers />
      <People />
      <details className="card" open={!hasMore}>
        <summary><h2>{say('signin.token')}</h2></summary>
        <PastedToken />
      </details>
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
    <section className="card">
      {providers.map((provider) => (
        <button key={`${provider.issuer} ${provider.client_id}`} type="button" className="primary" disabled={isBusy} onClick={() => void run(() => signInAt(provider))}>
          <LogIn size={18} /> {say('signin.with', { name: provider.name })}
        </button>
      ))}
      <Failure error={error} />
    </section>
  );
}

function People() {
  const { say } = useTexts();
  const { people, signIn } = useSession();
  const { isBusy, error, run } = useAction();
  const names = Object.keys(people).sort((a, b) => ORDER.indexOf(a) - ORDER.indexOf(b));
  if (names.length === 0) return null;
  return (
    <section>
      <h2>{say('signin.demo')}</h2>
      <p className="muted">{say('signin.demo.help')}</p>
      <ul className="people">
        {names.map((name) => (
          <li key={name}>
            <button type="button" disabled={isBusy} onClick={() => void run(() => signIn(people[name] ?? ''))}>
              <b>{ORDER.includes(name) ? say(`person.${name}` as TextKey) : name}</b>
              {ORDER.includes(name) && <span className="muted">{say(`person.${name}.can` as TextKey)}</span>}
            </button>
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
    <form onSubmit={(event) => { event.preventDefault(); void run(() => signIn(token.trim())); }}>
      <div className="field">
        <label htmlFor="token">{say('signin.label')}</label>
        <input id="token" type="password" autoComplete="off" spellCheck={false} value={token} onChange={(event) => setToken(event.target.value)} aria-describedby="token-help" />
        <p id="token-help" className="muted">{say('signin.help')}</p>
      </div>
      <div className="buttons"><button type="submit" disabled={isBusy || !token.trim()}>{say('signin')}</button></div>
      <Failure error={known} />
    </form>
  );
}
