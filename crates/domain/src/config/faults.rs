//! What is wrong with the settings as a whole, for `chatelaine doctor`. The start stops at the first value that cannot be
//! used; here are all of them, and those that cannot both be meant.

use super::{Config, DirectAddress, Environment, SETTINGS};

/// How the names of the program's own settings begin. A pack's variables should be called otherwise.
const PREFIXES: [&str; 3] = ["CHATELAINE_", "MCP_CONFIG_", "MCP_SERVERS_"];
/// Variables of the terminal client, which are no settings of the service.
const OF_THE_TERMINAL: [&str; 3] = [
    "CHATELAINE_URL",
    "CHATELAINE_TOKEN",
    "CHATELAINE_CHAT_HISTORY",
];

impl Environment {
    /// Variables that are named like a setting and are none, in alphabetical order.
    pub fn unknown_settings(&self) -> impl Iterator<Item = &str> {
        self.variables.keys().map(String::as_str).filter(|name| {
            let is_known = OF_THE_TERMINAL.contains(name)
                || SETTINGS.iter().any(|(setting, ..)| setting == name);
            PREFIXES.iter().any(|prefix| name.starts_with(prefix)) && !is_known
        })
    }
}

impl Config {
    /// Every value that cannot be used, with its variable. The text repeats no secret.
    pub fn faults(env: &Environment) -> Vec<(&'static str, String)> {
        let mut faults = Self::read_faults(env);
        if faults.is_empty()
            && let Err(why) = Self::from_environment(env)
        {
            // The two settings of the keys are good alone and not together.
            faults.push((super::KEYS, why));
        }
        faults
    }

    /// Limits that can never be reached, and addresses that contradict each other, one sentence each. It names the
    /// variables.
    pub fn contradictions(&self, env: &Environment) -> Vec<String> {
        let mut found = Vec::new();
        for (small, less, large, more) in self.pairs() {
            // A default that is out of reach was not meant by anybody.
            if less > more && !env.setting(small, "").is_empty() {
                found.push(format!(
                    "{small} is {less} and {large} is {more}, so the first is never reached"
                ));
            }
        }
        if self.metrics_listen == Some(self.listen) && self.listen.port() != 0 {
            found.push(
                "CHATELAINE_METRICS_LISTEN and CHATELAINE_LISTEN are one address, and only one of them can listen there"
                    .to_owned(),
            );
        }
        if self.database_url.is_none() && matches!(self.direct_database, DirectAddress::At(_)) {
            found.push(
                format!("CHATELAINE_LISTEN_DATABASE_URL names a database and {} names none, so a private Postgres is used", env.database_variable()),
            );
        }
        found
    }

    /// A limit, and the limit of more people that includes it.
    fn pairs(&self) -> Vec<(&'static str, i64, &'static str, i64)> {
        let always = [
            (
                "CHATELAINE_RUNS_PER_USER_AT_ONCE",
                self.runs_per_user_at_once as u64,
                "CHATELAINE_RUNS_PER_TENANT_AT_ONCE",
                self.runs_per_tenant_at_once as u64,
            ),
            (
                "CHATELAINE_RUNS_PER_TENANT_AT_ONCE",
                self.runs_per_tenant_at_once as u64,
                "CHATELAINE_RUNS_AT_ONCE",
                self.runs_at_once as u64,
            ),
            (
                "CHATELAINE_OPEN_RUNS_PER_USER",
                self.open_runs_per_user.into(),
                "CHATELAINE_OPEN_RUNS_PER_TENANT",
                self.open_runs_per_tenant.into(),
            ),
            (
                "CHATELAINE_RUN_CHILDREN",
                self.run_children.into(),
                "CHATELAINE_RUN_TREE",
                self.run_tree.into(),
            ),
            (
                "CHATELAINE_APPROVALS_PER_USER",
                self.approvals_per_user.into(),
                "CHATELAINE_APPROVALS_PER_TENANT",
                self.approvals_per_tenant.into(),
            ),
        ];
        let always = always.map(|(small, less, large, more)| {
            let number = |value| i64::try_from(value).unwrap_or(i64::MAX);
            (small, number(less), large, number(more))
        });
        let daily = [
            (
                "CHATELAINE_RUNS_PER_USER_PER_DAY",
                self.runs_per_user_per_day,
                "CHATELAINE_RUNS_PER_TENANT_PER_DAY",
                self.runs_per_tenant_per_day,
            ),
            (
                "CHATELAINE_TOKENS_PER_USER_PER_DAY",
                self.tokens_per_user_per_day,
                "CHATELAINE_TOKENS_PER_TENANT_PER_DAY",
                self.tokens_per_tenant_per_day,
            ),
        ];
        let daily = daily
            .into_iter()
            .filter_map(|(small, less, large, more)| Some((small, less?, large, more?)));
        always.into_iter().chain(daily).collect()
    }
}
