-- What a database that is sharded by tenant needs (crates/store/src/shards.rs). Citus distributes no table whose policy
-- has a subquery, sends a query that calls a function with queries to no shard, and takes on no second role in a
-- transaction.

create function audit_days_of(tenant uuid) returns int language sql stable as $$
  select audit_days from tenants where id = tenant
$$;
-- The role that deletes old lines of the trail writes the line that says so.
alter policy retention on audit
  using (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid
         and at < now() - make_interval(days => audit_days_of(tenant_id)));
create policy retention_line on audit for insert to chatelaine_retention
  with check (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid and action = 'retention.purged');
grant insert on audit to chatelaine_retention;

-- Triggers run beside the rows of their tenant, and add to the same shard: the tenant is read from a row.
create or replace function note_message() returns trigger language plpgsql as $$
begin
  insert into unindexed_messages (tenant_id, user_id, id, seq)
  select c.tenant_id, c.user_id, c.id, new.seq
  from conversations c where c.tenant_id = new.tenant_id and c.id = new.conversation_id
  on conflict do nothing;
  return null;
end
$$;
create or replace function count_calls() returns trigger language plpgsql as $$
declare
  calls record;
begin
  for calls in
    select tenant_id, (at at time zone 'utc')::date as day, actor, agent, count(*) as number
    from lines where action = 'tool.call' and agent is not null group by 1, 2, 3, 4
  loop
    insert into usage_additions (tenant_id, id, day, user_id, agent, tool_calls)
    values (calls.tenant_id, gen_random_uuid(), calls.day, calls.actor, calls.agent, calls.number);
  end loop;
  return null;
end
$$;

-- What is left of the principal of a request whose requester was erased. Of texts it is the same every time, which
-- Postgres does not say of `json_build_object`.
create function erased_principal(tenant uuid, requester text) returns json language sql immutable parallel safe as $$
  select json_build_object('tenant', tenant, 'user', requester, 'claims', '{}'::json, 'locale', null,
                           'authenticated', not starts_with(requester, 'guest:'))
$$;
drop function branch_path(uuid, uuid, int);
