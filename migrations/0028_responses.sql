-- Answers that an OpenAI client can read again and continue by their id, which is the id of their run.
create table responses (
  tenant_id uuid not null,
  id uuid not null,
  conversation_id uuid not null,
  -- the answer begins after this event of the conversation
  first_event bigint not null,
  -- what the request said that is repeated with the answer, or changes how it is read
  settings json not null,
  created_at timestamptz not null default now(),
  primary key (tenant_id, id),
  foreign key (tenant_id, id) references runs (tenant_id, id) on delete cascade,
  foreign key (tenant_id, conversation_id) references conversations (tenant_id, id) on delete cascade
);
create index on responses (tenant_id, conversation_id);

-- The chats of clients that name them: which conversation a chat is, and the run that answers it.
create table client_chats (
  tenant_id uuid not null,
  id uuid not null,
  user_id text not null,
  -- the protocol and the client's own id of the chat
  chat text not null,
  conversation_id uuid not null,
  run_id uuid not null,
  -- the answer begins after this event of the conversation
  first_event bigint not null,
  -- how often the client came back to the answer of this run
  repeats int not null default 0,
  updated_at timestamptz not null default now(),
  primary key (tenant_id, id),
  unique (tenant_id, user_id, chat),
  foreign key (tenant_id, conversation_id) references conversations (tenant_id, id) on delete cascade,
  foreign key (tenant_id, run_id) references runs (tenant_id, id) on delete cascade
);
create index on client_chats (tenant_id, conversation_id);
create index on client_chats (tenant_id, run_id);

alter table responses enable row level security;
alter table responses force row level security;
create policy tenant on responses to chatelaine_tenant
  using (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid)
  with check (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid);
grant select, insert, update, delete on responses to chatelaine_tenant;

alter table client_chats enable row level security;
alter table client_chats force row level security;
create policy tenant on client_chats to chatelaine_tenant
  using (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid)
  with check (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid);
grant select, insert, update, delete on client_chats to chatelaine_tenant;
