-- The sums of limits over time. Whoever adds to one locks its row first.
create table limit_sums (
  tenant_id uuid not null references tenants (id) on delete cascade,
  -- SHA-256 of the limit and of whose calls it adds up
  id bytea not null check (length(id) = 32),
  looked_at timestamptz not null,
  primary key (tenant_id, id)
);
select lock_by_tenant('limit_sums');
-- What limits have let through: each call once for each sum that it is part of.
create table limit_uses (
  tenant_id uuid not null,
  -- of the call
  id uuid not null,
  sum_id bytea not null,
  at timestamptz not null,
  amount numeric not null check (amount >= 0),
  primary key (tenant_id, id, sum_id),
  foreign key (tenant_id, sum_id) references limit_sums (tenant_id, id) on delete cascade
);
select lock_by_tenant('limit_uses');
create index limit_uses_by_sum on limit_uses (tenant_id, sum_id, at);
