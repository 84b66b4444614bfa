-- Each row of these tables names its conversation, and goes with it. What else it names is deleted in order by whoever
-- deletes it (`src/store/retention.rs`): events before their messages, and a run only when no message names it any more.
-- To look that up for each new row was a tenth of Postgres's work for a turn.
alter table messages drop constraint messages_tenant_id_run_id_fkey;
alter table events drop constraint events_tenant_id_message_id_fkey;
