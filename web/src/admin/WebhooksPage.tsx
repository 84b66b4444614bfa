import { Button, Code, Flex, Heading, Text } from '@radix-ui/themes';
import { useInfiniteQuery, useQuery } from '@tanstack/react-query';
import { useState } from 'react';
import { api, read, type Schemas } from '../api/client';
import { get, getPages, invalidate } from '../api/queries';
import { TextEntry } from '../parts/Field';
import { Panel } from '../parts/Panel';
import { PlainButton } from '../parts/PlainButton';
import { ConfirmButton, Empty, Failure, Moment, Notice, Pending, StateBadge } from '../parts/parts';
import { useAction } from '../parts/useAction';
import { useTexts } from '../texts/texts';
import { Cell, NumberCell, NumberHead, Paged, Row, Table } from './Table';

type Hook = Schemas['Webhook'];

export function WebhooksPage() {
  const { say } = useTexts();
  const hooks = useQuery(get('/v1/admin/webhooks'));
  return (
    <>
      <NewWebhook />
      {!hooks.data && <Pending query={hooks} />}
      {hooks.data?.items.length === 0 && <Empty>{say('webhooks.none')}</Empty>}
      <ul className="cards">{hooks.data?.items.map((hook) => <li key={hook.id}><HookCard hook={hook} /></li>)}</ul>
    </>
  );
}

/** The secret with which deliveries are signed is shown once. */
function NewWebhook() {
  const { say } = useTexts();
  const [url, setUrl] = useState('');
  const [events, setEvents] = useState('approval.*');
  const [made, setMade] = useState<Schemas['MadeWebhook']>();
  const { isBusy, error, run } = useAction();
  const make = () => run(async () => {
    setMade(await read(api.POST('/v1/admin/webhooks', { body: { url, events: events.split(/[\s,]+/).filter(Boolean) } })));
    setUrl('');
    await invalidate('/v1/admin/webhooks');
  });
  return (
    <Panel>
      <form onSubmit={(event) => { event.preventDefault(); void make(); }}>
        <div className="filters">
          <TextEntry label={say('server.url')} type="url" required value={url} onChange={setUrl} />
          <TextEntry label={say('webhook.events')} required value={events} onChange={setEvents} />
          <Button type="submit" disabled={isBusy}>{say('webhook.make')}</Button>
        </div>
        {made && <Notice tone="good" role="status">{say('webhook.made')} <Code variant="ghost">{made.secret}</Code></Notice>}
        <Failure error={error} />
      </form>
    </Panel>
  );
}

function HookCard({ hook }: { hook: Hook }) {
  const { say } = useTexts();
  const [isOpen, setIsOpen] = useState(false);
  const [pinged, setPinged] = useState<Schemas['Pinged']>();
  const { isBusy, error, run } = useAction();
  const path = { id: hook.id };
  const test = () => run(async () => {
    setPinged(await read(api.POST('/v1/admin/webhooks/{id}/test', { params: { path } })));
    await Promise.all([invalidate('/v1/admin/webhooks'), invalidate('/v1/admin/webhooks/{id}/deliveries', { path })]);
  });
  const remove = () => run(async () => {
    await read(api.DELETE('/v1/admin/webhooks/{id}', { params: { path } }));
    await invalidate('/v1/admin/webhooks');
  });
  return (
    <Panel>
      <article aria-label={hook.url}>
        <header>
          <Heading as="h3" size="3"><Code variant="ghost">{hook.url}</Code></Heading>
          {hook.disabled_at && <StateBadge state="failed">{say('webhook.disabled')}</StateBadge>}
        </header>
        <Text as="p" size="2" color="gray">{hook.events.join(', ')}</Text>
        {hook.last_error && <Notice tone="wait">{hook.last_failed_at && <Moment at={hook.last_failed_at} />} {hook.last_error}</Notice>}
        <Flex gap="2" wrap="wrap" align="center">
          <PlainButton disabled={isBusy} onClick={() => void test()}>{say('connection.test')}</PlainButton>
          <ConfirmButton label={say('remove')} question={say('webhook.remove')} disabled={isBusy} onConfirm={() => void remove()} />
        </Flex>
        {pinged && <Notice role="status" tone={pinged.delivered ? 'good' : 'bad'}>{pinged.delivered ? say('webhook.delivered') : (pinged.error ?? `HTTP ${pinged.status}`)}</Notice>}
        <Failure error={error} />
        <details onToggle={(event) => setIsOpen(event.currentTarget.open)}>
          <summary>{say('webhook.deliveries')}</summary>
          {isOpen && <Deliveries id={hook.id} />}
        </details>
      </article>
    </Panel>
  );
}

function Deliveries({ id }: { id: string }) {
  const { say } = useTexts();
  const deliveries = useInfiniteQuery(getPages('/v1/admin/webhooks/{id}/deliveries', { path: { id }, query: { limit: 20 } }));
  return (
    <Paged query={deliveries}>
      {(items) => (
        <Table label={say('webhook.deliveries')} heads={[say('audit.at'), say('webhook.events'), say('key.state'), <NumberHead key="attempts">{say('webhook.attempts')}</NumberHead>, say('webhook.next'), say('details')]}>
          {items.map((one) => (
            <Row key={one.id}>
              <Cell><Moment at={one.created_at} /></Cell>
              <Cell><Code variant="ghost">{one.event}</Code></Cell>
              <Cell><StateBadge state={one.state}>{say(`delivery.${one.state}`)}</StateBadge></Cell>
              <NumberCell>{one.attempts}</NumberCell>
              <Cell>{one.next_attempt_at && <Moment at={one.next_attempt_at} />}</Cell>
              <Cell>{[one.last_status && `HTTP ${one.last_status}`, one.last_error].filter(Boolean).join(' · ')}</Cell>
            </Row>
          ))}
        </Table>
      )}
    </Paged>
  );
}
