//! Every query on a tenant's table says which tenant it is about, so that row-level security is the second lock and
//! a database that is sharded by tenant knows where to send it.
//!
//! The check reads the text of each query in `.sqlx/`, which CI keeps equal to the sources. It wants the condition on
//! the tenant to be one that cannot be false: side by side with the others, and never on one side of an `or`.

use std::collections::{BTreeSet, HashSet};

use super::ROWS;

/// How the queries of the system role begin or end, which look for work or for a caller before a tenant is known.
/// They see the columns of [`super::SYSTEM_READS`] and nothing else.
const CROSS_TENANT: &[(&str, &str)] = &[
    (
        "where k.prefix = $1",
        "finds the tenant of an API key by the key",
    ),
    (
        "where i.issuer = $1 order by i.id limit 100",
        "finds the tenant of a token by its issuer",
    ),
    (
        "where i.issuer = any($1) group by i.issuer",
        "asks once for all issuers in memory whether they changed",
    ),
    (
        "and s.name = i.issuer order by i.issuer, i.id limit $1",
        "lists all issuers for the doctor",
    ),
    (
        r#"select tenant_id as "tenant_id: TenantId", id from flows where link_hash = $1"#,
        "finds the tenant of a one-time link by the link",
    ),
    (
        "with free as ( select r.tenant_id, r.id, r.created_at,",
        "finds runs to work on",
    ),
    (
        r#"select r.tenant_id as "tenant_id: TenantId", r.id as "id: RunId" from runs r where r.awaits_callback and"#,
        "finds runs whose end is to be reported",
    ),
    (
        r#"(select tenant_id as "tenant_id!: TenantId", id as "id!: ApprovalId", state as "state!: State" from approvals"#,
        "finds approvals to expire or to execute",
    ),
    (
        "on c.tenant_id = wanted.tenant_id and c.agent = wanted.agent and c.user_id = wanted.user_id order by c.server",
        "asks once for all users in memory whether their credentials changed",
    ),
    (
        "join credentials c on c.tenant_id = wanted.tenant_id and c.id = wanted.id where c.state = 'active'",
        "asks once for all open connections whether their credentials are in force",
    ),
    (
        "where tenant_id = any($1)) lines group by tenant_id",
        "asks once for all tenants in memory whether their registry changed",
    ),
    (
        r#"select distinct tenant_id as "tenant_id!: TenantId" from server_settings"#,
        "finds the tenants whose admins set something for servers",
    ),
    (
        "from (select distinct tenant_id from tenant_keys where tenant_id = any($1)) k",
        "asks once for all tenants that are listened to whether an approval changed",
    ),
    (
        "wanted (tenant_id, id) join conversations c on c.tenant_id = wanted.tenant_id and c.id = wanted.id",
        "asks once for all conversations that are listened to whether there is an event",
    ),
    (
        "with queued as ( select count(*)::int as number, min(created_at) as oldest from runs",
        "counts for the metrics what waits",
    ),
    (
        "where next_attempt_at <= now() and webhook_id <> all ($1) order by next_attempt_at limit $2",
        "finds messages to send",
    ),
    (
        r#"select distinct tenant_id as "id: TenantId" from ( select tenant_id from webhook_deliveries"#,
        "finds messages to purge",
    ),
    (
        r#"select distinct tenant_id as "id: TenantId" from flows where expires_at <"#,
        "finds flows to purge",
    ),
    (
        r#"select tenant_id as "tenant_id: TenantId", id from oauth_sign_ins where state_hash = $1"#,
        "finds the tenant of whoever comes back from a sign-in by its state",
    ),
    (
        r#"select distinct tenant_id as "id: TenantId" from oauth_sign_ins where expires_at <"#,
        "finds sign-ins to purge",
    ),
    (
        r#"select distinct tenant_id as "id: TenantId" from elicitations where expires_at < now()"#,
        "finds questions to expire",
    ),
    (
        r#"select tenant_id as "tenant!: TenantId", user_id as "user: UserId", null::uuid as "key: ApiKeyId", changed_at as "at!", false as "is_claims!", null::text as "agent: AgentId", null::text as "server: ServerId" from sign_outs"#,
        "finds sessions that ended, and claims that changed, a moment ago",
    ),
    (
        r#"select distinct tenant_id as "id: TenantId" from unindexed_messages"#,
        "finds what is to be indexed for the search",
    ),
    (
        r#"select distinct tenant_id as "id: TenantId" from usage_additions"#,
        "finds what is to be added up",
    ),
    (
        r#"select distinct tenant_id as "id: TenantId" from tenant_keys order by 1"#,
        "counts what is sealed with which key, tenant by tenant",
    ),
    (
        r#"select distinct kek_id as "id: KekId" from tenant_keys order by 1"#,
        "finds keys of the ring that are in use",
    ),
];

#[test]
fn every_query_on_a_tenants_table_names_the_tenant() {
    let mut unused: BTreeSet<&str> = CROSS_TENANT.iter().map(|(text, _)| *text).collect();
    let (mut queries, mut faults) = (0, Vec::new());
    for entry in std::fs::read_dir(".sqlx").unwrap() {
        let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        let kept: serde_json::Value = serde_json::from_str(&text).unwrap();
        let query = kept["query"].as_str().unwrap();
        let line = query.split_whitespace().collect::<Vec<_>>().join(" ");
        queries += 1;
        if let Some((text, _)) = CROSS_TENANT
            .iter()
            .find(|(text, _)| line.starts_with(text) || line.ends_with(text))
        {
            unused.remove(text);
            continue;
        }
        faults.extend(
            check(query)
                .into_iter()
                .map(|fault| format!("{fault}: {line}")),
        );
    }
    assert!(queries > 100, "only {queries} queries in .sqlx/");
    assert!(faults.is_empty(), "{faults:#?}");
    assert!(
        unused.is_empty(),
        "no query is like these any more: {unused:#?}"
    );
}

#[test]
fn a_query_that_forgets_the_tenant_is_found() {
    let forgetful = [
        "select id from runs where id = $1",
        "select id from runs",
        "update runs set status = 'failed' where id = $1",
        "delete from messages m where m.id = $1",
        // Of two tables, one.
        "select 1 from runs r join messages m on m.run_id = r.id where r.tenant_id = $1",
        "select 1 from runs r, messages m where r.tenant_id = $1 and m.run_id = r.id",
        "select 1 from runs where tenant_id = $1 and exists (select 1 from messages where run_id = $2)",
        "with gone as (delete from runs where id = $2) select 1 from messages where tenant_id = $1",
        "select id from runs where tenant_id = $1 union all select id from messages",
        "update runs r set status = o.status from runs o where r.tenant_id = $1 and o.id = $2",
        // A condition that need not hold.
        "select id from runs where tenant_id = $1 or id = $2",
        "select id from runs where tenant_id = $1 and $2::text is null or agent = $2",
        "select id from runs where ($2::text is null or tenant_id = $1)",
        "select id from runs where not tenant_id = $1",
        "select case when tenant_id = $1 then id end from runs",
        "select id from runs r left join messages m on m.tenant_id = $1 where m.run_id = r.id",
        // Of whom, then?
        "select 1 from runs r where r.tenant_id = r.tenant_id",
        "select 1 from runs r join messages m on m.tenant_id = r.tenant_id",
        "insert into runs (id, agent) values ($1, $2)",
        "select case when $1 then (select id from runs where id = $2) end",
        "select 1 from tenants t join usage u on u.day = $1, runs r where u.tenant_id = $2",
        "select id from runs where note = 'tenant_id = $1'",
        "select id from runs -- where tenant_id = $1",
    ];
    for query in forgetful {
        assert!(!check(query).is_empty(), "passes: {query}");
    }
    let careful = [
        "select id from runs where id = $2 and tenant_id = $1",
        "select 1 from runs r join messages m on m.tenant_id = r.tenant_id where r.tenant_id = $1",
        "select 1 from runs r where r.tenant_id = $1 and (r.id = $2 or r.agent = $3)",
        "select case when a or b then 1 end from runs where tenant_id = $1 order by 1",
        "insert into runs (tenant_id, id) select $1, id from messages where tenant_id = $1",
        "select 1 from runs r where r.tenant_id = $1 and exists (select from messages m where m.tenant_id = r.tenant_id)",
        "select id from runs where tenant_id = $1 for update",
        "select id from tenants where name = $1",
    ];
    for query in careful {
        assert_eq!(check(query), Vec::<String>::new(), "{query}");
    }
}

/// What is wrong with a query: one sentence for each mention of a table that is not bound to a tenant.
fn check(query: &str) -> Vec<String> {
    let tokens = tokens(query);
    let mut faults = Vec::new();
    check_group(&tokens, &mut 0, &HashSet::new(), &mut faults);
    faults
}

/// Checks one parenthesised group, from `at` to the bracket that closes it; `bound` are the names outside of it that
/// are rows of one tenant.
fn check_group(
    tokens: &[String],
    at: &mut usize,
    bound: &HashSet<String>,
    faults: &mut Vec<String>,
) {
    let mut flat: Vec<String> = Vec::new();
    let mut inner: Vec<usize> = Vec::new();
    while let Some(token) = tokens.get(*at) {
        *at += 1;
        match &**token {
            "(" => {
                inner.push(*at);
                // A list of columns after `into` is kept: an insert is judged by it.
                let columns = tokens[..*at - 1]
                    .iter()
                    .rev()
                    .take(4)
                    .any(|token| token == "into");
                let from = *at;
                skip(tokens, at);
                if columns {
                    flat.extend(tokens[from..*at - 1].iter().cloned());
                }
                flat.push("()".to_owned());
            }
            ")" => break,
            "case" => {
                // What stands between `case` and `end` holds for some rows only.
                let mut depth = 1;
                while depth > 0 && *at < tokens.len() {
                    *at += 1;
                    match &*tokens[*at - 1] {
                        "case" => depth += 1,
                        "end" => depth -= 1,
                        "(" => {
                            inner.push(*at);
                            skip(tokens, at);
                        }
                        _ => {}
                    }
                }
            }
            "union" => {
                check_branch(tokens, &flat, &inner, bound, faults);
                flat.clear();
                inner.clear();
            }
            _ => flat.push(token.clone()),
        }
    }
    check_branch(tokens, &flat, &inner, bound, faults);
}

fn check_branch(
    tokens: &[String],
    flat: &[String],
    inner: &[usize],
    outer: &HashSet<String>,
    faults: &mut Vec<String>,
) {
    let mentions = mentions(flat);
    let mut bound = outer.clone();
    let conditions = conditions(flat);
    if conditions.is_none() && !mentions.is_empty() {
        faults.push("an `or` stands beside the condition on the tenant".to_owned());
    }
    let conditions = conditions.unwrap_or_default();
    loop {
        let before = bound.len();
        for (left, right) in &conditions {
            let alone = mentions.len() == 1 && left == "tenant_id";
            let name = left.strip_suffix(".tenant_id").map(str::to_owned);
            let name = if alone {
                Some(mentions[0].1.clone())
            } else {
                name
            };
            let is_given = right.starts_with('$')
                || right
                    .strip_suffix(".tenant_id")
                    .is_some_and(|other| bound.contains(other));
            if let Some(name) = name.filter(|_| is_given) {
                bound.insert(name);
            }
        }
        if bound.len() == before {
            break;
        }
    }
    for (table, name) in &mentions {
        if !bound.contains(name) {
            faults.push(format!("{table} ({name}) is not bound to a tenant"));
        }
    }
    if let Some(into) = flat.iter().position(|token| token == "into")
        && is_tenants(&flat[into + 1])
        && !flat[into..]
            .iter()
            .take(6)
            .any(|token| token == "tenant_id")
    {
        faults.push(format!("{} gets a row without a tenant", flat[into + 1]));
    }
    for start in inner {
        check_group(tokens, &mut start.clone(), &bound, faults);
    }
}

/// The tenants' tables that are read or changed here, each with the name that it goes by.
fn mentions(flat: &[String]) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut is_list = false;
    for (at, token) in flat.iter().enumerate() {
        match &**token {
            "from" => is_list = true,
            "where" | "set" | "order" | "group" | "returning" | "limit" | "select" => {
                is_list = false;
            }
            _ => {}
        }
        let before = at.checked_sub(1).map_or("", |at| &*flat[at]);
        let is_place = matches!(before, "from" | "join" | "update") || is_list && before == ",";
        if is_place && is_tenants(token) {
            let alias = flat
                .get(at + 1)
                .filter(|next| *next != "as")
                .or_else(|| flat.get(at + 2));
            let alias = alias.filter(|alias| {
                !matches!(
                    alias.as_str(),
                    "," | "()"
                        | "where"
                        | "set"
                        | "on"
                        | "join"
                        | "left"
                        | "order"
                        | "group"
                        | "returning"
                        | "limit"
                        | "for"
                )
            });
            found.push((token.clone(), alias.unwrap_or(token).clone()));
        }
    }
    found
}

/// The equations that hold for every row: those of `where` and of inner joins, and of outer joins for the table that
/// they join. `None` where an `or` stands beside them.
fn conditions(flat: &[String]) -> Option<Vec<(String, String)>> {
    let mut found = Vec::new();
    let mut is_condition = false;
    for (at, token) in flat.iter().enumerate() {
        match &**token {
            "where" | "on" => is_condition = true,
            "order" | "group" | "limit" | "returning" | "set" | "from" | "select" => {
                is_condition = false;
            }
            "or" if is_condition => return None,
            "=" if is_condition && flat[at - 2] != "not" => {
                let (left, right) = (flat[at - 1].clone(), flat[at + 1].clone());
                found.push((right.clone(), left.clone()));
                found.push((left, right));
            }
            _ => {}
        }
    }
    Some(found)
}

fn is_tenants(table: &str) -> bool {
    ROWS.iter().any(|(name, _)| *name == table)
}

/// Moves past the bracket that closes the group.
fn skip(tokens: &[String], at: &mut usize) {
    let mut depth = 1;
    while depth > 0 && *at < tokens.len() {
        depth += match &*tokens[*at] {
            "(" => 1,
            ")" => -1,
            _ => 0,
        };
        *at += 1;
    }
}

/// Words (with their dots), parameters, brackets, commas and the equals sign. A string is as good as any other, and comments are left out.
fn tokens(query: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut rest = query;
    while let Some(first) = rest.chars().next() {
        let is_word = |c: char| c.is_alphanumeric() || "_$.".contains(c);
        let length = match first {
            '\'' => rest[1..].find('\'').map_or(rest.len(), |end| end + 2),
            '-' if rest.starts_with("--") => rest.find('\n').unwrap_or(rest.len()),
            _ if is_word(first) => rest.find(|c| !is_word(c)).unwrap_or(rest.len()),
            _ => first.len_utf8(),
        };
        if first == '\'' {
            found.push("''".to_owned());
        } else if is_word(first) || "(),=<>!".contains(first) {
            found.push(rest[..length].to_owned());
        }
        rest = &rest[length..];
    }
    found
}

#[test]
fn a_change_needs_no_function_that_a_sharded_database_refuses() {
    for entry in std::fs::read_dir(".sqlx").unwrap() {
        let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        let kept: serde_json::Value = serde_json::from_str(&text).unwrap();
        let query = kept["query"].as_str().unwrap().to_lowercase();
        let flat = tokens(&query);
        if !flat
            .iter()
            .any(|token| matches!(token.as_str(), "update" | "insert" | "delete"))
        {
            continue;
        }
        assert!(!query.contains("clock_timestamp"), "volatile: {query}");
        // Citus refuses functions that are not immutable within CASE.
        let mut depth = 0;
        for token in &flat {
            match token.as_str() {
                "case" => depth += 1,
                "end" => depth -= 1,
                "now" | "statement_timestamp" => assert_eq!(depth, 0, "within CASE: {query}"),
                _ => {}
            }
        }
    }
}

/// Where rows of an `insert … select` reach their shard by way of the coordinator, they are copied, which row-level security
/// refuses, unless the statement has `returning` or `on conflict`: then they are inserted. And one that begins with `with`
/// is planned only inside of another query.
#[test]
fn what_is_inserted_from_a_query_can_be_inserted_into_a_shard() {
    for entry in std::fs::read_dir(".sqlx").unwrap() {
        let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        let kept: serde_json::Value = serde_json::from_str(&text).unwrap();
        let query = kept["query"].as_str().unwrap().to_lowercase();
        let flat = tokens(&query);
        for at in inserts_from_queries(&flat) {
            let mut end = at;
            while end < flat.len() && flat[end] != ")" {
                end += 1;
                if flat.get(end - 1).is_some_and(|token| token == "(") {
                    skip(&flat, &mut end);
                }
            }
            let names = |word: &str| flat[at..end].iter().any(|token| token == word);
            assert!(names("returning") || names("conflict"), "copied: {query}");
            assert!(
                flat[0] != "with" || end < flat.len(),
                "not planned: {query}"
            );
        }
        let is_bare =
            flat[0] == "insert" && query.contains(" select ") && query.contains("returning");
        assert!(
            !is_bare || flat[3] == "as" || query.contains("on conflict"),
            "Citus does not find the table that `returning` reads without `as`: {query}"
        );
        let has_form = flat
            .windows(2)
            .any(|pair| pair[0] == "case" && pair[1] != "when");
        assert!(
            !has_form,
            "Citus writes `case x when y` in another way: {query}"
        );
        let is_local = [
            "jobs",
            "replicas",
            "key_holders",
            "operator_request_answers",
            "settled_policies",
        ]
        .iter()
        .any(|table| query.contains(&format!("insert into {table} ")));
        for (at, _) in query.match_indices("do update") {
            let changes = tokens(&query[at..]);
            let changes = &changes[..end_of_group(&changes, 0)];
            let clocks = ["now", "statement_timestamp"];
            assert!(
                is_local || !changes.iter().any(|token| clocks.contains(&token.as_str())),
                "a clock, not `excluded`: {query}"
            );
        }
    }
}

/// Where the brackets end in which a token is, or the query.
fn end_of_group(flat: &[String], at: usize) -> usize {
    let mut end = at;
    while end < flat.len() && flat[end] != ")" {
        end += 1;
        if flat[end - 1] == "(" {
            skip(flat, &mut end);
        }
    }
    end
}

/// Where the query begins from which an `insert` takes its rows.
fn inserts_from_queries(flat: &[String]) -> Vec<usize> {
    let mut found = Vec::new();
    for at in 0..flat.len() {
        if flat[at] != "insert" {
            continue;
        }
        let Some(open) = flat[at..].iter().position(|token| token == "(") else {
            continue;
        };
        let mut after = at + open + 1;
        skip(flat, &mut after);
        if flat.get(after).is_some_and(|token| token == "select") {
            found.push(after);
        }
    }
    found
}
