//! The program's side of a configuration flow: what it asks and says in a conversation.

use std::sync::Arc;

use uuid::Uuid;

use super::{LIFE, answers, hash, is_secret, page};
use crate::{
    app::{
        App,
        servers::{
            agents,
            connections::{ConnectionKind, ConnectionView, State},
            credentials::{self, NewSignIn},
            oauth,
        },
    },
    domain::{
        error::{Error, ErrorCode, Result},
        flow::{Flow, Step},
        ids::{ConversationId, ServerId},
        message::{Choice, Part, Prompt},
        oauth::Authorization,
        pack::Pack,
        personal::Values,
        principal::Principal,
        run::ClaimedRun,
        server::{FieldKind, ServerSpec, UserField},
        texts::{self, Key, Texts},
    },
    store,
};

/// What a flow was about to get from its user.
pub(super) enum Entered {
    Values(Values),
    /// Tokens, and the flow in which the user signed in.
    SignIn(Box<Authorization>, Uuid),
}

/// A user in a conversation with an agent.
pub(super) struct FlowContext<'a> {
    pub(super) app: &'a Arc<App>,
    pub(super) principal: &'a Principal,
    pub(super) pack: Arc<Pack>,
    pub(super) conversation: ConversationId,
}

impl<'a> FlowContext<'a> {
    /// The user of a run.
    pub(super) async fn of(app: &'a Arc<App>, run: &'a ClaimedRun) -> Result<Self> {
        Ok(Self {
            app,
            principal: &run.principal,
            pack: agents::pack(app, &run.principal, run.agent.as_str()).await?,
            conversation: run.conversation,
        })
    }

    pub(super) fn in_conversation(
        app: &'a Arc<App>,
        principal: &'a Principal,
        pack: Arc<Pack>,
        conversation: ConversationId,
    ) -> Self {
        Self {
            app,
            principal,
            pack,
            conversation,
        }
    }

    pub(super) fn texts(&self) -> Texts<'_> {
        texts::of(&self.pack, self.principal)
    }

    pub(super) fn notice(&self, code: &str, key: Key, values: &[(&str, &str)]) -> Part {
        Part::Notice {
            code: code.to_owned(),
            text: self.texts().render(key, values),
        }
    }

    /// The personal servers with how each is.
    async fn list(&self) -> Result<Part> {
        let views = credentials::views(self.app, self.principal, &self.pack).await?;
        let choice = |view: ConnectionView| {
            let (mark, key) = match view.state {
                State::NotConfigured => ("⚠️", Key::McpConfigNotConfigured),
                State::NeedsAttention { .. } => ("⚠️", Key::McpConfigNeedsAttention),
                State::Saved => ("⏳", Key::McpConfigFirstCall),
                _ => ("✅", Key::McpConfigConfigured),
            };
            Choice {
                label: format!("{mark} {} – {}", view.server, self.texts().render(key, &[])),
                value: view.server,
            }
        };
        let choices = views
            .into_iter()
            .filter(|view| view.kind == ConnectionKind::Personal)
            .map(choice)
            .collect();
        Ok(Part::Choices {
            text: self.texts().render(Key::McpConfigList, &[]),
            choices,
        })
    }

    /// The reply to a name that is none of the personal servers.
    pub(super) async fn unknown(&self, server: &str) -> Result<Vec<Part>> {
        let shared = self
            .pack
            .servers
            .iter()
            .any(|spec| spec.id.as_str().eq_ignore_ascii_case(server.trim()));
        if shared {
            return Ok(vec![self.notice(
                "shared_server",
                Key::McpConfigSharedServer,
                &[("server", server.trim())],
            )]);
        }
        Ok(vec![
            self.notice(
                "unknown_server",
                Key::McpConfigUnknownServer,
                &[("list", "")],
            ),
            self.start_list().await?,
        ])
    }

    /// Begins with the list of servers.
    pub(super) async fn start_list(&self) -> Result<Part> {
        let list = self.list().await?;
        self.start(Step::Pick, None, false, None).await?;
        Ok(list)
    }

    /// Begins a flow at a step: its id.
    pub(super) async fn start(
        &self,
        step: Step,
        server: Option<&ServerId>,
        secret: bool,
        link: Option<&str>,
    ) -> Result<Uuid> {
        let flow = Flow {
            id: Uuid::now_v7(),
            conversation: self.conversation,
            user: self.principal.user.clone(),
            locale: self.principal.locale.clone(),
            agent: self.pack.id().clone(),
            step,
            server: server.map(ToString::to_string),
            secret,
            entered: None,
            answer: None,
            answer_run: None,
            code_hash: None,
            tries: 0,
            expires_at: self.app.clock.now() + LIFE,
        };
        let mut tx = self.app.db.tenant(self.principal.tenant).await?;
        let link = link.map(hash);
        store::flows::begin(&mut tx, self.principal.tenant, &flow, link.as_deref(), LIFE).await?;
        tx.commit().await?;
        Ok(flow.id)
    }

    pub(super) async fn end(&self) -> Result<bool> {
        let mut tx = self.app.db.tenant(self.principal.tenant).await?;
        let ended = store::flows::end(&mut tx, self.conversation).await?;
        tx.commit().await?;
        Ok(ended)
    }

    /// The first question for a server: where to sign in, or what to enter, or both.
    pub(super) async fn ask_for(&self, spec: &ServerSpec) -> Result<Vec<Part>> {
        if !spec.takes_sign_in() {
            return Ok(self.ask_for_fields(spec).await?.1);
        }
        if spec.user_config.is_empty() {
            let flow = self.start(Step::Page, Some(&spec.id), false, None).await?;
            return Ok(vec![self.ask_to_sign_in(spec, flow).await?]);
        }
        let (flow, mut parts) = self.ask_for_fields(spec).await?;
        parts.insert(0, self.ask_to_sign_in(spec, flow).await?);
        Ok(parts)
    }

    /// Asks for the first field, or on our page for all: the flow, and what the user reads.
    async fn ask_for_fields(&self, spec: &ServerSpec) -> Result<(Uuid, Vec<Part>)> {
        let mut tx = self.app.db.tenant(self.principal.tenant).await?;
        let of_client = store::flows::is_of_client(&mut tx, self.conversation).await?;
        drop(tx);
        if of_client {
            let token = page::token();
            let flow = self
                .start(Step::Page, Some(&spec.id), true, Some(&token))
                .await?;
            let prompt = Prompt {
                text: self
                    .texts()
                    .render(Key::McpConfigOpenLink, &[("server", spec.id.as_str())]),
                field: String::new(),
                kind: FieldKind::Secret,
                secret: true,
                url: Some(page::address(self.app, &token)),
                options: Vec::new(),
                asking: None,
            };
            return Ok((flow, vec![Part::Prompt(prompt)]));
        }
        let first = &spec.user_config[0];
        let flow = self
            .start(Step::Field(0), Some(&spec.id), is_secret(first), None)
            .await?;
        Ok((flow, vec![self.prompt(spec, first)]))
    }

    /// The question for one field.
    pub(super) fn prompt(&self, spec: &ServerSpec, field: &UserField) -> Part {
        let locale = self.principal.locale.as_deref();
        let label = self.pack.text(&field.label, locale).unwrap_or(&field.name);
        let mut text = self.texts().render(
            Key::McpConfigPrompt,
            &[("server", spec.id.as_str()), ("label", label)],
        );
        let options: Vec<Choice> = answers::options(&self.pack, locale, field);
        if !options.is_empty() {
            let labels: Vec<_> = options.iter().map(|option| option.label.as_str()).collect();
            text = format!(
                "{text}\n{}",
                self.texts()
                    .render(Key::McpConfigOptions, &[("options", &labels.join(", "))])
            );
        }
        if !field.required {
            text = format!(
                "{text} {}",
                self.texts().render(Key::McpConfigOptional, &[])
            );
        }
        if is_secret(field) {
            text = format!(
                "{text}\n{}",
                self.texts().render(Key::McpConfigSecretHint, &[])
            );
        }
        let (kind, secret) = (field.kind, is_secret(field));
        Part::Prompt(Prompt {
            text,
            field: field.name.clone(),
            kind,
            secret,
            url: None,
            options,
            asking: None,
        })
    }

    /// Tests what was entered and says how it went. The flow is over.
    pub(super) async fn finish(&self, spec: &ServerSpec, entered: &Entered) -> Result<Vec<Part>> {
        let held = credentials::of_user(self.app, self.principal, self.pack.id())
            .await?
            .of(&spec.id)
            .is_some();
        let spec = Arc::new(spec.clone());
        let Self {
            app,
            principal,
            pack,
            ..
        } = self;
        let tested = match entered {
            Entered::Values(values) => {
                credentials::put_checked(app, principal, pack, &spec, values).await
            }
            Entered::SignIn(tokens, flow) => {
                let sign_in = NewSignIn {
                    tokens: tokens.as_ref().clone(),
                    flow: (self.conversation, *flow),
                };
                credentials::put_sign_in(app, principal, pack, &spec, sign_in).await
            }
        };
        self.end().await?;
        if let (Entered::SignIn(tokens, _), Err(Error::Conflict(ErrorCode::NoSignIn, _))) =
            (entered, &tested)
        {
            oauth::revoke_unused(app, tokens.as_ref().clone());
            return Ok(vec![self.notice(
                "flow_expired",
                Key::McpConfigExpired,
                &[],
            )]);
        }
        let server = ("server", spec.id.as_str());
        let tested = tested?;
        Ok(vec![match tested.reason {
            None if tested.ok => self.notice("connection_saved", Key::McpConfigSaved, &[server]),
            None => {
                let credentials = credentials::of_user(app, principal, pack.id()).await?;
                let held = credentials.of(&spec.id);
                let key = if held.is_some_and(|held| held.candidate.is_some()) {
                    Key::McpConfigStoredBeside
                } else {
                    Key::McpConfigStored
                };
                self.notice("connection_stored", key, &[server])
            }
            Some(trouble) => {
                let reason = self.texts().render(answers::text_key(trouble), &[]);
                let key = if held {
                    Key::McpConfigKeptOld
                } else {
                    Key::McpConfigFailed
                };
                self.notice(
                    "connection_failed",
                    key,
                    &[
                        server,
                        ("code", trouble.code().as_str()),
                        ("reason", &reason),
                    ],
                )
            }
        }])
    }
}
