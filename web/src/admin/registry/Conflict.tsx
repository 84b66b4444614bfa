import { Button, Flex, Heading } from '@radix-ui/themes';
import { PlainButton } from '../../parts/PlainButton';
import { Panel } from '../../parts/Panel';
import { useTexts } from '../../texts/texts';
import { Difference } from './Difference';

/** What is stored now beside what a person wants to store, when somebody else has changed it in between. */
export function Conflict({ theirs, mine, isBusy, onMine, onTheirs }: {
  theirs: string;
  mine: string;
  isBusy: boolean;
  onMine: () => void;
  onTheirs: () => void;
}) {
  const { say } = useTexts();
  return (
    <Panel>
      <section role="alert">
        <Heading as="h3" size="3">{say('server.conflict')}</Heading>
        <p>{say('server.conflict.help')}</p>
        <Difference before={theirs} after={mine} />
        <Flex gap="2" wrap="wrap" align="center">
          <Button type="button" color="red" disabled={isBusy} onClick={onMine}>{say('server.conflict.mine')}</Button>
          <PlainButton disabled={isBusy} onClick={onTheirs}>{say('server.conflict.theirs')}</PlainButton>
        </Flex>
      </section>
    </Panel>
  );
}
