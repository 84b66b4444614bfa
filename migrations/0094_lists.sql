-- What was said before there was a search by words: the conversations of all tenants wait to be read.
do $$
declare
  worker text := current_user;
  all_tenants uuid[];
  tenant uuid;
begin
  perform set_config('role', 'chatelaine_system', true);
  select coalesce(array_agg(id), '{}') into all_tenants from tenants;
  perform set_config('role', 'chatelaine_tenant', true);
  foreach tenant in array all_tenants loop
    perform set_config('app.tenant_id', tenant::text, true);
    insert into unindexed_messages (tenant_id, user_id, id, seq, created_at)
    select tenant_id, user_id, id, last_seq, created_at from conversations
    where tenant_id = tenant and (last_seq > 0 or title <> '')
    on conflict do nothing;
  end loop;
  perform set_config('role', worker, true);
end
$$;

