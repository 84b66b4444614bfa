-- The catalog of the schema `public` as text, one object a line, whatever the order of the columns. Comments on objects and
-- the migrations' own table are left out.
with tables as (
  select c.oid, c.relname, c.relrowsecurity, c.relforcerowsecurity
  from pg_class c where c.relnamespace = 'public'::regnamespace and c.relkind in ('r', 'p') and c.relname <> '_sqlx_migrations'
),
lines (line) as (
  select format('table %s: row security %s, forced %s', relname, relrowsecurity, relforcerowsecurity) from tables
  union all
  select format('column %s.%s %s%s%s, storage %s', t.relname, a.attname, format_type(a.atttypid, a.atttypmod),
                case when a.attnotnull then ' not null' else '' end,
                coalesce(case when a.attgenerated = 's' then ' generated as ' else ' default ' end
                         || pg_get_expr(d.adbin, d.adrelid), ''),
                a.attstorage)
  from tables t join pg_attribute a on a.attrelid = t.oid and a.attnum > 0 and not a.attisdropped
  left join pg_attrdef d on d.adrelid = t.oid and d.adnum = a.attnum
  union all
  select format('constraint %s.%s %s', t.relname, c.conname, pg_get_constraintdef(c.oid))
  from tables t join pg_constraint c on c.conrelid = t.oid where c.contype <> 'n'
  union all
  select format('index%s %s', case when i.indisvalid then '' else ' (invalid)' end, pg_get_indexdef(i.indexrelid))
  from tables t join pg_index i on i.indrelid = t.oid
  union all
  select format('policy %s.%s for %s to %s using (%s) with check (%s)', t.relname, p.polname, p.polcmd,
                array(select r::regrole::text from unnest(p.polroles) r order by 1),
                pg_get_expr(p.polqual, t.oid), pg_get_expr(p.polwithcheck, t.oid))
  from tables t join pg_policy p on p.polrelid = t.oid
  union all
  select format('grant %s on %s to %s', g.privilege_type, t.relname, g.grantee::regrole)
  from tables t join pg_class c using (oid), aclexplode(c.relacl) g where g.grantee <> c.relowner
  union all
  select format('grant %s (%s) on %s to %s', g.privilege_type, a.attname, t.relname, g.grantee::regrole)
  from tables t join pg_attribute a on a.attrelid = t.oid, aclexplode(a.attacl) g
  union all
  select format('trigger %s', pg_get_triggerdef(g.oid)) from tables t join pg_trigger g on g.tgrelid = t.oid
  where not g.tgisinternal
  union all
  select format('function %s', regexp_replace(pg_get_functiondef(p.oid), '\s+', ' ', 'g'))
  from pg_proc p where p.pronamespace = 'public'::regnamespace
  union all
  select format('%s %s', case c.relkind when 'v' then 'view' when 'm' then 'view' when 'S' then 'sequence' end, c.relname)
  from pg_class c where c.relnamespace = 'public'::regnamespace and c.relkind in ('v', 'm', 'S')
  union all
  select format('type %s', t.typname) from pg_type t
  where t.typnamespace = 'public'::regnamespace and t.typtype in ('e', 'd')
)
select regexp_replace(line, '\s+', ' ', 'g') as line from lines order by line collate "C"
