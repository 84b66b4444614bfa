/** Tools that their servers have changed or added, and what an admin accepts of it. */
import { Button, Code, Flex, Heading, Text } from '@radix-ui/themes';
import { useInfiniteQuery, useQuery } from '@tanstack/react-query';
import { useEffect } from 'react';
import { api, read, type Schemas } from '../api/client';
import { get, getPages, invalidate } from '../api/queries';
import { useBadge } from '../approvals/news';
import { toAdmin } from '../links';
import { PageLink } from '../parts/PageLink';
import { Panel } from '../parts/Panel';
import { Failure, Moment, Notice, Pending, StateBadge } from '../parts/parts';
import { useAction } from '../parts/useAction';
import { useTexts } from '../texts/texts';
import { SideBySide } from './registry/Difference';
import { Paged } from './Table';

type Changed = Schemas['ChangedTool'];

const PATH = '/v1/admin/changed-tools';
/** With more changes than this nobody is told any more. */
const OFTEN = 3;

/** Milliseconds: one definition may take the place of another, and the count says nothing of that. */
const AGAIN = 5000;

/** All of them, or the one that the address names. */
export function ChangedToolsPage({ item }: { item: string }) {
  const { changed_tools: count } = useBadge();
  useEffect(() => void invalidate(PATH), [count]);
  return item ? <One id={item} /> : <All />;
}

function All() {
  const tools = useInfiniteQuery({ ...getPages(PATH, { query: { limit: 20 } }), refetchInterval: AGAIN });
  return (
    <Paged query={tools} empty="changed.none">
      {(items) => <ul className="cards">{items.map((tool) => <li key={tool.id}><ToolCard tool={tool} /></li>)}</ul>}
    </Paged>
  );
}

function One({ id }: { id: string }) {
  const { say } = useTexts();
  const tool = useQuery(get('/v1/admin/changed-tools/{id}', { path: { id } }));
  return (
    <>
      <PageLink {...toAdmin('changed')}>{say('changed.all')}</PageLink>
      {tool.data ? <ToolCard tool={tool.data} /> : <Pending query={tool} />}
    </>
  );
}

function ToolCard({ tool }: { tool: Changed }) {
  const { say } = useTexts();
  const details = useQuery(get('/v1/admin/changed-tools/{id}', { path: { id: tool.id } }));
  const { isBusy, error, run } = useAction();
  const accept = () => run(async () => {
    try {
      await read(api.POST('/v1/admin/changed-tools/accept', { body: { tools: [{ id: tool.id, hash: tool.hash }] } }));
    } finally {
      await invalidate(PATH);
    }
  });
  const state = tool.is_held ? 'held' : tool.pin ? 'told' : 'unused';
  return (
    <Panel>
      <article aria-label={tool.tool}>
        <header>
          <Heading as="h3" size="3"><Code variant="ghost">{tool.tool}</Code></Heading>
          <StateBadge state={tool.is_held ? 'pending' : ''}>{say(`changed.${state}`)}</StateBadge>
        </header>
        <Text as="p" size="2" color="gray">
          {say(tool.is_new ? 'changed.new' : 'changed.changed', { agent: tool.agent, server: tool.server })} · <Moment at={tool.seen_at} />
        </Text>
        {tool.changed.length > 0 && <Text as="p" size="2">{say('changed.fields', { fields: tool.changed.join(', ') })}</Text>}
        {tool.pin === 'hold' && !tool.is_held && <Text as="p" size="2">{say('changed.harmless')}</Text>}
        {tool.is_shared && <Text as="p" size="2" color="gray">{say('changed.shared')}</Text>}
        {tool.changes > OFTEN && <Notice tone="wait">{say('changed.often')}</Notice>}
        <Text as="p" size="2">{say('changed.words')}</Text>
        {details.data
          ? <SideBySide labels={[say('changed.before'), say('changed.after')]} before={details.data.before ?? ''} after={details.data.after} />
          : <Pending query={details} />}
        <Flex gap="2" wrap="wrap" align="center">
          <Button disabled={isBusy || !details.data} onClick={() => void accept()}>{say('changed.accept')}</Button>
          <Code variant="ghost" color="gray" size="1">{tool.hash.slice(0, 16)}</Code>
        </Flex>
        <Failure error={error} />
      </article>
    </Panel>
  );
}
