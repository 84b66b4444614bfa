/** What admins set for the servers of an agent or of a capability: how it is read and written. */
import { api, read, refusal, type Schemas } from '../../api/client';
import { isReference } from '../registry/ValueField';

export interface Owner {
  level: 'agent' | 'capability';
  name: string;
}

export type ConfiguredServer = Schemas['ConfiguredServer'];
export type ConfigKey = Schemas['ConfigKey'];
export type Setting = Schemas['SettingDefinition'];

export const keyOf = ({ level, name }: Owner) => ['/v1/admin/servers', level, name];

export async function listServers({ level, name }: Owner): Promise<ConfiguredServer[]> {
  const list = level === 'agent'
    ? api.GET('/v1/admin/agents/{agent}/servers', { params: { path: { agent: name } } })
    : api.GET('/v1/admin/capabilities/{capability}/servers', { params: { path: { capability: name } } });
  return (await read(list)).items;
}

/** A server, and what its next change says that it was made of; empty where nothing is set yet. */
export async function readServer({ level, name }: Owner, server: string): Promise<{ view: ConfiguredServer; etag: string }> {
  const { data, error, response } = level === 'agent'
    ? await api.GET('/v1/admin/agents/{agent}/servers/{server}', { params: { path: { agent: name, server } } })
    : await api.GET('/v1/admin/capabilities/{capability}/servers/{server}', { params: { path: { capability: name, server } } });
  if (!data) throw refusal(response.status, error);
  return { view: data, etag: response.headers.get('etag') ?? '' };
}

/** Stores a setting; `false` when somebody else has changed it since. */
export async function store({ level, name }: Owner, server: string, body: Setting, etag: string): Promise<boolean> {
  const header = etag ? { 'If-Match': etag } : { 'If-None-Match': '*' };
  const { response, error } = level === 'agent'
    ? await api.PUT('/v1/admin/agents/{agent}/servers/{server}', { params: { path: { agent: name, server }, header }, body })
    : await api.PUT('/v1/admin/capabilities/{capability}/servers/{server}', { params: { path: { capability: name, server }, header }, body });
  if (response.status === 412) return false;
  if (!response.ok) throw refusal(response.status, error);
  return true;
}

export async function remove({ level, name }: Owner, server: string, etag: string): Promise<void> {
  const header = { 'If-Match': etag };
  await read(level === 'agent'
    ? api.DELETE('/v1/admin/agents/{agent}/servers/{server}', { params: { path: { agent: name, server }, header } })
    : api.DELETE('/v1/admin/capabilities/{capability}/servers/{server}', { params: { path: { capability: name, server }, header } }));
}

/** What was typed as a secret is not shown again, also not in a difference. */
export function maskTyped(keys: ConfigKey[], config: Record<string, unknown>): Record<string, unknown> {
  const isTyped = (name: string) => keys.some(({ key, sensitive }) => key === name && sensitive) && typeof config[name] === 'string' && !isReference(config[name]);
  return Object.fromEntries(Object.entries(config).map(([name, value]) => [name, isTyped(name) ? '••••' : value]));
}
