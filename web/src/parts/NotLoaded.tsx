import { Button } from '@radix-ui/themes';
import { useTexts } from '../texts/texts';
import { Notice } from './parts';

/** In place of a part of the page that is loaded when it is opened. Without a network, or after an update, it may not be there. */
export function NotLoaded() {
  const { say } = useTexts();
  return (
    <main className="page">
      <Notice tone="bad" role="alert">{say('error.part')} <Button type="button" size="1" variant="outline" ml="2" onClick={() => window.location.reload()}>{say('reload')}</Button></Notice>
    </main>
  );
}
