-- What to call whoever brought a request into its state; null for those before this release.
alter table approvals add column by_name text;
