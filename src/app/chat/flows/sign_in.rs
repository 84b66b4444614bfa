//! `/connect` for a server at which the user signs in: a link to the server's sign-in page, and the callback.
//!
//! The person who comes back need not be the user who got the link. If the user passed the link on, the user would get
//! the account of another person. Two proofs are accepted. A browser that began the sign-in over the API has got a
//! secret there and brings it back. Any other person reads a code on the page, and the user types it in the
//! conversation.

use std::sync::Arc;

use url::Url;
use uuid::Uuid;

use super::{
    FlowValue, append_message, context_of, hash,
    steps::{Entered, FlowContext},
};
use crate::app::{
    App,
    servers::{
        agents,
        oauth::{self, BeginError, SignInLookup, SignInOrigin, Stale, TakenSignIn},
    },
};
use domain::{
    error::{Error, ErrorCode, Missing, Result},
    flow::{Flow, Step},
    ids::ConversationId,
    message::{Part, Prompt},
    oauth::{Authorization, to_sealable},
    pack::Pack,
    principal::Principal,
    secret::Secret,
    server::{FieldKind, ServerSpec},
    texts::{self, Key},
};
use mcp::oauth::{CallbackParams, OAuthError, OAuthErrorKind};

/// The page that a user reads after the callback.
pub struct SignInPage {
    pub language: String,
    pub title: String,
    pub text: String,
    /// The code that the user must type in the conversation, if a code is needed.
    pub code: Option<String>,
    pub status: SignInStatus,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignInStatus {
    Good,
    /// The sign-in gave no connection.
    Failed,
    /// The sign-in was used before or is too old.
    Gone,
}

/// A sign-in that a program began for its user.
pub struct SignInLink {
    /// The address for the user's browser.
    pub url: Url,
    pub id: Uuid,
    /// The secret that proves that the same browser comes back.
    pub browser: Secret,
}

impl FlowContext<'_> {
    /// Asks the user to sign in: a link to the server's sign-in page, or a notice that says why there is none.
    pub(super) async fn ask_to_sign_in(&self, spec: &ServerSpec, flow: Uuid) -> Result<Part> {
        let origin = SignInOrigin {
            conversation: Some(self.conversation),
            flow: Some(flow),
        };
        let server = ("server", spec.id.as_str());
        let begun = oauth::begin(self.app, self.principal, &self.pack, spec, origin).await;
        let mut reason = String::new();
        let key = match begun {
            Ok(begun) => {
                let text = self.texts().render(Key::McpSignInOpenLink, &[server]);
                return Ok(Part::Prompt(Prompt {
                    text,
                    field: String::new(),
                    label: None,
                    kind: FieldKind::Url,
                    secret: false,
                    url: Some(begun.url.into()),
                    options: Vec::new(),
                    asking: None,
                    closed: false,
                }));
            }
            Err(BeginError::Failed(error)) => return Err(error),
            Err(BeginError::NotWanted) => Key::McpSignInNotWanted,
            Err(BeginError::Unavailable(why)) => {
                tracing::warn!(server = %spec.id, why, "nobody can sign in at a server");
                Key::McpSignInAway
            }
            Err(BeginError::Unusable(why)) => {
                tracing::warn!(server = %spec.id, why, "nobody can sign in at a server");
                reason = why;
                Key::McpSignInUnusable
            }
        };
        if spec.user_config.is_empty() {
            self.end().await?;
        }
        let values = [server, ("reason", &reason)];
        Ok(self.notice("sign_in_unavailable", key, &values))
    }
}

/// Begins a sign-in over the API. The browser of the user comes back to a page that says whether the sign-in succeeded.
pub async fn begin(
    app: &Arc<App>,
    principal: &Principal,
    agent: &str,
    server: &str,
) -> Result<SignInLink> {
    let pack = agents::pack(app, principal, agent).await?;
    let spec = pack
        .server(server)
        .ok_or_else(|| Error::NotFound(Missing::Server(server.to_owned())))?;
    if !spec.takes_sign_in() {
        return Err(Error::conflict(
            ErrorCode::NoSignIn,
            format!("nobody signs in at server {server}"),
        ));
    }
    if !principal.authenticated {
        return Err(Error::Forbidden(
            "a credential of one's own is for signed-in users; sign in and try again".to_owned(),
        ));
    }
    let conversation = super::conversation_of_links(app, principal, &pack).await?;
    let context = FlowContext::in_conversation(app, principal, pack.clone(), conversation);
    let flow = context
        .start(Step::Page, Some(&spec.id), false, None)
        .await?;
    let origin = SignInOrigin {
        conversation: Some(conversation),
        flow: Some(flow),
    };
    let begun = oauth::begin(app, principal, &pack, spec, origin).await?;
    Ok(SignInLink {
        url: begun.url,
        id: begun.id,
        browser: begun.browser,
    })
}

/// The parameters of a callback.
pub struct Callback {
    pub state: Secret,
    pub code: Option<Secret>,
    pub issuer: Option<String>,
    pub error: Option<String>,
    /// The language that the browser prefers.
    pub language: &'static str,
}

/// Finishes a sign-in when the browser comes back. `browser` returns the secret that the browser has for a sign-in, if
/// it began one.
pub async fn finish(
    app: &Arc<App>,
    callback: Callback,
    browser: impl Fn(Uuid) -> Option<Secret>,
) -> Result<SignInPage> {
    let taken = match oauth::take(app, &callback.state).await? {
        SignInLookup::Taken(taken) => taken,
        SignInLookup::Stale(stale) => return Ok(stale_page(callback.language, stale)),
    };
    let (principal, agent) = (&taken.principal, taken.sign_in.agent.as_str());
    let pack = agents::pack(app, principal, agent).await?;
    let Some(spec) = pack.server(taken.sign_in.server.as_str()) else {
        return Ok(stale_page(callback.language, Stale::Expired));
    };
    let returned = ReturnedSignIn {
        app,
        taken: &taken,
        pack: &pack,
        spec,
    };
    let params = CallbackParams {
        code: callback.code,
        issuer: callback.issuer,
        error: callback.error,
        // The page of the program shows no text of another party.
        error_description: None,
    };
    match oauth::redeem(app, &taken, &params).await {
        Err(error) => returned.report_failure(&error).await,
        Ok(tokens) if taken.is_of_browser(browser(taken.sign_in.id).as_ref()) => {
            returned.connect(tokens).await
        }
        Ok(tokens) => returned.ask_for_code(tokens).await,
    }
}

fn stale_page(language: &str, stale: Stale) -> SignInPage {
    let texts = texts::in_language(language);
    let text = match stale {
        Stale::Used => Key::McpSignInPageUsed,
        Stale::Expired | Stale::Unknown => Key::McpConfigPageGone,
    };
    SignInPage {
        language: language.to_owned(),
        title: texts.render(Key::McpConfigPageGoneTitle, &[]),
        text: texts.render(text, &[]),
        code: None,
        status: SignInStatus::Gone,
    }
}

/// A sign-in whose browser has come back from the server's sign-in page.
struct ReturnedSignIn<'a> {
    app: &'a Arc<App>,
    taken: &'a TakenSignIn,
    pack: &'a Arc<Pack>,
    spec: &'a ServerSpec,
}

impl ReturnedSignIn<'_> {
    fn page(&self, title: Key, text: Key, status: SignInStatus) -> SignInPage {
        let texts = texts::of(self.pack, &self.taken.principal);
        let text = texts.render(text, &[("server", self.spec.id.as_str())]);
        self.page_with(title, text, status)
    }

    fn page_with(&self, title: Key, text: String, status: SignInStatus) -> SignInPage {
        let texts = texts::of(self.pack, &self.taken.principal);
        let server = [("server", self.spec.id.as_str())];
        let locale = self.taken.principal.locale.clone();
        SignInPage {
            language: locale.unwrap_or_else(|| self.pack.metadata.default_language.clone()),
            title: texts.render(title, &server),
            text,
            code: None,
            status,
        }
    }

    fn conversation(&self) -> Option<ConversationId> {
        self.taken.sign_in.conversation
    }

    /// Writes the outcome of the sign-in into the conversation.
    async fn append_outcome(&self, parts: &[Part]) -> Result<()> {
        match self.conversation() {
            Some(conversation) => {
                let tenant = self.taken.principal.tenant;
                append_message(self.app, tenant, conversation, parts).await
            }
            None => Ok(()),
        }
    }

    async fn report_failure(&self, error: &OAuthError) -> Result<SignInPage> {
        let key = match &error.kind {
            OAuthErrorKind::Refused(code) if code == "access_denied" => Key::McpSignInDeclined,
            OAuthErrorKind::Unavailable => Key::McpSignInAway,
            _ => Key::McpSignInBroken,
        };
        let texts = texts::of(self.pack, &self.taken.principal);
        let server = ("server", self.spec.id.as_str());
        let text = texts.render(key, &[server, ("reason", &error.why)]);
        if let Some(flow) = self.flow().await? {
            let mut tx = self.app.db.tenant(self.taken.principal.tenant).await?;
            store::flows::end(&mut tx, flow.conversation).await?;
            tx.commit().await?;
        }
        let code = "connection_failed".to_owned();
        let page = self.page_with(
            Key::McpSignInPageFailedTitle,
            text.clone(),
            SignInStatus::Failed,
        );
        self.append_outcome(&[Part::Notice { code, text }]).await?;
        Ok(page)
    }

    /// Reads the flow that waits for this sign-in.
    async fn flow(&self) -> Result<Option<Flow>> {
        let Some(id) = self.taken.sign_in.flow else {
            return Ok(None);
        };
        let mut tx = self.app.db.tenant(self.taken.principal.tenant).await?;
        store::flows::get_by_id(&mut tx, id).await
    }

    /// Connects the server at once, since the browser is the user's own.
    async fn connect(&self, tokens: Authorization) -> Result<SignInPage> {
        let (Some(conversation), Some(flow)) = (self.conversation(), self.taken.sign_in.flow)
        else {
            return Err(Error::internal(anyhow::anyhow!(
                "a sign-in without a place"
            )));
        };
        let principal = &self.taken.principal;
        let context =
            FlowContext::in_conversation(self.app, principal, self.pack.clone(), conversation);
        let parts = context
            .finish(self.spec, &Entered::SignIn(Box::new(tokens), flow))
            .await?;
        self.append_outcome(&parts).await?;
        let is_saved =
            |part: &Part| matches!(part, Part::Notice { code, .. } if code == "connection_saved");
        if parts.iter().any(is_saved) {
            let (title, text) = (Key::McpSignInPageDoneTitle, Key::McpSignInPageDone);
            return Ok(self.page(title, text, SignInStatus::Good));
        }
        let (title, text) = (Key::McpSignInPageFailedTitle, Key::McpSignInFailed);
        Ok(self.page(title, text, SignInStatus::Failed))
    }

    /// Stores the tokens until the user types the code of the page in the conversation.
    async fn ask_for_code(&self, tokens: Authorization) -> Result<SignInPage> {
        let principal = &self.taken.principal;
        let Some(flow) = self.flow().await? else {
            oauth::revoke_unused(self.app, tokens);
            return Ok(stale_page(self.language(), Stale::Expired));
        };
        let context = context_of(principal, &flow, FlowValue::Entered);
        let text = to_sealable(&tokens);
        let sealed = self
            .app
            .keys
            .seal(principal.tenant, &context, &text)
            .await?;
        let code = format!("{:06}", rand::random_range(0..1_000_000));
        let mut tx = self.app.db.tenant(principal.tenant).await?;
        if !store::flows::accept_page(&mut tx, flow.id, &sealed, &hash(&code)).await? {
            oauth::revoke_unused(self.app, tokens);
            return Ok(stale_page(self.language(), Stale::Expired));
        }
        tx.commit().await?;
        let (title, text) = (Key::McpConfigPageTitle, Key::McpConfigPageCode);
        Ok(SignInPage {
            code: Some(code),
            ..self.page(title, text, SignInStatus::Good)
        })
    }

    fn language(&self) -> &str {
        let locale = self.taken.principal.locale.as_deref();
        locale.unwrap_or(&self.pack.metadata.default_language)
    }
}
