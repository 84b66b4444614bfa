import { Button, Code, Flex, Heading } from '@radix-ui/themes';
import { useQuery } from '@tanstack/react-query';
import { useState } from 'react';
import { writeJson } from '../../api/digits';
import { queries } from '../../api/queries';
import { Faults } from '../../parts/Faults';
import { Panel } from '../../parts/Panel';
import { ConfirmButton, Notice, Pending, StateBadge } from '../../parts/parts';
import { useAction } from '../../parts/useAction';
import { useTexts } from '../../texts/texts';
import { Conflict } from '../registry/Conflict';
import { type Access, AccessField } from './AccessField';
import { KeySetting } from './KeySetting';
import { type ConfiguredServer, keyOf, maskTyped, type Owner, readServer, remove, type Setting, store } from './settings';

/** Loads again what agents and capabilities have. */
const changed = () => Promise.all([
  queries.invalidateQueries({ queryKey: ['/v1/admin/servers'] }),
  queries.invalidateQueries({ queryKey: ['/v1/agents/{agent}/servers'] }),
]);

/** What is set for one server, in a form. `view` is as the list has it; the form has the newest version of it. */
export function ServerSetting({ owner, view }: { owner: Owner; view: ConfiguredServer }) {
  const { say } = useTexts();
  const loaded = useQuery({ queryKey: [...keyOf(owner), view.server], queryFn: () => readServer(owner, view.server), staleTime: Infinity, gcTime: 0 });
  const again = () => void Promise.all([loaded.refetch(), changed()]);
  return (
    <Panel>
      <section aria-label={say('setting.server', { server: view.server })}>
        <Heading as="h3" size="3">{say('setting.server', { server: view.server })} <Code variant="ghost">{view.ref}</Code></Heading>
        {!view.inherited && <div><StateBadge>{say('setting.added')}</StateBadge></div>}
        {view.problem && <Notice tone="bad">{view.problem}</Notice>}
        {loaded.data ? <SettingForm key={loaded.data.etag} owner={owner} {...loaded.data} onSaved={again} /> : <Pending query={loaded} />}
      </section>
    </Panel>
  );
}

/** The fields of a setting. Without an `etag` nothing is set yet. */
export function SettingForm({ owner, view, etag, onSaved }: { owner: Owner; view: ConfiguredServer; etag: string; onSaved: () => void }) {
  const { say } = useTexts();
  const before = view.setting;
  const [config, setConfig] = useState<Record<string, unknown>>(before?.config ?? {});
  const [access, setAccess] = useState<Access>((before?.toolAccess ?? undefined) as Access);
  const [theirs, setTheirs] = useState<{ view: ConfiguredServer; etag: string }>();
  const { isBusy, error, run } = useAction();
  const mine = (values: Record<string, unknown>): Setting => ({
    ref: view.ref, config: values as Record<string, never>,
    ...(access && { toolAccess: access as Record<string, never> }),
    ...(before?.tools && { tools: before.tools }),
  });
  const save = (at: string) => run(async () => {
    if (!(await store(owner, view.server, mine(config), at))) return setTheirs(await readServer(owner, view.server));
    onSaved();
    await changed();
  });
  const drop = () => run(async () => {
    await remove(owner, view.server, etag);
    onSaved();
    await changed();
  });
  const set = (key: string) => (isSet: boolean, value?: unknown) => {
    const { [key]: _, ...others } = config;
    setConfig(isSet ? { ...others, [key]: value } : others);
  };
  return (
    <form onSubmit={(event) => { event.preventDefault(); void save(etag); }}>
      <Faults error={error}>
        {!view.inherited && <AccessField access={access} onChange={setAccess} />}
        <div className="keys">
          {view.config.map((key) => (
            <KeySetting key={key.key} view={key} level={owner.level} isSet={key.key in config} value={config[key.key]} onChange={set(key.key)} />
          ))}
        </div>
        {theirs && (
          <Conflict
            theirs={writeJson(theirs.view.setting ?? {}, 2) ?? ''} mine={writeJson(mine(maskTyped(view.config, config)), 2) ?? ''} isBusy={isBusy}
            onMine={() => void save(theirs.etag)} onTheirs={onSaved}
          />
        )}
      </Faults>
      <Flex gap="2" wrap="wrap" align="center">
        <Button type="submit" disabled={isBusy}>{say('save')}</Button>
        {etag && <ConfirmButton label={say('remove')} question={say(view.inherited ? 'setting.remove' : 'setting.remove.added')} disabled={isBusy} onConfirm={() => void drop()} />}
      </Flex>
    </form>
  );
}
