-- What servers offer besides tools: prompts, resources that their results link to, and questions to the user.

alter table catalogs add column prompts json not null default '[]';

-- What tool results of a conversation linked to. Nothing else of a server can be read.
create table resource_links (
  tenant_id uuid not null,
  id uuid not null,
  conversation_id uuid not null,
  server text not null,
  -- whose result it was: whoever may not use the tool any more may not read what it linked to
  tool text not null,
  uri text not null,
  name text,
  mime_type text,
  created_at timestamptz not null default now(),
  primary key (tenant_id, id),
  unique (tenant_id, conversation_id, server, uri),
  foreign key (tenant_id, conversation_id) references conversations (tenant_id, id) on delete cascade
);

alter table resource_links enable row level security;
alter table resource_links force row level security;
create policy tenant on resource_links to chatelaine_tenant
  using (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid)
  with check (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid);
grant select, insert, update, delete on resource_links to chatelaine_tenant;

-- A call that its server answered with a question to the user: what is asked, and how far the answer is.
create table elicitations (
  tenant_id uuid not null,
  id uuid not null,
  conversation_id uuid not null,
  user_id text not null,
  agent text not null,
  server text not null,
  tool text not null,
  -- the run and the call that were answered with it
  run_id uuid not null,
  call_id text not null,
  -- whose connection it was
  credential text not null,
  -- whether a model waits for the outcome, or the user who typed /call
  for_model boolean not null,
  -- how often the server has asked in the course of this call, from 1
  round int not null,
  -- open: the user is asked; answered: `answer_run` is to make the call; sent: it may have been sent
  state text not null default 'open' check (state in ('open', 'answered', 'sent')),
  -- which question is asked now
  step int not null default 0,
  -- the arguments, the questions and the server's own state, sealed
  sealed bytea not null,
  tenant_key_version int not null generated always as (
    (get_byte(sealed, 3) << 24) | (get_byte(sealed, 4) << 16) | (get_byte(sealed, 5) << 8) | get_byte(sealed, 6)
  ) stored,
  -- what was answered so far, sealed
  entered bytea,
  entered_key_version int generated always as (
    case when entered is null then null
    else (get_byte(entered, 3) << 24) | (get_byte(entered, 4) << 16) | (get_byte(entered, 5) << 8) | get_byte(entered, 6) end
  ) stored,
  -- why the last answer could not be used
  fault text,
  answer_run uuid,
  expires_at timestamptz not null,
  primary key (tenant_id, id),
  foreign key (tenant_id, conversation_id) references conversations (tenant_id, id) on delete cascade,
  foreign key (tenant_id, tenant_key_version) references tenant_keys (tenant_id, version),
  foreign key (tenant_id, entered_key_version) references tenant_keys (tenant_id, version)
);
-- One at a time: what is typed answers it.
create unique index elicitations_open on elicitations (tenant_id, conversation_id) where state = 'open';
create index on elicitations (tenant_id, answer_run) where answer_run is not null;
create index on elicitations (expires_at);

alter table elicitations enable row level security;
alter table elicitations force row level security;
create policy tenant on elicitations to chatelaine_tenant
  using (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid)
  with check (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid);
grant select, insert, update, delete on elicitations to chatelaine_tenant;

-- What nobody answered is found by the clock.
create policy system on elicitations for select to chatelaine_system using (true);
grant select (tenant_id, id, expires_at) on elicitations to chatelaine_system;
