-- When a user signed in at a server. A refresh changes the tokens and not this. Null: before this was noted.
alter table credentials add column signed_in_at timestamptz;
