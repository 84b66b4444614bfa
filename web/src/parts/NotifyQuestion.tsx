import { Button, Card, Flex, Text } from '@radix-ui/themes';
import { Bell } from 'lucide-react';
import { useReducer } from 'react';
import { useBadge } from '../approvals/news';
import { askPermission, canAsk, decline, hasDeclined } from '../approvals/notify';
import { IS_PANE } from '../early';
import { useTexts } from '../texts/texts';
import { PlainButton } from './PlainButton';

/** Asks once, when the first request waits, whether the browser may tell of the next ones. */
export function NotifyQuestion() {
  const { say } = useTexts();
  const { pending_approvals: waiting } = useBadge();
  const [, showAgain] = useReducer((count: number) => count + 1, 0);
  if (IS_PANE || waiting === 0 || !canAsk() || hasDeclined()) return null;
  const ask = async () => {
    await askPermission();
    showAgain();
  };
  const refuse = () => {
    decline();
    showAgain();
  };
  return (
    <Card className="toast question-of-browser">
      <Text as="p" size="2">{say('notify.ask')}</Text>
      <Flex gap="2" wrap="wrap">
        <Button type="button" size="1" onClick={() => void ask()}><Bell size={14} /> {say('notify.yes')}</Button>
        <PlainButton size="1" onClick={refuse}>{say('notify.no')}</PlainButton>
      </Flex>
    </Card>
  );
}
