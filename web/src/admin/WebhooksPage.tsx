import { useInfiniteQuery, useQuery } from '@tanstack/react-query';
import { useState } from 'react';
import { api, read, type Schemas } from '../api/client';
import { get, getPages, invalidate } from '../api/queries';
import { ConfirmButton, Empty, Failure, Moment, Pending } from '../parts/parts';
import { useAction } from '../parts/useAction';
import { useTexts } from '../texts/texts';
import { NumberHead, Paged, Table } from './Table';

type Hook = Schemas['Webhook'];

export function WebhooksPage() {
  const { say } = useTexts();
  const hooks = useQuery(get('/v1/admin/webhooks'));
  return (
    <>
      <NewWebhook />
      {!hooks.data && <Pending query={hooks} />}
      {hooks.data?.items.length === 0 && <Empty>{say('admin.none')}</Empty>}
      <ul className="cards">{hooks.data?.items.map((hook) => <li key={hook.id}><Card hook={hook} /></li>)}</ul>
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
    <form className="card" onSubmit={(event) => { event.preventDefault(); void make(); }}>
      <div className="filters">
        <label>{say('server.url')}<input type="url" required value={url} onChange={(event) => setUrl(event.target.value)} /></label>
        <label>{say('webhook.events')}<input required value={events} onChange={(event) => setEvents(event.target.value)} /></label>
        <button type="submit" className="primary" disabled={isBusy}>{say('webhook.make')}</button>
      </div>
      {made && <p role="status" className="made">{say('webhook.made')} <code>{made.secret}</code></p>}
      <Failure error={error} />
    </form>
  );
}

function Card({ hook }: { hook: Hook }) {
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
    <article className="card" aria-label={hook.url}>
      <header>
        <h3><code>{hook.url}</code></h3>
        {hook.disabled_at && <span className="state failed">{say('webhook.disabled')}</span>}
      </header>
      <p className="muted">{hook.events.join(', ')}</p>
      {hook.last_error && <p className="reason">{hook.last_failed_at && <Moment at={hook.last_failed_at} />} {hook.last_error}</p>}
      <div className="buttons">
        <button type="button" disabled={isBusy} onClick={() => void test()}>{say('connection.test')}</button>
        <ConfirmButton label={say('remove')} question={say('webhook.remove')} disabled={isBusy} onConfirm={() => void remove()} />
      </div>
      {pinged && <p role="status" className={pinged.delivered ? 'good' : 'failure'}>{pinged.delivered ? say('webhook.delivered') : (pinged.error ?? `HTTP ${pinged.status}`)}</p>}
      <Failure error={error} />
      <details onToggle={(event) => setIsOpen(event.currentTarget.open)}>
        <summary>{say('webhook.deliveries')}</summary>
        {isOpen && <Deliveries id={hook.id} />}
      </details>
    </article>
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
            <tr key={one.id}>
              <td><Moment at={one.created_at} /></td>
              <td><code>{one.event}</code></td>
              <td><span className={`state ${one.state}`}>{say(`delivery.${one.state}`)}</span></td>
              <td className="number">{one.attempts}</td>
              <td>{one.next_attempt_at && <Moment at={one.next_attempt_at} />}</td>
              <td>{[one.last_status && `HTTP ${one.last_status}`, one.last_error].filter(Boolean).join(' · ')}</td>
            </tr>
          ))}
        </Table>
      )}
    </Paged>
  );
}
