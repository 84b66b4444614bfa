-- Lines of the trail that did not end well are few, and looked for among many that did.
create index audit_by_outcome on audit (tenant_id, outcome, id) where outcome not in ('succeeded', 'outcome_unknown');
create index audit_outcomes_by_outcome on audit_outcomes (tenant_id, outcome, id) where outcome <> 'succeeded';
-- Calls of which nobody knows yet how they ended: those that are out, and those that may have been carried out. By
-- triggers, so that the calls of the release before this one are among them, too.
create table audit_open_lines (
  tenant_id uuid not null,
  -- of the line
  id uuid not null,
  primary key (tenant_id, id),
  foreign key (tenant_id, id) references audit (tenant_id, id) on delete cascade
);
select lock_by_tenant('audit_open_lines');
create function open_line() returns trigger language plpgsql as $$
begin
  insert into audit_open_lines (tenant_id, id) values (new.tenant_id, new.id);
  return null;
end
$$;
create trigger open_line after insert on audit
  for each row when (new.outcome = 'outcome_unknown') execute function open_line();
create function close_line() returns trigger language plpgsql as $$
begin
  delete from audit_open_lines where tenant_id = new.tenant_id and id = new.id;
  return null;
end
$$;
create trigger close_line after insert on audit_outcomes for each row execute function close_line();
-- By a tool, whatever its server.
create index audit_by_tool_name on audit (tenant_id, tool, id) where tool is not null;

-- Requests that wait for others are counted, and those about which only their own user is asked are not.
grant select (approvers) on approvals to chatelaine_system;

-- Requests for consent that ended otherwise than most, and who has voted.
create index approvals_by_state on approvals (tenant_id, state, id)
  where state not in ('pending', 'approved', 'executing', 'succeeded');
create index approval_votes_by_approver on approval_votes (tenant_id, approver);

-- Calls are added up by day, like runs, so that nobody counts the trail for them; what retention deletes of the trail
-- stays counted. By a trigger, so that the calls of the release before this one count, too.
alter table usage add column tool_calls bigint not null default 0;
alter table usage_additions add column tool_calls bigint not null default 0;
-- Each sum is a statement of its own, with the tenant as a value: Citus makes that in the tenant's shard.
create function count_calls() returns trigger language plpgsql as $$
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
create trigger count_calls after insert on audit referencing new table as lines
  for each statement execute function count_calls();
-- What is there already. No line is added between the triggers and this: their locks last as long. And the conversations
-- from before there was a search by words wait to be read.
do $$
declare
  worker text := current_user;
  all_tenants uuid[];
  tenant uuid;
begin
  perform set_config('role', 'chatelaine_system', true);
  select coalesce(array_agg(id), '{}') into all_tenants from tenants;
  perform set_config('role', 'chatelaine_tenant', true);
  foreach tenant in array all_tenants loop
    perform set_config('app.tenant_id', tenant::text, true);
    insert into usage_additions (tenant_id, id, day, user_id, agent, tool_calls)
    select tenant_id, gen_random_uuid(), (at at time zone 'utc')::date, actor, agent, count(*)
    from audit where tenant_id = tenant and action = 'tool.call' and agent is not null
    group by tenant_id, (at at time zone 'utc')::date, actor, agent;
    insert into audit_open_lines (tenant_id, id)
    select tenant_id, id from audit a
    where tenant_id = tenant and outcome = 'outcome_unknown'
      and not exists (select 1 from audit_outcomes o where o.tenant_id = tenant and o.id = a.id);
    insert into unindexed_messages (tenant_id, user_id, id, seq, created_at)
    select tenant_id, user_id, id, last_seq, created_at from conversations
    where tenant_id = tenant and (last_seq > 0 or title <> '')
    on conflict do nothing;
  end loop;
  perform set_config('role', worker, true);
end
$$;

-- From when on nothing counts that a sum has let through so far; the purge then deletes it. Null: the release before
-- this one looked at it, and no limit counts for longer than 366 days.
alter table limit_sums add column over_at timestamptz;
