//! The secrets of the service itself. No pack, tenant or child has any use for them, whatever the names of the variables
//! that hold them: a role that owns the tables of all tenants must not get into the hands of a package from a registry.

use percent_encoding::percent_decode_str;
use url::Url;

use super::{
    DATABASE, DIRECT_DATABASE, Environment, KEYS, ONE_KEY, OPERATOR, OTLP_HEADERS,
    OTLP_TRACES_HEADERS, PACKS_OR_OWN_DATABASE, traces::attributes,
};
use crate::secret::Secret;

/// The settings with secrets of the service itself, but for `DATABASE_URL`, which may be a pack's.
pub const OWN_SECRETS: [&str; 7] = [
    ONE_KEY,
    KEYS,
    OPERATOR,
    OTLP_HEADERS,
    OTLP_TRACES_HEADERS,
    DATABASE,
    DIRECT_DATABASE,
];
/// A value of fewer characters is no secret that could be told from any other text.
const SHORTEST: usize = 8;
/// From so many characters on, a text that contains the value holds the secret. A shorter value must be the whole text.
const LONG: usize = 16;

#[derive(Clone)]
pub(super) struct OwnSecret {
    setting: &'static str,
    value: Secret,
}

impl OwnSecret {
    /// The secrets that the settings hold, each alone too where a setting holds several.
    pub(super) fn list(env: &Environment) -> Vec<Self> {
        let mut all = Vec::new();
        for setting in env.own_secret_settings() {
            let text = env.setting(setting, "").trim();
            let mut parts = vec![text.to_owned()];
            match setting {
                KEYS => {
                    let keys = text.split(',').filter_map(|entry| entry.split_once(':'));
                    parts.extend(keys.map(|(_, key)| key.trim().to_owned()));
                }
                OTLP_HEADERS | OTLP_TRACES_HEADERS => {
                    let headers = attributes(text).unwrap_or_default();
                    parts.extend(headers.into_iter().map(|(_, value)| value));
                }
                DATABASE | DIRECT_DATABASE | PACKS_OR_OWN_DATABASE if !text.is_empty() => {
                    // Postgres is given the password of this variable where the address has none.
                    let password = login(text).map(|(_, password)| password);
                    parts.extend(password.or_else(|| env.get("PGPASSWORD").map(str::to_owned)));
                }
                _ => {}
            }
            let is_secret = |part: &String| part.chars().count() >= SHORTEST;
            all.extend(parts.into_iter().filter(is_secret).map(|part| Self {
                setting,
                value: Secret::new(part),
            }));
        }
        all
    }

    /// Whether a text holds this secret. Another spelling of an address with the same role and password does.
    fn is_in(&self, text: &str) -> bool {
        let (own, text) = (self.value.expose(), text.trim());
        let is_same_login = || login(own).is_some_and(|own| login(text) == Some(own));
        own.eq_ignore_ascii_case(text)
            || (own.chars().count() >= LONG
                && text
                    .to_ascii_lowercase()
                    .contains(&own.to_ascii_lowercase()))
            || is_same_login()
    }
}

impl Environment {
    /// The same for packs, tenants and children: without the variables that have a secret of the service itself.
    #[must_use]
    pub fn without_keys(mut self) -> Self {
        self.own_secrets = OwnSecret::list(&self).into();
        let settings: Vec<_> = self.own_secret_settings().collect();
        // An empty value is refused where it is read.
        let variables = self.variables.iter().filter(|(_, value)| !value.is_empty());
        let withheld = variables.filter_map(|(name, value)| {
            let own = settings.iter().find(|setting| *setting == name);
            let own = own.copied().or_else(|| self.find_own_secret(value))?;
            Some((name.clone(), own))
        });
        self.withheld = withheld.collect();
        self.variables
            .retain(|name, _| !self.withheld.contains_key(name));
        self
    }

    /// The variables that [`Self::without_keys`] left out.
    pub fn withheld(&self) -> impl Iterator<Item = &str> {
        self.withheld.keys().map(String::as_str)
    }

    /// Why a variable was left out, and what to do.
    pub fn why_withheld(&self, name: &str) -> Option<(String, String)> {
        let setting = self.withheld.get(name)?;
        Some(refusal(&format!("`{name}`"), setting))
    }

    /// Why a text is not handed out that holds a secret of the service itself, and what to do. `what` names the text.
    pub fn refuse_own_secret(&self, what: &str, text: &str) -> Option<(String, String)> {
        self.find_own_secret(text)
            .map(|setting| refusal(what, setting))
    }

    fn find_own_secret(&self, text: &str) -> Option<&'static str> {
        let found = self.own_secrets.iter().find(|own| own.is_in(text));
        found.map(|own| own.setting)
    }

    /// The settings that hold secrets. `DATABASE_URL` is a pack's where the service's database has the other name.
    fn own_secret_settings(&self) -> impl Iterator<Item = &'static str> {
        let is_packs = self.get(DATABASE).is_some();
        let sometimes = (!is_packs).then_some(PACKS_OR_OWN_DATABASE);
        OWN_SECRETS.into_iter().chain(sometimes)
    }
}

fn refusal(what: &str, setting: &str) -> (String, String) {
    let is = if what == format!("`{setting}`") {
        "is the service's own".to_owned()
    } else {
        format!("has what `{setting}` has, which is the service's own")
    };
    let hint = match setting {
        PACKS_OR_OWN_DATABASE => {
            "give the tool's database another name, such as `TOOL_DATABASE_URL`, and a role of its own; or name the \
             service's database `CHATELAINE_DATABASE_URL`, and `DATABASE_URL` is the pack's"
        }
        DATABASE | DIRECT_DATABASE => "give the tool's database a variable and a role of its own",
        _ => "give the tool a secret of its own",
    };
    (
        format!("{what} {is} and is not handed to a pack"),
        hint.to_owned(),
    )
}

/// The role and the password of an address of Postgres.
fn login(text: &str) -> Option<(String, String)> {
    let address = &text[text.find("postgres")?..];
    let url = Url::parse(address.split_whitespace().next()?).ok()?;
    if !matches!(url.scheme(), "postgres" | "postgresql") {
        return None;
    }
    let decoded = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
    Some((decoded(url.username()), decoded(url.password()?)))
}
