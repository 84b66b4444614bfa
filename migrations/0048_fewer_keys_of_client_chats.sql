-- A row goes with its conversation. It is looked up by its chat, or through the run's conversation.
alter table client_chats drop constraint client_chats_tenant_id_run_id_fkey;
drop index client_chats_tenant_id_run_id_idx;
