-- Calls that wait for somebody's consent (src/domain/approval.rs). A request outlives the conversation that it
-- was made in, so it names conversation and run without a foreign key: when they are gone there is nobody to tell.
create table approvals (
  tenant_id uuid not null references tenants (id) on delete cascade,
  id uuid not null,
  code text not null,
  state text not null check (state in ('pending', 'approved', 'executing', 'succeeded', 'failed', 'outcome_unknown',
                                       'rejected', 'expired', 'cancelled', 'revoked', 'lapsed')),
  agent text not null,
  server text not null,
  tool text not null,
  -- the server's own words of the tool, and SHA-256 over all that it said of it
  about json not null,
  fingerprint bytea not null check (length(fingerprint) = 32),
  -- the arguments as they run: canonical JSON, sealed, and its SHA-256
  args_sha256 bytea not null check (length(args_sha256) = 32),
  sealed bytea not null,
  -- read out of the envelope, so that the two cannot disagree. These records are not sealed anew by `rewrap`:
  -- versions of a tenant's key are never deleted, only wrapped anew
  tenant_key_version int not null generated always as (
    (get_byte(sealed, 3) << 24) | (get_byte(sealed, 4) << 16) | (get_byte(sealed, 5) << 8) | get_byte(sealed, 6)
  ) stored,
  -- which credential the call would go out with
  credential text not null,
  requester text not null,
  -- who asked, as verified then
  principal json not null,
  conversation_id uuid,
  run_id uuid,
  call_id text not null,
  follow_up boolean not null,
  -- the policy as it was
  approvers text[] not null,
  min_approvals int not null check (min_approvals > 0),
  self_approval boolean not null,
  reason text,
  decided_by text,
  decided_at timestamptz,
  created_at timestamptz not null default clock_timestamp(),
  expires_at timestamptz not null,
  changed_at timestamptz not null default clock_timestamp(),
  finished_at timestamptz,
  evidence text,
  recorded_happened boolean,
  recorded_note text,
  recorded_by text,
  recorded_at timestamptz,
  -- who is about to execute it or does, until when; a write with an older fence is refused
  lease_owner uuid,
  lease_until timestamptz,
  fence bigint not null default 0,
  -- approved, it must have been begun by then
  lapses_at timestamptz,
  primary key (tenant_id, id),
  foreign key (tenant_id, tenant_key_version) references tenant_keys (tenant_id, version),
  check (num_nonnulls(recorded_happened, recorded_by, recorded_at) in (0, 3)),
  check ((state = 'approved' or state = 'executing') <= (lapses_at is not null)),
  check ((state = 'executing') <= (lease_until is not null))
);

create unique index approvals_code on approvals (tenant_id, code) where state in ('pending', 'approved', 'executing');
-- the same call of the same person waits once
create unique index approvals_same on approvals (tenant_id, requester, agent, server, tool, args_sha256)
  where state in ('pending', 'approved', 'executing');
create index approvals_pending on approvals (tenant_id, agent, expires_at) where state = 'pending';
create index on approvals (tenant_id, requester, id desc);
create index on approvals (tenant_id, agent, id desc);
create index on approvals (tenant_id, changed_at);
create index on approvals (tenant_id, code);
-- work, across tenants
create index approvals_overdue on approvals (expires_at) where state = 'pending';
create index approvals_to_run on approvals (lease_until) where state in ('approved', 'executing');
create index on approvals (tenant_id, tenant_key_version);

-- Who said what; once each.
create table approval_votes (
  tenant_id uuid not null,
  id uuid not null,
  approval_id uuid not null,
  approver text not null,
  choice text not null check (choice in ('approve', 'reject')),
  reason text,
  at timestamptz not null default clock_timestamp(),
  primary key (tenant_id, id),
  unique (tenant_id, approval_id, approver),
  foreign key (tenant_id, approval_id) references approvals (tenant_id, id) on delete cascade
);

do $$
declare
  name text;
begin
  foreach name in array array['approvals', 'approval_votes'] loop
    execute format('alter table %I enable row level security', name);
    execute format('alter table %I force row level security', name);
    execute format('create policy tenant on %I to chatelaine_tenant
      using (tenant_id = nullif(current_setting(''app.tenant_id'', true), '''')::uuid)
      with check (tenant_id = nullif(current_setting(''app.tenant_id'', true), '''')::uuid)', name);
    execute format('grant select, insert, update, delete on %I to chatelaine_tenant', name);
  end loop;
end
$$;

-- To find what is overdue or to be executed, and nothing of what it is.
create policy system on approvals for select to chatelaine_system using (true);
grant select (tenant_id, id, state, expires_at, lease_until) on approvals to chatelaine_system;
