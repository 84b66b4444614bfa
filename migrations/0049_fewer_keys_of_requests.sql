-- A row goes with its conversation, and the purge deletes it after a day. It is looked up by its key, or through the run's
-- conversation.
alter table request_keys drop constraint request_keys_tenant_id_run_id_fkey;
drop index request_keys_tenant_id_run_id_idx;
