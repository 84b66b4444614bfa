import { useTexts } from '../texts/texts';

/** In place of a part of the page that is loaded when it is opened. Without a network, or after an update, it may not be there. */
export function NotLoaded() {
  const { say } = useTexts();
  return (
    <main className="page">
      <p className="failure" role="alert">{say('error.part')} <button type="button" className="quiet" onClick={() => window.location.reload()}>{say('reload')}</button></p>
    </main>
  );
}
