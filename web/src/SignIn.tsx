import { useState } from 'react';
import { Refused } from './api/client';
import { LanguageChoice } from './App';
import { Failure } from './parts/parts';
import { useAction } from './parts/useLoad';
import { useSession } from './session';
import { useTexts, type TextKey } from './texts/texts';

/** The order in which the demo shows its people; others follow. */
const ORDER = ['guest', 'employee', 'finance', 'manager', 'admin'];

export function SignIn() {
  const { say } = useTexts();
  const { signIn, people, hasEnded } = useSession();
  const [token, setToken] = useState('');
  const { isBusy, error, run } = useAction();
  const names = Object.keys(people).sort((a, b) => ORDER.indexOf(a) - ORDER.indexOf(b));
  const known = error instanceof Refused && error.status === 401 ? new Refused(401, error.code, say('signin.refused')) : error;
  const enter = (value: string) => void run(() => signIn(value));
  return (
    <main className="signin">
      <h1>Chatelaine</h1>
      {hasEnded && <p className="notice" role="status">{say('signin.ended')}</p>}
      {names.length > 0 && (
        <section>
          <h2>{say('signin.demo')}</h2>
          <p className="muted">{say('signin.demo.help')}</p>
          <ul className="people">
            {names.map((name) => (
              <li key={name}>
                <button type="button" disabled={isBusy} onClick={() => enter(people[name] ?? '')}>
                  <b>{ORDER.includes(name) ? say(`person.${name}` as TextKey) : name}</b>
                  {ORDER.includes(name) && <span className="muted">{say(`person.${name}.can` as TextKey)}</span>}
                </button>
              </li>
            ))}
          </ul>
        </section>
      )}
      <form onSubmit={(event) => { event.preventDefault(); enter(token.trim()); }}>
        <h2>{say('signin.token')}</h2>
        <div className="field">
          <label htmlFor="token">{say('signin.label')}</label>
          <input id="token" type="password" autoComplete="off" spellCheck={false} value={token} onChange={(event) => setToken(event.target.value)} aria-describedby="token-help" />
          <p id="token-help" className="muted">{say('signin.help')}</p>
        </div>
        <div className="buttons"><button type="submit" className="primary" disabled={isBusy || !token.trim()}>{say('signin')}</button></div>
      </form>
      <Failure error={known} />
      <LanguageChoice />
    </main>
  );
}
