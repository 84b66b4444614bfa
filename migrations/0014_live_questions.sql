-- Questions that a server of the older revisions puts while a call is open, and waits for. The worker that waits with it
-- prolongs the row for as long as it does: `expires_at` is a lease then, and `answer_run` stays empty.

alter table elicitations add column live boolean not null default false;
