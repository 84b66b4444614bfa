-- What the operator says of a tenant.
alter table tenants
  -- what people call it; null: its name
  add column display_name text,
  -- since then its tokens and keys are refused
  add column suspended_at timestamptz,
  -- in place of the installation's limits of a day, by their names: a number, or "unlimited"
  add column limits jsonb not null default '{}';

-- Who was seen, and what one of them used.
create index on usage (tenant_id, user_id, day);

-- Records are sealed anew with the newest version of their tenant's key wherever they are. A flow's answer may be empty:
-- a code was judged before it is handed on, so there is nothing to seal.
alter table runs add column scope_key_version int generated always as (
  case when scope is null then null
  else (get_byte(scope, 3) << 24) | (get_byte(scope, 4) << 16) | (get_byte(scope, 5) << 8) | get_byte(scope, 6) end
) stored;
alter table flows
  add column entered_key_version int generated always as (
    case when entered is null or length(entered) < 7 then null
    else (get_byte(entered, 3) << 24) | (get_byte(entered, 4) << 16) | (get_byte(entered, 5) << 8) | get_byte(entered, 6) end
  ) stored,
  add column answer_key_version int generated always as (
    case when answer is null or length(answer) < 7 then null
    else (get_byte(answer, 3) << 24) | (get_byte(answer, 4) << 16) | (get_byte(answer, 5) << 8) | get_byte(answer, 6) end
  ) stored;
create index on runs (tenant_id, scope_key_version) where scope is not null;
