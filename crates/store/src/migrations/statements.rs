//! Reads the statements of a migration and says which locks they take, so that `chatelaine migrate --dry-run` can say it
//! to an operator, and a test can refuse a migration that would stop a company. It is no parser of SQL: it knows the
//! statements that migrations have, and says of any other that it does not know it.

use std::collections::BTreeSet;

/// What a statement does to one table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Effect {
    /// The table, or the index that is dropped. Empty for a statement that is not known.
    pub table: String,
    /// The lock, in the words of Postgres. Empty when no table is locked.
    pub lock: &'static str,
    /// Who waits while the lock is held.
    pub blocks: Blocks,
    /// Whether the lock is held while the whole table is read or written, rather than for a moment.
    pub is_long: bool,
    /// Whether the same migration made the table, so that nobody else uses it.
    pub is_new: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocks {
    Nothing,
    /// Those who change the same rows.
    SameRows,
    Writes,
    ReadsAndWrites,
    /// The statement is not known.
    Unknown,
}

/// One statement, with its comments taken out and its blanks made single.
#[derive(Clone, Debug)]
pub struct Statement {
    pub text: String,
    pub effects: Vec<Effect>,
}

impl Statement {
    pub fn makes_table(&self) -> bool {
        let mut words = Words::new(&self.text);
        words.take("create") && words.take("table")
    }
}

/// The statements of a migration, in their order.
pub fn read(sql: &str) -> Vec<Statement> {
    let mut made = BTreeSet::new();
    let texts = split(sql, ';').into_iter();
    let read = |text: String| {
        let effects = judge(&text, &mut made);
        Statement { text, effects }
    };
    texts.map(read).collect()
}

/// Why a migration must not be part of a release: what it would do to those who use the database meanwhile. `alone` says
/// that the file begins with `-- no-transaction`.
pub fn refusals(sql: &str, alone: bool) -> Vec<String> {
    let statements = read(sql);
    let (mut found, mut is_in_the_way) = (Vec::new(), false);
    for statement in &statements {
        let Statement { text, effects } = statement;
        // Where tables are sharded, the keys are dropped while the table is placed, and then nobody can use the other one.
        if statement.makes_table() && effects.iter().any(|effect| !effect.is_new) {
            found.push(format!(
                "a foreign key of a new table to one that is in use comes after it, by `alter table … add`: {text}"
            ));
        }
        match (is_concurrent(text), alone) {
            (true, false) => found.push(format!(
                "this needs a file of its own that begins with `-- no-transaction`: {text}"
            )),
            (false, true) => found.push(format!(
                "a file without a transaction builds or drops an index concurrently, and this does not: {text}"
            )),
            _ => {}
        }
        for effect in effects.iter().filter(|effect| !effect.is_new) {
            let Effect { table, is_long, .. } = effect;
            match effect.blocks {
                Blocks::Unknown => found.push(format!("nobody knows what this locks: {text}")),
                Blocks::Nothing if *is_long && is_in_the_way => found.push(format!(
                    "this reads all of {table} while the locks of the statements before it are held; give it a file of \
                     its own: {text}"
                )),
                Blocks::Nothing => {}
                _ if *is_long => found.push(format!(
                    "this holds a lock while all of {table} is read or written: {text}"
                )),
                _ => is_in_the_way = true,
            }
        }
    }
    if alone && statements.len() != 1 {
        found.push("a file without a transaction has one statement".to_owned());
    }
    found
}

/// The index that a statement builds concurrently.
pub fn index_built_concurrently(text: &str) -> Option<String> {
    let mut words = Words::new(text);
    (words.take("create").then(|| words.take("unique")).is_some()
        && words.take("index")
        && words.take("concurrently"))
    .then(|| {
        words.take_all(&["if", "not", "exists"]);
        words.name()
    })
}

fn is_concurrent(text: &str) -> bool {
    let head: Vec<&str> = text.split(' ').take(5).collect();
    head.iter()
        .any(|word| word.eq_ignore_ascii_case("concurrently"))
}

fn judge(text: &str, made: &mut BTreeSet<String>) -> Vec<Effect> {
    let mut words = Words::new(text);
    let first = words.next().to_ascii_lowercase();
    let mut effects = match &*first {
        "create" => judge_create(&mut words, made),
        "alter" if words.take("table") => judge_alter_table(&mut words),
        "alter" if words.take("policy") => exclusive_on_name_after(&mut words, "on"),
        "drop" if words.take("table") => vec![brief(words.skip(&["if", "exists"]).name())],
        "drop" if words.take("policy") || words.take("trigger") => {
            exclusive_on_name_after(&mut words, "on")
        }
        "drop" if words.take("index") => {
            let alone = words.take("concurrently");
            let index = words.skip(&["if", "exists"]).name();
            vec![if alone {
                shared(index, true)
            } else {
                brief(index)
            }]
        }
        "drop" if words.take("function") => Vec::new(),
        "update" => vec![rows(words.name())],
        "delete" if words.take("from") => vec![rows(words.name())],
        "insert" if words.take("into") => vec![Effect {
            is_long: false,
            ..rows(words.name())
        }],
        "truncate" => vec![brief(words.skip(&["table"]).name())],
        "grant" | "revoke" | "comment" => Vec::new(),
        // The function of the schema that locks a new table by tenant.
        "select" if text.contains("lock_by_tenant(") => {
            let table = text.split('\'').nth(1).unwrap_or_default();
            vec![brief(table.to_owned())]
        }
        _ => vec![unknown()],
    };
    for effect in &mut effects {
        effect.is_new = made.contains(&effect.table);
    }
    effects
}

fn judge_create(words: &mut Words<'_>, made: &mut BTreeSet<String>) -> Vec<Effect> {
    words.take_all(&["or", "replace"]);
    let is_unique = words.take("unique");
    if words.take("table") {
        let table = words.skip(&["if", "not", "exists"]).name();
        made.insert(table.clone());
        let mut effects = vec![brief(table)];
        effects.extend(
            words
                .names_after("references")
                .into_iter()
                .map(of_foreign_key),
        );
        return effects;
    }
    if words.take("index") {
        let alone = words.take("concurrently");
        let table = words.names_after("on").into_iter().next();
        let table = table.unwrap_or_default();
        return vec![if alone {
            shared(table, true)
        } else {
            Effect {
                table,
                lock: "share",
                blocks: Blocks::Writes,
                is_long: true,
                is_new: false,
            }
        }];
    }
    if words.take("policy") {
        return exclusive_on_name_after(words, "on");
    }
    if words.take("trigger") {
        let tables = words.names_after("on");
        return tables.into_iter().take(1).map(of_foreign_key).collect();
    }
    if !is_unique && (words.take("function") || words.take("role") || words.take("type")) {
        return Vec::new();
    }
    vec![unknown()]
}

fn judge_alter_table(words: &mut Words<'_>) -> Vec<Effect> {
    let table = words.skip(&["if", "exists"]).skip(&["only"]).name();
    let actions = split(words.rest(), ',').into_iter();
    actions
        .flat_map(|action| judge_action(&table, &action))
        .collect()
}

/// One action of `alter table`.
fn judge_action(table: &str, action: &str) -> Vec<Effect> {
    let lower = action.to_ascii_lowercase();
    let has = |words: &str| format!(" {lower} ").contains(words);
    let table = table.to_owned();
    let long = |lock| Effect {
        lock,
        is_long: true,
        ..brief(table.clone())
    };
    let other_tables = || Words::new(action).names_after("references").into_iter();
    let mut words = Words::new(&lower);
    match words.next() {
        "add" if is_constraint(&lower) => {
            let is_key = has(" references ");
            let is_checked_later = has(" not valid ") || has(" using index ");
            let mut effects: Vec<Effect> = other_tables().map(of_foreign_key).collect();
            effects.push(match (is_key, is_checked_later) {
                (true, true) => of_foreign_key(table),
                (true, false) => Effect {
                    is_long: true,
                    ..of_foreign_key(table)
                },
                (false, true) => brief(table),
                (false, false) => long("access exclusive"),
            });
            effects
        }
        "add" => {
            // A constant default is kept in the catalog. Another one is computed for each row, and a check reads each row.
            let is_computed = has(" generated ")
                || has(" serial ")
                || has(" bigserial ")
                || has_computed_default(&lower);
            let is_checked = has(" check (") || has(" check(") || has(" references ");
            let is_unique = has(" unique ") || has(" primary key ");
            vec![if is_computed || is_checked || is_unique {
                long("access exclusive")
            } else {
                brief(table)
            }]
        }
        "alter" if has(" type ") || has(" set not null ") || has(" add generated ") => {
            vec![long("access exclusive")]
        }
        "validate" => vec![shared(table, true)],
        "set" if has(" set tablespace ") || has(" set logged ") || has(" set unlogged ") => {
            vec![long("access exclusive")]
        }
        "alter" | "drop" | "rename" | "enable" | "disable" | "force" | "no" | "set" | "reset"
        | "owner" => vec![brief(table)],
        _ => vec![unknown()],
    }
}

fn is_constraint(action: &str) -> bool {
    let kinds = [
        "constraint",
        "check",
        "foreign",
        "unique",
        "primary",
        "exclude",
    ];
    let second = action.split([' ', '(']).nth(1).unwrap_or_default();
    kinds.contains(&second)
}

/// Whether the default of a new column calls a function whose result changes from row to row. `now()` does not.
fn has_computed_default(action: &str) -> bool {
    let Some((_, default)) = action.split_once(" default ") else {
        return false;
    };
    let default = default.split(' ').next().unwrap_or_default();
    default.contains('(') && !default.starts_with("now()")
}

fn exclusive_on_name_after(words: &mut Words<'_>, word: &str) -> Vec<Effect> {
    let tables = words.names_after(word);
    tables.into_iter().take(1).map(brief).collect()
}

/// Everybody waits, for a moment.
fn brief(table: String) -> Effect {
    Effect {
        table,
        lock: "access exclusive",
        blocks: Blocks::ReadsAndWrites,
        is_long: false,
        is_new: false,
    }
}

/// Nobody waits but others who change the schema.
fn shared(table: String, is_long: bool) -> Effect {
    Effect {
        table,
        lock: "share update exclusive",
        blocks: Blocks::Nothing,
        is_long,
        is_new: false,
    }
}

/// Writers wait for a moment: a trigger is added to the table.
fn of_foreign_key(table: String) -> Effect {
    Effect {
        table,
        lock: "share row exclusive",
        blocks: Blocks::Writes,
        is_long: false,
        is_new: false,
    }
}

fn rows(table: String) -> Effect {
    Effect {
        table,
        lock: "row exclusive",
        blocks: Blocks::SameRows,
        is_long: true,
        is_new: false,
    }
}

fn unknown() -> Effect {
    Effect {
        table: String::new(),
        lock: "",
        blocks: Blocks::Unknown,
        is_long: true,
        is_new: false,
    }
}

/// The words of a statement, one after the other.
struct Words<'a>(&'a str);

impl<'a> Words<'a> {
    fn new(text: &'a str) -> Self {
        Self(text.trim_start())
    }

    fn rest(&self) -> &'a str {
        self.0
    }

    fn next(&mut self) -> &'a str {
        let end = self.0.find([' ', '(']).unwrap_or(self.0.len());
        let (word, rest) = self.0.split_at(end);
        self.0 = rest.trim_start();
        word
    }

    /// Goes on behind this word if it is the next one.
    fn take(&mut self, word: &str) -> bool {
        let mut after = Self(self.0);
        let is_next = after.next().eq_ignore_ascii_case(word);
        if is_next {
            *self = after;
        }
        is_next
    }

    fn take_all(&mut self, words: &[&str]) {
        for word in words {
            self.take(word);
        }
    }

    fn skip(&mut self, words: &[&str]) -> &mut Self {
        self.take_all(words);
        self
    }

    /// The next word as a name, without quotes and schema.
    fn name(&mut self) -> String {
        let word = self.next().trim_end_matches([',', ';']);
        let word = word.strip_prefix("public.").unwrap_or(word);
        word.trim_matches('"').to_owned()
    }

    /// The names that follow this word, wherever it stands.
    fn names_after(&mut self, word: &str) -> Vec<String> {
        let mut names = Vec::new();
        let mut rest = Self(self.0);
        while !rest.0.is_empty() {
            if rest.take(word) {
                // `on delete cascade` and `on update` name no table.
                if word != "on" || !(rest.take("delete") || rest.take("update")) {
                    names.push(rest.name());
                }
            } else if rest.next().is_empty() {
                // A bracket.
                rest.0 = rest.0[1..].trim_start();
            }
        }
        names
    }
}

/// Splits SQL at a separator that stands outside of quotes, dollar quotes, comments and brackets. Comments are left out,
/// blanks outside of quotes are made single, and empty pieces are dropped.
fn split(sql: &str, separator: char) -> Vec<String> {
    let (mut pieces, mut piece, mut depth) = (Vec::new(), String::new(), 0_usize);
    let mut rest = sql;
    while let Some(first) = rest.chars().next() {
        let length = match first {
            '-' if rest.starts_with("--") => {
                rest = &rest[rest.find('\n').unwrap_or(rest.len())..];
                continue;
            }
            '/' if rest.starts_with("/*") => {
                rest = &rest[rest.find("*/").map_or(rest.len(), |end| end + 2)..];
                continue;
            }
            '\'' | '"' => rest[1..].find(first).map_or(rest.len(), |end| end + 2),
            '$' => dollar_quoted(rest).unwrap_or(1),
            _ => first.len_utf8(),
        };
        let (token, after) = rest.split_at(length);
        rest = after;
        match first {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if first == separator && depth == 0 {
            pieces.push(std::mem::take(&mut piece));
        } else if !first.is_whitespace() {
            piece.push_str(token);
        } else if !piece.ends_with(' ') {
            piece.push(' ');
        }
    }
    pieces.push(piece);
    let trimmed = pieces.iter().map(|piece| piece.trim().to_owned());
    trimmed.filter(|piece| !piece.is_empty()).collect()
}

/// The length of what begins with `$tag$` and ends with the same.
fn dollar_quoted(text: &str) -> Option<usize> {
    let tag = text[1..].find('$')? + 2;
    let is_tag = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if !text[1..tag - 1].chars().all(is_tag) {
        return None;
    }
    let end = text[tag..].find(&text[..tag])?;
    Some(tag + end + tag)
}
