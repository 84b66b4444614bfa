-- A client, or a proxy before it, gave up on a request and sent it again, while its run had called nothing.
alter table runs
  -- an equal request came later and is answered in place of this one, so the run calls no tool any more
  add column superseded boolean not null default false;
