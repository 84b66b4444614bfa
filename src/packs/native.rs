//! The native format: `agent-pack.yaml` → [`Pack`].
//!
//! Every field is read here or by [`server`]; a field that nobody reads is unknown and refused.

use std::{cell::RefCell, collections::BTreeMap, path::Path};

use url::Url;

use super::{
    field::Field,
    menu,
    object::Object,
    references::{self, RegistryReferences},
    report::Problem,
    server::{self, Files, PackContext},
    skills,
};
use crate::domain::{
    ids::AgentId,
    menu::standard,
    pack::{Authentication, Flows, Language, Llm, Memory, Metadata, Pack, Provider, Welcome},
    params::{Param, ParamKind, ParamsSchema},
    template::is_variable_name,
};

/// Messages that the model is shown unless the pack says otherwise.
pub(super) const WINDOW: u32 = 40;
pub(super) const MAX_STEPS: u32 = 16;
/// The language of a pack that does not say which of several is its default.
pub(super) const ENGLISH: &str = "en";
pub(super) const PROVIDERS: [(&str, Provider); 5] = [
    ("openai", Provider::Openai),
    ("anthropic", Provider::Anthropic),
    ("gemini", Provider::Gemini),
    ("ollama", Provider::Ollama),
    ("none", Provider::None),
];

/// A pack as far as it could be read.
#[derive(Default)]
pub(super) struct PartialPack {
    pub id: Option<AgentId>,
    /// Good only when no error was recorded.
    pub pack: Option<Pack>,
    pub files: Files,
    /// Problems of the files that it names, and the variables that were used in them.
    pub beside: (Vec<Problem>, BTreeMap<String, String>),
}

/// Reads a whole document. `servers` stands in for `mcp.servers`, which is then not looked at: its
/// variables may well be unset.
pub(super) fn read(document: &Field, folder: &Path, servers: Option<&Field>) -> PartialPack {
    let Some(mut top) = document.object() else {
        return PartialPack::default();
    };
    let (languages, head) = words(&mut top);
    let llm = top.required(
        "llm",
        "write `llm: { provider: none }` for an agent without a model",
    );
    let llm = llm.and_then(|field| llm_of(&field));
    let window = top
        .optional("memory")
        .and_then(|field| window(&field))
        .unwrap_or(WINDOW);
    let flows = top
        .optional("flows")
        .and_then(|field| flows(&field, &head.language, &languages[&head.language]))
        .unwrap_or_default();
    let pack = PackContext {
        folder,
        language: &head.language,
        authentication: &flows.authentication,
        files: RefCell::default(),
    };
    let own = top.optional("mcp");
    let named = server_names(
        servers
            .cloned()
            .or_else(|| document.get_path(&["mcp", "servers"])),
    );
    let servers = match (servers, own) {
        (Some(servers), _) => server::read_all(servers, &pack),
        (None, own) => own.and_then(|field| mcp(&field, &pack)).unwrap_or_default(),
    };
    let params = params_field(&mut top).and_then(|field| params(&field));
    let RegistryReferences {
        references,
        prompts,
        entries,
        problems,
        used,
    } = references::read(&mut top, &pack, &servers);
    let skills = top
        .optional("skills")
        .map(|field| skills::read(&field, &servers, &references, &named));
    let skills = skills.unwrap_or_default();
    top.finish();
    let files = pack.files.into_inner();
    let id = head.id.clone();
    let pack = id.clone().zip(llm).map(|(id, llm)| Pack {
        metadata: head.metadata(id),
        languages,
        llm: Llm {
            agent_prompt: joined(llm.agent_prompt, prompts),
            ..llm
        },
        memory: Memory {
            window: window as usize,
        },
        flows,
        servers,
        skills,
        params,
        references,
        entries,
        folder: folder.to_owned(),
        version: String::new(),
    });
    PartialPack {
        id,
        pack,
        files,
        beside: (problems, used),
    }
}

/// The names of all servers, also of those with errors, which are reported elsewhere.
fn server_names(servers: Option<Field<'_>>) -> Vec<String> {
    let items = servers
        .filter(|field| !field.is_map())
        .and_then(|field| field.list())
        .unwrap_or_default();
    items
        .iter()
        .filter_map(|item| item.get_path(&["name"])?.try_text())
        .collect()
}

/// The agent's own prompt and those of its capabilities.
fn joined(own: Option<String>, others: Vec<String>) -> Option<String> {
    let all: Vec<String> = own.into_iter().chain(others).collect();
    if all.is_empty() {
        None
    } else {
        Some(all.join("\n\n"))
    }
}

/// The registry document spells it in another way.
fn params_field<'a>(top: &mut Object<'a>) -> Option<Field<'a>> {
    let (own, other) = (top.optional("paramsSchema"), top.optional("params_schema"));
    if let (Some(_), Some(other)) = (&own, &other) {
        other.error("there is a `paramsSchema`, too", "write one of the two");
    }
    own.or(other)
}

/// `metadata`, as far as it could be read.
#[derive(Default)]
struct Head {
    id: Option<AgentId>,
    display_name: Option<String>,
    description: String,
    tags: Vec<String>,
    /// The default language. There are texts for it, or an error was recorded.
    language: String,
    language_shown: String,
}

impl Head {
    fn metadata(self, id: AgentId) -> Metadata {
        Metadata {
            display_name: self.display_name.unwrap_or_else(|| id.to_string()),
            id,
            description: self.description,
            tags: self.tags,
            default_language: self.language,
        }
    }
}

/// `metadata` and `languages`, which check each other. The languages hold the default one.
fn words(top: &mut Object) -> (BTreeMap<String, Language>, Head) {
    let metadata = top.required("metadata", "write `metadata: { id: … }`");
    let field = top.required(
        "languages",
        "write `languages: { en: { systemPrompt: … } }`",
    );
    let mut languages = field.as_ref().and_then(languages_of).unwrap_or_default();
    let mut head = metadata.and_then(|field| head(&field)).unwrap_or_default();
    if head.language.is_empty() {
        let only = languages.keys().next().filter(|_| languages.len() == 1);
        head.language = only.cloned().unwrap_or_else(|| ENGLISH.to_owned());
        head.language_shown = format!("{:?}", head.language);
    }
    if !languages.contains_key(&head.language) {
        if let Some(field) = field.filter(|_| !languages.is_empty()) {
            let known: Vec<_> = languages.keys().map(String::as_str).collect();
            let hint = format!(
                "add them, or set `metadata.defaultLanguage` to {}",
                known.join(" or ")
            );
            field.error(
                format!(
                    "there are no texts for the default language {}",
                    head.language_shown
                ),
                &hint,
            );
        }
        languages.insert(head.language.clone(), Language::default());
    }
    (languages, head)
}

fn head(field: &Field) -> Option<Head> {
    let mut object = field.object()?;
    let id = object.required("id", "write an id such as `id: wise`");
    let language = object.optional("defaultLanguage");
    let head = Head {
        id: id.and_then(|field| field.parsed(AgentId::parse)),
        display_name: object
            .optional("displayName")
            .and_then(|field| field.non_blank_text())
            .map(|text| text.value),
        description: object
            .optional("description")
            .and_then(|f| f.text())
            .map(|text| text.value)
            .unwrap_or_default(),
        tags: object
            .optional("tags")
            .map(|field| field.words())
            .unwrap_or_default(),
        language: language
            .as_ref()
            .and_then(|field| field.parsed(tag))
            .unwrap_or_default(),
        language_shown: language
            .and_then(|field| field.text())
            .map(|text| text.shown)
            .unwrap_or_default(),
    };
    object.finish();
    Some(head)
}

/// A language tag such as `en` or `pt-BR`.
pub(super) fn tag(text: &str) -> Result<String, String> {
    let mut parts = text.split('-');
    let primary = parts.next().is_some_and(|part| {
        (2..=3).contains(&part.len()) && part.bytes().all(|b| b.is_ascii_alphabetic())
    });
    let others = parts.all(|part| {
        (1..=8).contains(&part.len()) && part.bytes().all(|b| b.is_ascii_alphanumeric())
    });
    if primary && others {
        Ok(text.to_owned())
    } else {
        Err(format!(
            "{text:?} is not a language tag; write one such as `en` or `pt-BR`"
        ))
    }
}

fn languages_of(field: &Field) -> Option<BTreeMap<String, Language>> {
    let mut languages = BTreeMap::<String, Language>::new();
    for (name, texts) in field.entries()? {
        if let Err(reason) = tag(name) {
            texts.error(reason, "");
        } else if let Some(other) = languages
            .keys()
            .find(|other| other.eq_ignore_ascii_case(name))
        {
            texts.error(
                format!("the language {other:?} is there already"),
                "write each language once",
            );
        }
        let language = language(&texts).unwrap_or_default();
        languages.insert(name.to_owned(), language);
    }
    if languages.is_empty() {
        field.error(
            "there are no languages",
            "write `languages: { en: { systemPrompt: … } }`",
        );
    }
    Some(languages)
}

fn language(field: &Field) -> Option<Language> {
    let mut object = field.object()?;
    let language = Language {
        greeting_message: object
            .optional("greetingMessage")
            .and_then(|field| field.non_blank_text())
            .map(|text| text.value),
        system_prompt: object
            .optional("systemPrompt")
            .and_then(|field| field.non_blank_text())
            .map(|text| text.value),
        strings: object
            .optional("strings")
            .map(|field| strings(&field))
            .unwrap_or_default(),
    };
    object.finish();
    Some(language)
}

fn strings(field: &Field) -> BTreeMap<String, String> {
    let entries = field.entries().unwrap_or_default();
    entries
        .iter()
        .filter_map(|(key, field)| Some(((*key).to_owned(), field.text()?.value)))
        .collect()
}

/// `baseUrl`, `apiKey` and `model` may be empty, which is how a variable says that there is none.
fn llm_of(field: &Field) -> Option<Llm> {
    let mut object = field.object()?;
    let named = object.optional("provider");
    let provider = named
        .as_ref()
        .map_or(Some(Provider::default()), |field| field.one_of(&PROVIDERS));
    let model = model(&mut object, provider);
    let base_url = object
        .optional("baseUrl")
        .and_then(|field| base_url(&field));
    let key = object.optional("apiKey").and_then(|field| field.secret());
    let blank = key
        .as_ref()
        .is_some_and(|(_, text)| text.value.trim().is_empty());
    let hosted = match provider {
        Some(Provider::Anthropic | Provider::Gemini) => true,
        Some(Provider::Openai) => base_url.is_none(),
        _ => false,
    };
    if hosted && (blank || object.is_absent("apiKey")) {
        object.field.warn(
            "there is no `apiKey`, and this provider wants one",
            "write `apiKey: ${…}`",
        );
    }
    let llm = Llm {
        provider: provider.unwrap_or_default(),
        model,
        base_url,
        api_key: key.filter(|_| !blank).map(|(secret, _)| secret),
        agent_prompt: object
            .optional("agentPrompt")
            .and_then(|field| field.non_blank_text())
            .map(|text| text.value),
        temperature: object
            .optional("temperature")
            .and_then(|field| field.number(&(0.0..=2.0))),
        max_tokens: object
            .optional("maxTokens")
            .and_then(|field| field.whole(&(1..=10_000_000)))
            .map(u64::from),
        max_steps: object
            .optional("maxSteps")
            .and_then(|field| field.whole(&(1..=100)))
            .unwrap_or(MAX_STEPS),
    };
    object.finish();
    Some(llm)
}

fn model(object: &mut Object, provider: Option<Provider>) -> String {
    let field = object.optional("model");
    let text = field.as_ref().and_then(Field::text);
    let needed = provider.is_some_and(|provider| provider != Provider::None);
    match (&field, &text) {
        (None, _) if needed && object.is_absent("model") => {
            object.missing(
                "model",
                "name a model such as `model: gpt-5-mini`, or write `provider: none`",
            );
        }
        (Some(field), Some(text)) if needed && text.value.trim().is_empty() => {
            let found = if text.from_env {
                format!("{} is empty", text.shown)
            } else {
                "is empty".to_owned()
            };
            field.error(found, "name a model, or write `provider: none`");
        }
        _ => {}
    }
    text.map(|text| text.value.trim().to_owned())
        .unwrap_or_default()
}

fn base_url(field: &Field) -> Option<Url> {
    let text = field.text()?;
    if text.value.trim().is_empty() {
        None
    } else {
        field.url()
    }
}

/// `paramsSchema`: a map of names, in the spelling of the registry document.
fn params(field: &Field) -> Option<ParamsSchema> {
    let mut params = ParamsSchema::new();
    for (name, field) in field.entries()? {
        if !is_variable_name(name) {
            field.error(
                format!("{name:?} is not the name of a parameter"),
                "use letters, digits and `_`",
            );
        }
        let Some(mut object) = field.object() else {
            continue;
        };
        let kinds = [
            ("string", ParamKind::String),
            ("json", ParamKind::Json),
            ("boolean", ParamKind::Boolean),
            ("number", ParamKind::Number),
        ];
        let param = Param {
            kind: object
                .optional("type")
                .and_then(|field| field.one_of(&kinds))
                .unwrap_or_default(),
            required: object
                .optional("required")
                .and_then(|field| field.boolean())
                .unwrap_or_default(),
            description: object
                .optional("description")
                .and_then(|field| field.text())
                .map(|text| text.value),
        };
        object.finish();
        params.insert(name.to_owned(), param);
    }
    Some(params)
}

fn window(field: &Field) -> Option<u32> {
    let mut object = field.object()?;
    let window = object
        .optional("window")
        .and_then(|field| field.whole(&(1..=1000)));
    object.finish();
    window
}

fn flows(field: &Field, language: &str, texts: &Language) -> Option<Flows> {
    let mut object = field.object()?;
    let flows = Flows {
        welcome: object
            .optional("welcome")
            .and_then(|field| welcome(&field, texts))
            .unwrap_or_default(),
        authentication: object
            .optional("authentication")
            .and_then(|f| authentication(&f))
            .unwrap_or_default(),
        menu: object
            .optional("menu")
            .and_then(|field| menu::read(&field, language, texts))
            .unwrap_or_else(standard),
    };
    object.finish();
    Some(flows)
}

/// The block turns the welcome on, unless it says `enabled: false`.
fn welcome(field: &Field, texts: &Language) -> Option<Welcome> {
    let mut object = field.object()?;
    let enabled = object
        .optional("enabled")
        .is_none_or(|field| field.boolean().unwrap_or_default());
    let key = object.optional("templateKey");
    let at = key.as_ref().unwrap_or(field).clone();
    let (key, shown) = key.and_then(|field| field.non_blank_text()).map_or_else(
        || {
            (
                Welcome::default().template_key,
                "\"greetingMessage\"".to_owned(),
            )
        },
        |text| (text.value, text.shown),
    );
    let known = if key == "greetingMessage" {
        texts.greeting_message.is_some()
    } else {
        texts.strings.contains_key(&key)
    };
    if enabled && !known {
        let hint =
            "write it there (`greetingMessage`, or a key of `strings`), or write `enabled: false`";
        at.error(format!("the default language has no text {shown}"), hint);
    }
    object.finish();
    Some(Welcome {
        enabled,
        template_key: key,
    })
}

fn authentication(field: &Field) -> Option<Authentication> {
    let mut object = field.object()?;
    let mut word = |name| {
        object
            .optional(name)
            .and_then(|field| field.non_blank_text())
            .map(|text| text.value.trim().to_owned())
    };
    let default = Authentication::default();
    let authentication = Authentication {
        user_id_attribute: word("userIdAttribute").unwrap_or(default.user_id_attribute),
        roles_attribute: word("rolesAttribute"),
        default_role: word("defaultRole"),
        required: object
            .optional("required")
            .and_then(|field| field.boolean())
            .unwrap_or(default.required),
        admin_users: object
            .optional("adminUsers")
            .map(|field| field.words())
            .unwrap_or_default(),
    };
    object.finish();
    Some(authentication)
}

fn mcp(field: &Field, pack: &PackContext) -> Option<Vec<crate::domain::server::ServerSpec>> {
    let mut object = field.object()?;
    let servers = object
        .optional("servers")
        .map(|field| server::read_all(&field, pack))
        .unwrap_or_default();
    object.finish();
    Some(servers)
}
