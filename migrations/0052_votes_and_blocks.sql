-- In which session a vote was given: its issuer and its times, and the key that spoke for the voter. Null for votes of an
-- earlier release.
alter table approval_votes add column session json;
alter table approval_votes add column key_id uuid;

-- When somebody else ended the user's sessions last: what they said before does not count any more. Until now nobody
-- noted who it was, so it may have been another.
alter table sign_outs add column others_at timestamptz;
update sign_outs set others_at = changed_at;

-- Since when the user is blocked, and who did it; null: they are not.
alter table sign_outs add column blocked_at timestamptz;
alter table sign_outs add column blocked_by text;

alter table approvals drop constraint approvals_withdrawn_cause_check;
alter table approvals add constraint approvals_withdrawn_cause_check
  check (withdrawn_cause in ('signed_out', 'key_revoked', 'blocked')) not valid;

-- When other claims of a person were written last, for the replicas that remember the ones before; null: before this
-- release.
alter table users add column changed_at timestamptz;
create index on users (changed_at) where changed_at is not null;
create policy system on users for select to chatelaine_system using (true);
grant select (tenant_id, user_id, changed_at) on users to chatelaine_system;

-- What the id and the name of a person look like, to find those whose texts are read as the same; null until the person
-- comes back.
alter table users add column id_look text;
alter table users add column name_look text;
create index on users (tenant_id, id_look);
create index on users (tenant_id, name_look);

-- What to call the requester, with their id where somebody else is read as the same; null for those before this release.
alter table approvals add column requester_name text;
