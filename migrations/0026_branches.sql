-- Versions of a conversation. A branch begins where a message was edited or asked again: it has the messages of its
-- parent with a number below `from_seq`, and those with its own number. Branch 0 is the one that every conversation
-- begins with; it has no row.
create table branches (
  tenant_id uuid not null,
  id uuid not null,
  conversation_id uuid not null,
  number int not null check (number > 0),
  parent int not null,
  from_seq bigint not null,
  created_at timestamptz not null default now(),
  primary key (tenant_id, id),
  unique (tenant_id, conversation_id, number),
  foreign key (tenant_id, conversation_id) references conversations (tenant_id, id) on delete cascade
);
alter table branches enable row level security;
alter table branches force row level security;
create policy tenant on branches to chatelaine_tenant
  using (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid)
  with check (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid);
grant select, insert, update, delete on branches to chatelaine_tenant;

-- The branch that is shown and goes on, and the number of the newest one.
alter table conversations add column branch int not null default 0, add column last_branch int not null default 0;
alter table messages add column branch int not null default 0;

-- Which messages a branch shows: of each branch on the way to the root, those with a number below `upto`.
create function branch_path(tenant uuid, conversation uuid, wanted int)
returns table (branch int, upto bigint) language sql stable as $$
  with recursive path (branch, upto) as (
    select wanted, 9223372036854775807
    union all
    select b.parent, b.from_seq from path
    join branches b on b.tenant_id = tenant and b.conversation_id = conversation and b.number = path.branch
  )
  select branch, upto from path
$$;

-- What a user lists of their runs.
create index on runs (tenant_id, user_id, id desc);
