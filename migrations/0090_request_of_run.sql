-- The id of the HTTP request that made a run. Whichever replica works on the run says it in its log.
alter table runs add column request_id text;
