/** Entries of the registry as the editor reads and writes them. */
import { api, refusal, type Schemas } from '../../api/client';
import { writeJson } from '../../api/digits';

export type Definition = Schemas['Definition'];
export type KeySchema = Schemas['KeySchema'];

export interface Read {
  definition: Definition;
  /** What the next change says that it was made of. */
  etag: string;
}

export const EMPTY: Definition = { id: '', name: '', url: '', description: '', config_schema: {}, default_config: {} };

export const write = (definition: Definition) => writeJson(definition, 2) ?? '';

export async function readEntry(id: string): Promise<Read> {
  const { data, error, response } = await api.GET('/v1/mcp-servers/{id}', { params: { path: { id } } });
  if (!data) throw refusal(response.status, error);
  const { updated_at: _, ...definition } = data;
  return { definition, etag: response.headers.get('etag') ?? '' };
}

/** A key of the configuration: what it is, and its default. */
export interface Key {
  name: string;
  schema: KeySchema;
  value: unknown;
}

export function keysOf(definition: Definition): Key[] {
  const values = (definition.default_config ?? {}) as Record<string, unknown>;
  return Object.entries(definition.config_schema ?? {}).map(([name, schema]) => ({ name, schema, value: values[name] }));
}

export function withKeys(definition: Definition, keys: Key[]): Definition {
  const values = keys.filter(({ value }) => value !== undefined).map(({ name, value }) => [name, value]);
  return {
    ...definition,
    config_schema: Object.fromEntries(keys.map(({ name, schema }) => [name, schema])),
    default_config: Object.fromEntries(values) as Record<string, never>,
  };
}
