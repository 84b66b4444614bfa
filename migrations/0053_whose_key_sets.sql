-- Whether an admin of the tenant wrote the address of the key set, rather than the operator: then it is fetched under the
-- rules for addresses of tenants. Null: an earlier release did not note it.
alter table issuers add column of_tenant boolean;
