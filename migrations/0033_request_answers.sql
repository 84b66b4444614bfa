-- Answers of requests that made something, for a client that sends such a request again within a day.
create table request_answers (
  tenant_id uuid not null references tenants (id) on delete cascade,
  id uuid not null,
  -- who asked; for somebody without a credential the address
  user_id text not null,
  -- what the client calls the request
  key text not null,
  -- SHA-256 of its method, path and body
  digest bytea not null,
  -- status, headers and body; null until the thing is made
  sealed bytea,
  created_at timestamptz not null default now(),
  primary key (tenant_id, id),
  unique (tenant_id, user_id, key)
);
create index on request_answers (tenant_id, created_at);

alter table request_answers enable row level security;
alter table request_answers force row level security;
create policy tenant on request_answers to chatelaine_tenant
  using (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid)
  with check (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid);
grant select, insert, update, delete on request_answers to chatelaine_tenant;

-- The same for the operator, whose answers hold no secret.
create table operator_request_answers (
  key text primary key,
  id uuid not null,
  digest bytea not null,
  answer bytea,
  created_at timestamptz not null default now()
);
alter table operator_request_answers enable row level security;
alter table operator_request_answers force row level security;
create policy system on operator_request_answers to chatelaine_system using (true) with check (true);
grant select, insert, update, delete on operator_request_answers to chatelaine_system;
