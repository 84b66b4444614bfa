-- Requests are taken back, too, because the database was restored to a time before they may have been decided.
alter table approvals drop constraint approvals_withdrawn_cause_check;
alter table approvals add constraint approvals_withdrawn_cause_check
  check (withdrawn_cause in ('signed_out', 'key_revoked', 'blocked', 'restored')) not valid;
