import { Strong } from '@radix-ui/themes';
import { UserRound, X } from 'lucide-react';
import { IconAction } from '../parts/IconAction';
import { useTexts } from '../texts/texts';
import { changeGuide } from './guide';

/** The manager's own page beside that of the one who asks: both people are seen at once. */
export function ManagerPane() {
  const { say } = useTexts();
  return (
    <aside className="second" aria-label={say('person.manager')}>
      <header>
        <UserRound size={16} /><Strong className="grow">{say('person.manager')}</Strong>
        <IconAction label={say('close')} onClick={() => changeGuide({ hasPane: false })}><X size={16} /></IconAction>
      </header>
      <iframe title={say('person.manager')} src="/?as=manager#/approvals" />
    </aside>
  );
}
