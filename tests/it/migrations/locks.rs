//! No migration keeps people waiting while it reads or writes a large table.

use std::fs;

use store::migrations::statements::{Blocks, index_built_concurrently, read, refusals};

/// The files of the first release.
const FIRST_RELEASE: usize = 9;

#[test]
fn no_migration_holds_a_lock_while_it_reads_or_writes_a_table() {
    let mut faults = Vec::new();
    let mut files: Vec<_> = fs::read_dir("migrations")
        .unwrap()
        .map(|it| it.unwrap().path())
        .collect();
    files.sort();
    // Nobody used the tables before 0.2.0, the first release.
    for file in &files[FIRST_RELEASE..] {
        let sql = fs::read_to_string(file).unwrap();
        let alone = sql.starts_with("-- no-transaction");
        let found = refusals(&sql, alone).into_iter();
        faults.extend(found.map(|fault| format!("{}: {fault}", file.display())));
    }
    assert!(faults.is_empty(), "{faults:#?}");
}

#[test]
fn what_would_stop_a_company_is_refused() {
    let refused = [
        "create index on messages (run_id)",
        "create unique index messages_one on messages (tenant_id, run_id) where run_id is not null",
        "alter table runs add column n int generated always as (steps + 1) stored",
        "alter table runs add column at timestamptz not null default clock_timestamp()",
        "alter table runs add column id2 uuid default gen_random_uuid()",
        "alter table runs add column word text check (word in ('a', 'b'))",
        "alter table runs add column other uuid references tenants (id)",
        "alter table runs add column key text unique",
        "alter table runs add column a int, alter column steps type bigint",
        "alter table runs alter column error set not null",
        "alter table runs add check (steps > 0)",
        "alter table runs add constraint positive check (steps > 0)",
        "alter table only public.runs add constraint one unique (tenant_id, ordinal)",
        "alter table runs add constraint o foreign key (tenant_id, other) references runs (tenant_id, id)",
        "alter table runs add check (steps > 0) not valid; alter table runs validate constraint runs_check1",
        "update runs set steps = 0",
        "delete from runs where steps = 0 -- not valid",
        "do $$ begin update runs set steps = 0; end $$",
        "vacuum full runs",
        // Its keys would be dropped and made again where it is placed, and their tables with it.
        "create table new (tenant_id uuid not null references tenants (id), primary key (tenant_id))",
        // In a transaction they fail.
        "create index concurrently runs_x on runs (steps)",
        "drop index concurrently runs_x",
    ];
    for sql in refused {
        assert!(!refusals(sql, false).is_empty(), "{sql}");
    }
    let several =
        "create index concurrently a on runs (x); create index concurrently b on runs (y)";
    for sql in [
        several,
        "create index a on runs (x)",
        "alter table runs add column a int",
    ] {
        assert!(!refusals(sql, true).is_empty(), "{sql}");
    }
}

#[test]
fn what_takes_a_lock_for_a_moment_is_not_refused() {
    let accepted = [
        "create table new (id uuid primary key, run uuid, check (run is not null)); create index on new (run);
         create table newer (id uuid primary key references new (id));
         alter table new add foreign key (tenant_id, run) references runs (tenant_id, id); select lock_by_tenant('new'); alter table new add check (id <> run); update new set run = id;",
        "alter table runs add column a int, add column b text not null default 'x;, y', add column c numeric(10, 2)",
        "alter table runs add column at timestamptz not null default now()",
        "alter table runs drop column a, drop constraint runs_check",
        "alter table runs add constraint positive check (steps > 0) not valid",
        "alter table runs add constraint o foreign key (tenant_id, other) references runs (tenant_id, id) not valid",
        "alter table runs validate constraint positive",
        "alter table runs add constraint one unique using index runs_one",
        "alter table runs alter column a set default 1, alter column a drop not null",
        "drop index if exists runs_x",
        "create policy system on runs for select to chatelaine_system using (true)",
        "grant select (tenant_id, id) on runs to chatelaine_system",
        "comment on table runs is 'a; b'",
        "create or replace function f() returns int language sql as $x$ select 1; update runs set steps = 0 $x$",
        "insert into jobs (name) values ('a;b'), ('c''; drop table d')",
    ];
    for sql in accepted {
        assert_eq!(refusals(sql, false), Vec::<String>::new(), "{sql}");
    }
    let index = "-- no-transaction\n-- why\ncreate unique index concurrently if not exists \"runs_x\"\n  on runs (steps);";
    assert_eq!(refusals(index, true), Vec::<String>::new());
}

#[test]
fn a_statement_is_known_by_the_tables_that_it_locks() {
    let effects = |sql: &str| {
        let statements = read(sql);
        let effects = statements.into_iter().flat_map(|it| it.effects);
        effects
            .map(|it| (it.table, it.lock, it.blocks, it.is_long))
            .collect::<Vec<_>>()
    };
    let expected = |table: &str, lock, blocks, is_long| (table.to_owned(), lock, blocks, is_long);
    assert_eq!(
        effects("/* a; */ CREATE INDEX CONCURRENTLY words ON public.messages USING gin (f(parts))"),
        [expected(
            "messages",
            "share update exclusive",
            Blocks::Nothing,
            true
        )]
    );
    assert_eq!(
        effects("create table a (b uuid references users (id) on delete cascade)"),
        [
            expected("a", "access exclusive", Blocks::ReadsAndWrites, false),
            expected("users", "share row exclusive", Blocks::Writes, false),
        ]
    );
    assert_eq!(
        effects("create index words on messages (a)"),
        [expected("messages", "share", Blocks::Writes, true)]
    );
    let built = |sql| index_built_concurrently(&read(sql)[0].text);
    let name = Some("words".to_owned());
    assert_eq!(
        built("create unique index concurrently if not exists words on m (a)"),
        name
    );
    assert_eq!(built("create index concurrently words on m (a)"), name);
    assert_eq!(built("create index words on m (a)"), None);
    assert_eq!(built("drop index concurrently words"), None);
}
