-- A turn that failed after it had called tools, or that was stopped then: an equal request is not begun again for a while.
alter table request_keys
  add column failed_at timestamptz,
  -- its client left, or somebody stopped it
  add column stopped boolean not null default false;

-- Until when nobody asks the model that did not answer.
alter table runs add column retry_at timestamptz;
