//! A pack is a file that an author wrote. It says who may talk to the agent, in which words, with which model
//! and which servers. Every format is read into this one type.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

use serde::{Deserialize, Serialize};

use super::{
    ids::AgentId,
    menu::{self, Item},
    params::ParamsSchema,
    policy::Vars,
    registry::{Entry, ServerRef},
    secret::Secret,
    server::ServerSpec,
    skill::Skill,
};

#[derive(Clone, Debug, PartialEq)]
pub struct Pack {
    pub metadata: Metadata,
    /// Language tag → texts. Never empty; holds `metadata.default_language`.
    pub languages: BTreeMap<String, Language>,
    pub llm: Llm,
    pub memory: Memory,
    pub flows: Flows,
    pub servers: Vec<ServerSpec>,
    pub skills: Vec<Skill>,
    /// What conditions of its rules name as `vars`.
    pub vars: Vars,
    /// The parameters that a run of the agent takes.
    pub params: Option<ParamsSchema>,
    /// Servers that it takes from the registry. Where the pack is put to use for a tenant, those that can be
    /// connected to are among `servers`.
    pub references: Vec<ServerRef>,
    /// The names of its capabilities, in order.
    pub capabilities: Vec<String>,
    /// Registry entries that lie beside the pack, for its own references.
    pub entries: Vec<Arc<Entry>>,
    /// The folder the pack was read from.
    pub folder: PathBuf,
    /// SHA-256 of the files that the pack was made from, in hex. It changes whenever the effect of the pack
    /// may change.
    pub version: String,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Metadata {
    pub id: AgentId,
    pub display_name: String,
    pub description: String,
    pub tags: Vec<String>,
    pub default_language: String,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Language {
    /// May hold `{userName}`.
    pub greeting_message: Option<String>,
    pub system_prompt: Option<String>,
    /// Any other text of the pack by its key, and overrides of the program's own texts.
    pub strings: BTreeMap<String, String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Provider {
    /// Any OpenAI-compatible endpoint.
    #[default]
    Openai,
    Anthropic,
    Gemini,
    Ollama,
    /// No model: commands and direct calls only.
    None,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReasoningEffort {
    Minimal,
    Low,
    Medium,
    High,
}

impl ReasoningEffort {
    pub const ALL: [(&str, Self); 4] = [
        ("minimal", Self::Minimal),
        ("low", Self::Low),
        ("medium", Self::Medium),
        ("high", Self::High),
    ];

    /// As packs and OpenAI's wire write it.
    pub fn as_str(self) -> &'static str {
        let (word, _) = Self::ALL[self as usize];
        word
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Llm {
    pub provider: Provider,
    /// Empty only with `provider: none`.
    pub model: String,
    pub base_url: Option<url::Url>,
    pub api_key: Option<Secret>,
    /// Appended to the system prompt of every language.
    pub agent_prompt: Option<String>,
    pub temperature: Option<f64>,
    /// How long a reasoning model thinks; only OpenAI's wire has a field for this.
    pub reasoning_effort: Option<ReasoningEffort>,
    pub max_tokens: Option<u64>,
    /// Model steps in one run.
    pub max_steps: u32,
    /// Models that are asked in turn when this one says nothing. Only what concerns an endpoint counts in them.
    pub fallback: Vec<Llm>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Memory {
    /// Messages of history shown to the model.
    pub window: usize,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Flows {
    pub welcome: Welcome,
    pub authentication: Authentication,
    pub menu: Vec<Item>,
}

impl Default for Flows {
    fn default() -> Self {
        Self {
            welcome: Welcome::default(),
            authentication: Authentication::default(),
            menu: menu::standard(),
        }
    }
}

/// The first message of a conversation, said by the program.
#[derive(Clone, Debug, PartialEq)]
pub struct Welcome {
    pub enabled: bool,
    /// `greetingMessage` or a key of `strings`.
    pub template_key: String,
}

impl Default for Welcome {
    fn default() -> Self {
        Self {
            enabled: false,
            template_key: "greetingMessage".to_owned(),
        }
    }
}

/// Claims that people choose or change themselves at many issuers. By such a claim anybody could name themselves like an
/// admin, so it names users only where the operator trusts the issuer with it (`CHATELAINE_ID_CLAIMS`).
pub const CHOSEN_CLAIMS: [&str; 18] = [
    "name",
    "given_name",
    "family_name",
    "middle_name",
    "nickname",
    "preferred_username",
    "profile",
    "picture",
    "website",
    "gender",
    "birthdate",
    "zoneinfo",
    "locale",
    "address",
    "phone_number",
    "firstName",
    "lastName",
    "avatar",
];

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Authentication {
    /// `false`: guests may chat, with the one role `guest`.
    pub required: bool,
    /// The claim that names the user to this pack: in `adminUsers` and in greetings.
    pub user_id_attribute: String,
    /// The issuers whose word counts on `user_id_attribute`, if it is one of [`CHOSEN_CLAIMS`].
    pub trusted_issuers: Vec<String>,
    /// The claim that holds the roles: a string, CSV or JSON array.
    pub roles_attribute: Option<String>,
    /// The role of a user whose token lacks the claim. Absent here: no role.
    pub default_role: Option<String>,
    pub admin_users: Vec<String>,
}

impl Default for Authentication {
    fn default() -> Self {
        Self {
            required: true,
            user_id_attribute: "sub".to_owned(),
            trusted_issuers: Vec::new(),
            roles_attribute: None,
            default_role: None,
            admin_users: Vec::new(),
        }
    }
}

impl Pack {
    pub fn id(&self) -> &AgentId {
        &self.metadata.id
    }

    /// Whether both packs have the same effect, wherever they were read from.
    pub fn same_as(&self, other: &Self) -> bool {
        let elsewhere = Self {
            folder: self.folder.clone(),
            version: self.version.clone(),
            ..other.clone()
        };
        *self == elsewhere
    }

    pub fn server(&self, id: &str) -> Option<&ServerSpec> {
        self.servers.iter().find(|server| server.id.as_str() == id)
    }

    /// What a call of a tool means, with `{argument}`s.
    pub fn summary(&self, server: &str, tool: &str, locale: Option<&str>) -> Option<&str> {
        self.text(self.server(server)?.summaries.get(tool)?, locale)
    }

    /// The text for a locale: its tag, then its language, then the pack's default, then English.
    pub fn text<'t>(
        &self,
        texts: &'t BTreeMap<String, String>,
        locale: Option<&str>,
    ) -> Option<&'t str> {
        let own = locale
            .into_iter()
            .flat_map(|tag| [tag, tag.split(['-', '_']).next().unwrap_or(tag)]);
        let tags = own.chain([self.metadata.default_language.as_str(), "en"]);
        let found = |tag: &str| texts.iter().find(|(key, _)| key.eq_ignore_ascii_case(tag));
        tags.filter_map(found).map(|(_, text)| text.as_str()).next()
    }

    /// The texts for a locale: exact tag, then its language (`es-MX` → `es`), then the default language.
    pub fn language(&self, locale: Option<&str>) -> &Language {
        let tags = locale
            .into_iter()
            .flat_map(|tag| [tag, tag.split(['-', '_']).next().unwrap_or(tag)]);
        tags.filter_map(|tag| {
            self.languages
                .iter()
                .find(|(key, _)| key.eq_ignore_ascii_case(tag))
        })
        .map(|(_, language)| language)
        .next()
        .unwrap_or_else(|| {
            self.languages
                .get(&self.metadata.default_language)
                .expect("checked at load: the default language has texts")
        })
    }
}
