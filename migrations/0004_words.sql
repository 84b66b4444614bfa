-- The words of conversations, for the search. An index on messages could not serve: `@@` is not leakproof, so row-level
-- security would be asked of every row first. And the postings of a word must be one user's, or a word that everybody
-- uses would cost each of them the words of all.

-- Stretches of a conversation, with the words of its messages and of its title. They say where to look; what is found
-- is read from the messages. Written in the background (src/app/chat/words.rs), so that whoever says something does not
-- wait for it.
create table conversation_words (
  tenant_id uuid not null,
  -- of the conversation
  id uuid not null,
  -- the messages, by their numbers in the conversation; 0 stands for a title before any message
  first_seq bigint not null,
  last_seq bigint not null,
  -- each begins with `words_of`, and has the numbers of its messages, counted from `first_seq` = 1, for positions
  words tsvector not null,
  primary key (tenant_id, id, last_seq),
  foreign key (tenant_id, id) references conversations (tenant_id, id) on delete cascade
);
select lock_by_tenant('conversation_words');
-- Without a list of pending words, which whoever searches next would have to read.
create index conversation_words_words on conversation_words using gin (words) with (fastupdate = off);

-- What is not among the words yet, because it was said or named a moment ago. The search reads these messages themselves.
-- Without a foreign key, which would cost each message as much again: rows go after some minutes in any case.
create table unindexed_messages (
  tenant_id uuid not null,
  user_id text not null,
  -- of the conversation
  id uuid not null,
  seq bigint not null,
  created_at timestamptz not null default now(),
  primary key (tenant_id, user_id, id, seq)
);
select lock_by_tenant('unindexed_messages');
create policy system on unindexed_messages for select to chatelaine_system using (true);
grant select (tenant_id) on unindexed_messages to chatelaine_system;

-- By triggers, so that what the release before this one says is found, too. The tenant is read from a row: that is how
-- Citus knows that all is in one shard.
create function note_message() returns trigger language plpgsql as $$
begin
  insert into unindexed_messages (tenant_id, user_id, id, seq)
  select c.tenant_id, c.user_id, c.id, new.seq
  from conversations c where c.tenant_id = new.tenant_id and c.id = new.conversation_id
  on conflict do nothing;
  return null;
end
$$;
create trigger note_message after insert on messages
  for each row when (new.role in ('user', 'assistant')) execute function note_message();

create function note_title() returns trigger language plpgsql as $$
begin
  insert into unindexed_messages (tenant_id, user_id, id, seq)
  values (new.tenant_id, new.user_id, new.id, new.last_seq) on conflict do nothing;
  return null;
end
$$;
create trigger note_title after update of title on conversations
  for each row when (new.title <> old.title) execute function note_title();
create trigger note_first_title after insert on conversations
  for each row when (new.title <> '') execute function note_title();

-- What the words of a user begin with. Two users in 70 billion pairs share it, and see nothing of each other: what is
-- found is read from the user's own conversations.
create function words_of(tenant uuid, name text) returns text language sql immutable strict parallel safe as $$
  select left(encode(sha256(uuid_send(tenant) || textsend(name)), 'base64'), 6)
$$;

-- The words that somebody typed; the last one may be the beginning of a word.
create function typed_query(typed text) returns tsquery language plpgsql immutable strict parallel safe as $$
declare
  query text := websearch_to_tsquery('pg_catalog.simple', typed)::text;
begin
  return case when query like '%''' then query || ':*' else query end::tsquery;
end
$$;

-- What a message must have so that it may answer the query: its words, in any order, and nothing of what must not be
-- there. `<0>`: the words of a stretch have their messages for positions.
create function stretch_query(tenant uuid, name text, query tsquery) returns tsquery
language plpgsql immutable strict parallel safe as $$
declare
  needed text := querytree(query);
  prefix text := words_of(tenant, name);
begin
  if needed = '' then
    return null;
  elsif needed = 'T' then -- no word must be there
    return quote_literal(prefix);
  end if;
  needed := regexp_replace(needed, ' (&|<(-|\d+)>) ', ' <0> ', 'g');
  return regexp_replace(needed, '''((?:[^'']|'''')+)''', '''' || prefix || '\1''', 'g');
end
$$;

-- The messages of a stretch that answer such a query, by their positions.
create function positions_with(words tsvector, query tsquery) returns setof int
language sql immutable strict parallel safe rows 5 as $$
  select position
  from unnest(words) word, unnest(word.positions) position
  -- Most words of a stretch are not in the query.
  where word.lexeme ^@ any(array(
    select replace(replace(found[1], '''''', ''''), '\\', '\')
    from regexp_matches(query::text, '''((?:[^'']|'''')+)''', 'g') found))
  group by position having array_to_tsvector(array_agg(word.lexeme)) @@ replace(query::text, '<0>', '&')::tsquery
$$;

-- The role of the search sees of one tenant the stretches that answer the query in `app.words`, whatever its statement
-- says. The condition is the policy's own, so that the index may serve it.
do $$
begin
  if not exists (select from pg_roles where rolname = 'chatelaine_search') then
    begin
      create role chatelaine_search nologin;
    exception when duplicate_object or unique_violation then null;
    end;
  end if;
  begin
    execute format('grant chatelaine_search to %I', current_user);
  -- The operator may have made the role and granted it.
  exception when unique_violation or insufficient_privilege then null;
  end;
end
$$;
create policy search on conversation_words for select to chatelaine_search
  using (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid
         and words @@ nullif(current_setting('app.words', true), '')::tsquery);
grant select (tenant_id, id, first_seq, last_seq) on conversation_words to chatelaine_search;

drop index messages_words;
