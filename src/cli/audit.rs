//! `chatelaine audit`: prints who did what. It is for operators: whoever has access to the database may use it.

use std::{fmt::Write as _, io::Write};

use serde::Serialize;
use time::{Duration, OffsetDateTime, format_description::well_known::Rfc3339};

use crate::app::{
    accounts::find_tenant,
    platform::audit::{of_operator, of_tenant},
};
use domain::{
    audit::{Filter, Line, OperatorLine, parse_sha256},
    clock::Clock,
    ids::RunId,
};
use store::Db;

/// The number of lines that one query reads.
const PAGE: i64 = 500;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Whose trail
    #[arg(
        long,
        required_unless_present = "operator",
        conflicts_with = "operator"
    )]
    tenant: Option<String>,
    /// The operator's own trail instead: the keys of the ring, tenants that came and went
    #[arg(long, conflicts_with_all = ["actor", "action", "server", "tool", "run", "outcome", "hash", "until"])]
    operator: bool,
    /// A user's id, `operator` for the command line, `system` for the program itself
    #[arg(long)]
    actor: Option<String>,
    /// What was done, as `key.revoked`; with a dot at the end all that begin so, as `credential.`
    #[arg(long)]
    action: Option<String>,
    #[arg(long)]
    server: Option<String>,
    #[arg(long)]
    tool: Option<String>,
    #[arg(long)]
    run: Option<RunId>,
    /// `succeeded`, `failed`, `denied`, `outcome_unknown` or `cancelled`
    #[arg(long)]
    outcome: Option<String>,
    /// SHA-256 of a call's arguments, in hex
    #[arg(long = "args-sha256")]
    hash: Option<String>,
    /// From when on: `30m`, `2h` or `7d` ago, or a time such as 2026-11-21T12:00:00Z
    #[arg(long)]
    since: Option<String>,
    /// Until when, likewise
    #[arg(long)]
    until: Option<String>,
    /// At most so many lines, the newest
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
    /// One JSON object a line
    #[arg(long)]
    json: bool,
}

/// Prints the lines, newest first.
pub async fn run(
    args: Args,
    db: &Db,
    clock: &Clock,
    out: &mut (impl Write + Send),
) -> anyhow::Result<()> {
    let (json, limit) = (args.json, i64::from(args.limit));
    let now = clock.now();
    let time = |name: &str, text: &Option<String>| {
        let parsed = text
            .as_deref()
            .map(|text| parse_time(text, now))
            .transpose();
        parsed.map_err(|reason| anyhow::anyhow!("--{name}: {reason}"))
    };
    let (since, until) = (time("since", &args.since)?, time("until", &args.until)?);
    let Some(tenant) = &args.tenant else {
        return print_lines(
            &of_operator(db, since, limit).await?,
            json,
            operator_cells,
            out,
        );
    };
    let tenant = find_tenant(db, tenant).await?;
    let hash = args.hash.as_deref().map(parse_sha256).transpose();
    let filter = Filter {
        args_sha256: hash.map_err(|reason| anyhow::anyhow!("--args-sha256: {reason}"))?,
        actor: args.actor,
        action: args.action,
        server: args.server,
        tool: args.tool,
        run: args.run,
        outcome: args.outcome,
        since,
        until,
    };
    let mut lines: Vec<Line> = Vec::new();
    loop {
        let page_size = PAGE.min(limit - i64::try_from(lines.len())?);
        let before = lines.last().map(|line| line.id);
        let page = of_tenant(db, tenant.id, &filter, before, page_size).await?;
        let is_last = i64::try_from(page.len())? < page_size;
        lines.extend(page);
        if is_last || i64::try_from(lines.len())? >= limit {
            return print_lines(&lines, json, cells, out);
        }
    }
}

/// Parses a time as an operator types it: an age such as `2h`, or RFC 3339.
fn parse_time(text: &str, now: OffsetDateTime) -> Result<OffsetDateTime, String> {
    let error = || {
        format!("{text:?} is neither `30m`, `2h` or `7d` nor a time such as 2026-11-21T12:00:00Z")
    };
    if let Ok(at) = OffsetDateTime::parse(text, &Rfc3339) {
        return Ok(at);
    }
    let unit = text.chars().last().ok_or_else(error)?;
    let number: u32 = text
        .strip_suffix(unit)
        .and_then(|digits| digits.parse().ok())
        .ok_or_else(error)?;
    let ago = match unit {
        's' => Duration::seconds(number.into()),
        'm' => Duration::minutes(number.into()),
        'h' => Duration::hours(number.into()),
        'd' => Duration::days(number.into()),
        _ => return Err(error()),
    };
    Ok(now.saturating_sub(ago))
}

/// Prints the lines as JSON or as a table.
fn print_lines<T: Serialize, const N: usize>(
    lines: &[T],
    json: bool,
    cells: fn(&T) -> [String; N],
    out: &mut impl Write,
) -> anyhow::Result<()> {
    if json {
        for line in lines {
            writeln!(out, "{}", serde_json::to_string(line)?)?;
        }
        return Ok(());
    }
    let rows: Vec<[String; N]> = lines
        .iter()
        .map(|line| cells(line).map(|cell| strip_controls(&cell)))
        .collect();
    for row in &rows {
        let mut text = String::new();
        for (column, cell) in row.iter().enumerate() {
            let width = rows
                .iter()
                .map(|row| row[column].chars().count())
                .max()
                .unwrap_or_default();
            let _ = write!(text, "{cell:width$}  ");
        }
        writeln!(out, "{}", text.trim_end())?;
    }
    Ok(())
}

/// Replaces control characters. Names come from users, models and servers and must not control the terminal.
fn strip_controls(cell: &str) -> String {
    cell.chars()
        .map(|c| if c.is_control() { '\u{fffd}' } else { c })
        .collect()
}

/// Writes a time without fractions of a second.
fn format_time(at: OffsetDateTime) -> String {
    at.replace_nanosecond(0)
        .unwrap_or(at)
        .format(&Rfc3339)
        .unwrap_or_default()
}

/// The columns: time, actor, action, outcome, `agent/server/tool`, the beginning of the arguments' hash, detail.
fn cells(line: &Line) -> [String; 7] {
    let parts = [&line.agent, &line.server, &line.tool];
    let path: Vec<&str> = parts.into_iter().filter_map(Option::as_deref).collect();
    let hash = line
        .args_sha256
        .as_deref()
        .map_or("", |hash| &hash[..12.min(hash.len())]);
    let detail = line.detail.clone().unwrap_or_default();
    let (actor, action, outcome) = (
        line.actor.clone(),
        line.action.clone(),
        line.outcome.clone(),
    );
    [
        format_time(line.at),
        actor,
        action,
        outcome,
        path.join("/"),
        hash.to_owned(),
        detail,
    ]
}

fn operator_cells(line: &OperatorLine) -> [String; 4] {
    [
        format_time(line.at),
        line.actor.clone(),
        line.action.clone(),
        line.detail.clone().unwrap_or_default(),
    ]
}
