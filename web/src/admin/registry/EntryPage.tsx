import { Button, Code, Flex, Heading } from '@radix-ui/themes';
import { useQuery } from '@tanstack/react-query';
import { useNavigate } from '@tanstack/react-router';
import { useState } from 'react';
import { api, read, refusal } from '../../api/client';
import { invalidate } from '../../api/queries';
import { Faults } from '../../parts/Faults';
import { jsonFault } from '../../parts/json';
import { JsonText } from '../../parts/JsonField';
import { PageLink } from '../../parts/PageLink';
import { Panel } from '../../parts/Panel';
import { ConfirmButton, Notice, Pending } from '../../parts/parts';
import { useAction } from '../../parts/useAction';
import { toAdmin } from '../../links';
import { useTexts } from '../../texts/texts';
import { type Definition, EMPTY, type Read, readEntry, write } from './entry';
import { Conflict } from './Conflict';
import { EntryForm } from './EntryForm';
import { UsedBy } from './UsedBy';

/** One entry: its form and its JSON side by side. Without an id it is a new one. */
export function EntryPage({ id }: { id: string }) {
  const { say } = useTexts();
  // What is edited is loaded once, and again when it is saved: a change in between is a conflict, which is shown.
  const loaded = useQuery({
    queryKey: ['/v1/mcp-servers/{id}', id],
    queryFn: async (): Promise<Read> => (id ? readEntry(id) : { definition: EMPTY, etag: '' }),
    staleTime: Infinity,
    gcTime: 0,
  });
  return (
    <>
      <p><PageLink {...toAdmin('servers')}>← {say('admin.servers')}</PageLink></p>
      <Heading as="h2" size="4">{id ? <Code variant="ghost">{id}</Code> : say('server.new')}</Heading>
      {loaded.data
        ? <Editor key={loaded.data.etag} id={id} read={loaded.data} onSaved={() => void Promise.all([loaded.refetch(), changed()])} />
        : <Pending query={loaded} />}
      {id && <UsedBy id={id} />}
    </>
  );
}

function parse(text: string): Definition | Error {
  try {
    const value: unknown = JSON.parse(text);
    if (typeof value === 'object' && value !== null && !Array.isArray(value)) return value as Definition;
    return new Error('{ … }');
  } catch (error) {
    return error as Error;
  }
}

/** The list of the entries, and what agents make of them. */
const changed = () => Promise.all([invalidate('/v1/mcp-servers'), invalidate('/v1/agents/{agent}/servers')]);

function Editor({ id, read: was, onSaved }: { id: string; read: Read; onSaved: () => void }) {
  const { say } = useTexts();
  const [text, setText] = useState(() => write(was.definition));
  const [theirs, setTheirs] = useState<Read>();
  const navigate = useNavigate();
  const { isBusy, error, run } = useAction();
  const definition = parse(text);
  const save = (etag: string) => run(async () => {
    if (definition instanceof Error) return;
    if (!id) {
      const made = await read(api.POST('/v1/mcp-servers', { body: definition }));
      void changed();
      return navigate(toAdmin('servers', made.id ?? ''));
    }
    const { response, error: problem } = await api.PUT('/v1/mcp-servers/{id}', { params: { path: { id }, header: { 'If-Match': etag } }, body: definition });
    if (response.status === 412) return setTheirs(await readEntry(id));
    if (!response.ok) throw refusal(response.status, problem);
    setTheirs(undefined);
    onSaved();
  });
  const remove = () => run(async () => {
    await read(api.DELETE('/v1/mcp-servers/{id}', { params: { path: { id }, header: { 'If-Match': was.etag } } }));
    void changed();
    await navigate(toAdmin('servers'));
  });
  const fault = text.trim() === '' ? { line: 1, column: 1 } : jsonFault(text);
  return (
    <form onSubmit={(event) => { event.preventDefault(); void save(was.etag); }}>
      <Faults error={error}>
        <div className="sides">
          <Panel>
            <section aria-label={say('server.form')}>
              {definition instanceof Error
                ? <Notice tone="bad">{fault ? say('json.wrong', { line: fault.line, column: fault.column }) : `${say('server.json.wrong')} ${definition.message}`}</Notice>
                : <EntryForm isNew={!id} definition={definition} onChange={(next) => setText(write(next))} />}
            </section>
          </Panel>
          <JsonText label={say('server.json')} rows={24} text={text} onChange={setText} />
        </div>
        {theirs && <Conflict theirs={write(theirs.definition)} mine={text} isBusy={isBusy} onMine={() => void save(theirs.etag)} onTheirs={onSaved} />}
      </Faults>
      <Flex gap="2" wrap="wrap" align="center">
        <Button type="submit" disabled={isBusy || definition instanceof Error}>{say('save')}</Button>
        {id && <ConfirmButton label={say('remove')} question={say('server.remove')} disabled={isBusy} onConfirm={() => void remove()} />}
      </Flex>
    </form>
  );
}
