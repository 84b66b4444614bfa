-- What the program itself may see, so that it asks once for all tenants: whether what it has in memory of credentials
-- and registries is still so, and whose runs wait.
grant select (agent, server, user_id, generation, state, told_generation, updated_at) on credentials to chatelaine_system;
grant select (user_id) on runs to chatelaine_system;
create policy system on mcp_servers for select to chatelaine_system using (true);
grant select (tenant_id, id, version) on mcp_servers to chatelaine_system;
create policy system on secrets for select to chatelaine_system using (true);
grant select (tenant_id, id, version) on secrets to chatelaine_system;
