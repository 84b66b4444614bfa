-- Images and text files of a conversation, at most 10 MiB each.
create table attachments (
  tenant_id uuid not null,
  id uuid not null,
  conversation_id uuid not null,
  name text not null,
  -- judged by the content
  media_type text not null,
  size bigint not null,
  data bytea not null,
  created_at timestamptz not null default now(),
  primary key (tenant_id, id),
  foreign key (tenant_id, conversation_id) references conversations (tenant_id, id) on delete cascade
);
-- Images and texts that are worth it are compressed already, or small.
alter table attachments alter column data set storage external;
create index on attachments (tenant_id, conversation_id);

-- What a user thinks of an answer.
create table feedback (
  tenant_id uuid not null,
  id uuid not null,
  conversation_id uuid not null,
  message_id uuid not null,
  rating text not null check (rating in ('up', 'down')),
  comment text,
  created_at timestamptz not null default now(),
  primary key (tenant_id, id),
  unique (tenant_id, message_id),
  foreign key (tenant_id, conversation_id) references conversations (tenant_id, id) on delete cascade,
  foreign key (tenant_id, message_id) references messages (tenant_id, id) on delete cascade
);
create index on feedback (tenant_id, conversation_id);

-- Tickets for event streams: each opens one stream, once, within a minute.
create table stream_tickets (
  tenant_id uuid not null references tenants (id) on delete cascade,
  id uuid not null,
  -- SHA-256 of the ticket
  hash bytea not null check (length(hash) = 32),
  -- who asked, as verified then
  principal json not null,
  expires_at timestamptz not null,
  primary key (tenant_id, id),
  unique (tenant_id, hash)
);

do $$
declare
  name text;
begin
  foreach name in array array['attachments', 'feedback', 'stream_tickets'] loop
    execute format('alter table %I enable row level security', name);
    execute format('alter table %I force row level security', name);
    execute format('create policy tenant on %I to chatelaine_tenant
      using (tenant_id = nullif(current_setting(''app.tenant_id'', true), '''')::uuid)
      with check (tenant_id = nullif(current_setting(''app.tenant_id'', true), '''')::uuid)', name);
    execute format('grant select, insert, update, delete on %I to chatelaine_tenant', name);
  end loop;
end
$$;
