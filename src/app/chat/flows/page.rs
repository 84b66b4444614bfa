//! The page behind a one-time link, for frontends that store what their users type. Opening the page changes nothing,
//! because programs open links, too. Sending the page uses the link up.
//!
//! The values count only once the user types the code of the page in their conversation. A stranger who fills in the
//! page has no access to the conversation, and a stranger with access to the conversation does not know the code.

use std::{collections::BTreeMap, sync::Arc};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};

use super::{FlowValue, context_of, hash, steps};
use crate::app::{App, servers::agents};
use domain::{
    error::{Error, Result},
    flow::{Flow, Step},
    pack::Pack,
    personal::{InvalidField, Values},
    principal::{Audience, Principal},
    secret::Secret,
    server::{FieldKind, ServerSpec},
    texts::{self, Key},
};

/// The form on the page, in the user's language.
pub struct Form {
    pub language: String,
    pub title: String,
    /// Two sentences: who asks for the values, and what happens to them.
    pub about: [String; 2],
    pub send: String,
    pub fields: Vec<FormField>,
}

/// One field of the page.
pub struct FormField {
    pub name: String,
    pub kind: FieldKind,
    pub label: String,
    pub required: bool,
    /// Value and label.
    pub options: Vec<(String, String)>,
    /// Why the user must enter the value again.
    pub fault: Option<String>,
}

/// The outcome when the page is sent.
pub enum SubmitOutcome {
    /// The values were accepted. The user types `code` in the conversation, as `text` says.
    Code {
        language: String,
        title: String,
        text: String,
        code: String,
    },
    /// The user must enter a value again.
    Again(Form),
}

/// Makes a random token for a link.
pub(super) fn new_token() -> String {
    URL_SAFE_NO_PAD.encode(rand::random::<[u8; 32]>())
}

/// The address of the page for a browser.
pub(super) fn address(app: &App, token: &str) -> String {
    format!(
        "{}/connect/{token}",
        app.config.public_url.trim_end_matches('/')
    )
}

/// Reads the form behind a link. `NotFound` when the link was used or is too old.
pub async fn open(app: &App, token: &str) -> Result<Form> {
    let page = Page::find(app, token).await?;
    Ok(page.form(None))
}

/// Checks and stores the values of the form.
pub async fn send(
    app: &App,
    token: &str,
    entered: &BTreeMap<String, Secret>,
) -> Result<SubmitOutcome> {
    let page = Page::find(app, token).await?;
    let values = match Values::check(&page.spec().user_config, entered) {
        Ok(values) => values,
        Err(unfit) => return Ok(SubmitOutcome::Again(page.form(Some(&unfit)))),
    };
    let sealed = app
        .keys
        .seal(
            page.principal.tenant,
            &context_of(&page.principal, &page.flow, FlowValue::Entered),
            &values.to_sealable(),
        )
        .await?;
    let code = format!("{:06}", rand::random_range(0..1_000_000));
    let mut tx = app.db.tenant(page.principal.tenant).await?;
    if !store::flows::accept_page(&mut tx, page.flow.id, &sealed, &hash(&code)).await? {
        return Err(gone_error());
    }
    tx.commit().await?;
    let texts = texts::of(&page.pack, &page.principal);
    Ok(SubmitOutcome::Code {
        language: page.language(),
        title: texts.render(
            Key::McpConfigPageTitle,
            &[("server", page.spec().id.as_str())],
        ),
        text: texts.render(Key::McpConfigPageCode, &[]),
        code,
    })
}

fn gone_error() -> Error {
    Error::not_found("this link, which was used already or is too old,")
}

/// The title and the text for a link that was used or is too old. The user of the link is unknown, so `language` is
/// that of the browser.
pub fn gone_texts(language: &str) -> (String, String) {
    let texts = texts::in_language(language);
    let (title, text) = (Key::McpConfigPageGoneTitle, Key::McpConfigPageGone);
    (texts.render(title, &[]), texts.render(text, &[]))
}

/// A flow that waits until its page is sent.
struct Page {
    flow: Flow,
    principal: Principal,
    pack: Arc<Pack>,
    server: String,
}

impl Page {
    async fn find(app: &App, token: &str) -> Result<Self> {
        let mut tx = app.db.system().await?;
        let found = store::flows::find_by_link(&mut tx, &hash(token)).await?;
        drop(tx);
        let (tenant, id) = found.ok_or_else(gone_error)?;
        let mut tx = app.db.tenant(tenant).await?;
        let flow = store::flows::get_by_id(&mut tx, id)
            .await?
            .ok_or_else(gone_error)?;
        drop(tx);
        if flow.step != Step::Page || flow.expires_at <= app.clock.now() {
            return Err(gone_error());
        }
        let principal = Principal {
            tenant,
            user: flow.user.clone(),
            claims: Arc::default(),
            locale: flow.locale.clone(),
            authenticated: true,
            key: None,
            audience: Audience::default(),
        };
        let pack = agents::pack(app, &principal, flow.agent.as_str())
            .await
            .map_err(|_| gone_error())?;
        let server = flow
            .server
            .clone()
            .filter(|server| pack.server(server).is_some())
            .ok_or_else(gone_error)?;
        Ok(Self {
            flow,
            principal,
            pack,
            server,
        })
    }

    fn spec(&self) -> &ServerSpec {
        self.pack
            .server(&self.server)
            .expect("`find` has checked that the pack has the server")
    }

    fn language(&self) -> String {
        self.principal
            .locale
            .clone()
            .unwrap_or_else(|| self.pack.metadata.default_language.clone())
    }

    fn form(&self, unfit: Option<&InvalidField>) -> Form {
        let texts = texts::of(&self.pack, &self.principal);
        let locale = self.principal.locale.as_deref();
        let entry = |field: &domain::server::UserField| {
            let fault = unfit.filter(|unfit| unfit.field == field.name);
            let booleans = [
                ("true", Key::McpConfigPageYes),
                ("false", Key::McpConfigPageNo),
            ];
            let options = if field.kind == FieldKind::Boolean {
                let options =
                    booleans.map(|(value, key)| (value.to_owned(), texts.render(key, &[])));
                options.to_vec()
            } else {
                let offered = steps::options(&self.pack, locale, field).into_iter();
                offered.map(|choice| (choice.value, choice.label)).collect()
            };
            let label = self.pack.text(&field.label, locale).unwrap_or(&field.name);
            let label = if field.required {
                label.to_owned()
            } else {
                format!("{label} {}", texts.render(Key::McpConfigPageOptional, &[]))
            };
            FormField {
                name: field.name.clone(),
                kind: field.kind,
                label,
                required: field.required,
                options,
                fault: fault.map(|unfit| texts.render(steps::field_error_text(unfit.fault), &[])),
            }
        };
        Form {
            language: self.language(),
            title: texts.render(Key::McpConfigPageTitle, &[("server", &self.server)]),
            about: [
                texts.render(
                    Key::McpConfigPageWho,
                    &[
                        ("agent", &self.pack.metadata.display_name),
                        ("server", &self.server),
                    ],
                ),
                texts.render(Key::McpConfigPageHow, &[]),
            ],
            send: texts.render(Key::McpConfigPageSend, &[]),
            fields: self.spec().user_config.iter().map(entry).collect(),
        }
    }
}
