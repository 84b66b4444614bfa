-- Who gave the conversation its title. 'message': the first message did, and the agent's model may make a better
-- one. The default is for conversations of the previous release: their titles stay.
alter table conversations
  add column titled_by text not null default 'user' check (titled_by in ('user', 'message', 'model'));

-- What users of chats see: pinned ones first, then the newest.
create index on conversations (tenant_id, user_id, (pinned_at is not null) desc, id desc);

-- The words that were said in a message, for the search. Parts may hold what Postgres takes for no text (a NUL, half of
-- a surrogate pair): the words of such a message are not found.
create function message_words(parts json) returns tsvector language plpgsql immutable strict as $$
begin
  return to_tsvector('pg_catalog.simple', left(coalesce((
    select string_agg(part ->> 'text', ' ') from json_array_elements(parts) part
    where part ->> 'type' = 'text'), ''), 50000));
exception when others then
  return ''::tsvector;
end
$$;
create index messages_words on messages using gin (message_words(parts)) where role in ('user', 'assistant');
