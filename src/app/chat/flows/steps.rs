//! The steps of a flow: the questions that it asks in a conversation, the meaning of an answer ("2", "yes", "GitHub" or
//! "-"), and the step that follows.

use std::sync::Arc;

use uuid::Uuid;

use super::{FlowValue, LIFE, TRIES, context_of, hash, is_secret, page};
use crate::app::{
    App,
    platform::keys::OpenError,
    servers::{
        agents,
        connections::{ConnectionKind, ConnectionView, State},
        credentials::{self, NewSignIn},
        oauth,
    },
};
use domain::{
    connection::ConnectionTestError,
    elicitation::{match_choice, parse_boolean},
    error::{Error, ErrorCode, Result},
    flow::{Flow, Step},
    ids::{ConversationId, ServerId},
    message::{Choice, Part, Prompt},
    oauth::{Authorization, from_sealable},
    pack::Pack,
    personal::{self, FieldError, Values},
    principal::Principal,
    run::ClaimedRun,
    secret::Secret,
    server::{AccessMode, FieldKind, ServerSpec, UserField},
    texts::{self, Key, Texts},
};

/// The values or the sign-in that a user has entered in a flow.
pub(super) enum Entered {
    Values(Values),
    /// The tokens of a sign-in, and the flow in which the user signed in.
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
    /// The context of the user of a run.
    pub(super) async fn of_run(app: &'a Arc<App>, run: &'a ClaimedRun) -> Result<Self> {
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

    /// The list of personal servers with the state of each.
    async fn list_servers(&self) -> Result<Part> {
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

    /// Replies to a name that is not that of a personal server.
    pub(super) async fn explain_unknown(&self, server: &str) -> Result<Vec<Part>> {
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

    /// Begins a flow with the list of servers.
    pub(super) async fn start_list(&self) -> Result<Part> {
        let list = self.list_servers().await?;
        self.start(Step::Pick, None, false, None).await?;
        Ok(list)
    }

    /// Begins a flow at a step, in place of an open flow of the conversation. Returns its id.
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

    /// Ends the open flow of the conversation. Returns whether there was one.
    pub(super) async fn end(&self) -> Result<bool> {
        let mut tx = self.app.db.tenant(self.principal.tenant).await?;
        let ended = store::flows::end(&mut tx, self.conversation).await?;
        tx.commit().await?;
        Ok(ended)
    }

    /// Asks the first question for a server: to sign in, to enter values, or both.
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

    /// Asks for the first field, or for all fields on a page. Returns the flow and the text for the user.
    async fn ask_for_fields(&self, spec: &ServerSpec) -> Result<(Uuid, Vec<Part>)> {
        let mut tx = self.app.db.tenant(self.principal.tenant).await?;
        let of_client = store::conversations::is_of_client(&mut tx, self.conversation).await?;
        drop(tx);
        if of_client {
            let token = page::new_token();
            let flow = self
                .start(Step::Page, Some(&spec.id), true, Some(&token))
                .await?;
            let prompt = Prompt {
                text: self
                    .texts()
                    .render(Key::McpConfigOpenLink, &[("server", spec.id.as_str())]),
                field: String::new(),
                label: None,
                kind: FieldKind::Secret,
                secret: true,
                url: Some(page::address(self.app, &token)),
                options: Vec::new(),
                asking: None,
                closed: false,
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
        let options: Vec<Choice> = options(&self.pack, locale, field);
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
            label: Some(label.to_owned()),
            kind,
            secret,
            url: None,
            options,
            asking: None,
            closed: false,
        })
    }

    /// Tests the connection with the entered values, ends the flow, and says how the test went.
    pub(super) async fn finish(&self, spec: &ServerSpec, entered: &Entered) -> Result<Vec<Part>> {
        let has_credential = credentials::of_user(self.app, self.principal, self.pack.id())
            .await?
            .get(&spec.id)
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
                let stored = credentials.get(&spec.id);
                let key = if stored.is_some_and(|stored| stored.candidate.is_some()) {
                    Key::McpConfigStoredBeside
                } else {
                    Key::McpConfigStored
                };
                self.notice("connection_stored", key, &[server])
            }
            Some(error) => {
                let reason = self.texts().render(test_error_text(error), &[]);
                let key = if has_credential {
                    Key::McpConfigKeptOld
                } else {
                    Key::McpConfigFailed
                };
                self.notice(
                    "connection_failed",
                    key,
                    &[server, ("code", error.code().as_str()), ("reason", &reason)],
                )
            }
        }])
    }
}

/// The personal server that a text names: by number in the list, or by name.
pub(super) fn match_server<'p>(pack: &'p Pack, text: &str) -> Option<&'p ServerSpec> {
    let text = text.trim();
    let mut personal = pack
        .servers
        .iter()
        .filter(|server| server.access_mode == AccessMode::UserControlled);
    match text.trim_end_matches('.').parse::<usize>() {
        Ok(number) => personal.nth(number.checked_sub(1)?),
        Err(_) => personal.find(|server| server.id.as_str().eq_ignore_ascii_case(text)),
    }
}

/// The options of a field, in the user's language.
pub(super) fn options(pack: &Pack, locale: Option<&str>, field: &UserField) -> Vec<Choice> {
    let label = |option: &domain::server::Choice| {
        pack.text(&option.label, locale)
            .unwrap_or(&option.value)
            .to_owned()
    };
    field
        .options
        .iter()
        .map(|option| Choice {
            value: option.value.clone(),
            label: label(option),
        })
        .collect()
}

/// The value that an answer means.
fn parse_answer(field: &UserField, offered: &[Choice], answer: &str) -> String {
    let answer = answer.trim();
    let value = match field.kind {
        _ if !field.required && answer == "-" => "",
        FieldKind::Boolean => match parse_boolean(answer) {
            Some(true) => "true",
            Some(false) => "false",
            None => answer,
        },
        FieldKind::Select => match_choice(offered, answer).unwrap_or(answer),
        FieldKind::Text | FieldKind::Secret | FieldKind::Url => answer,
    };
    value.to_owned()
}

/// The text that says why a connection test failed.
fn test_error_text(error: ConnectionTestError) -> Key {
    match error {
        ConnectionTestError::Unauthorized => Key::McpConfigUnauthorized,
        ConnectionTestError::Unreachable => Key::McpConfigUnreachable,
        ConnectionTestError::Timeout => Key::McpConfigTimeout,
        ConnectionTestError::BadTemplate => Key::McpConfigBadTemplate,
        ConnectionTestError::NotMcp => Key::McpConfigNotMcp,
    }
}

/// The text that says why a value cannot be used.
pub(super) fn field_error_text(fault: FieldError) -> Key {
    match fault {
        FieldError::Missing | FieldError::Unknown => Key::McpConfigMissing,
        FieldError::LineBreak => Key::McpConfigLineBreak,
        FieldError::TooLong => Key::McpConfigTooLong,
        FieldError::NotAnAddress => Key::McpConfigNotAnAddress,
        FieldError::NotABoolean => Key::McpConfigNotABoolean,
        FieldError::NotAnOption => Key::McpConfigNotAnOption,
        FieldError::NotForHeaders => Key::McpConfigBadTemplate,
    }
}

impl FlowContext<'_> {
    /// Continues the flow with its answer.
    pub(super) async fn apply_answer(&self, flow: Flow) -> Result<Vec<Part>> {
        // Whether the answer was late is decided when it comes, not when its run reads it. A late answer is empty.
        if flow.answer.as_ref().is_none_or(Vec::is_empty) {
            self.end().await?;
            return Ok(vec![self.notice(
                "flow_expired",
                Key::McpConfigExpired,
                &[],
            )]);
        }
        if flow.step == Step::Pick {
            let answer = self
                .open_sealed(&flow, flow.answer.as_deref(), FlowValue::Answer)
                .await?;
            return match answer
                .as_ref()
                .and_then(|answer| match_server(&self.pack, answer.expose()))
            {
                Some(spec) => self.ask_for(spec).await,
                None => self.explain_unknown("").await,
            };
        }
        let spec = flow
            .server
            .as_deref()
            .and_then(|server| self.pack.server(server));
        let Some(spec) = spec.filter(|spec| spec.access_mode == AccessMode::UserControlled) else {
            self.end().await?;
            return Ok(vec![self.notice(
                "flow_expired",
                Key::McpConfigExpired,
                &[],
            )]);
        };
        match flow.step {
            Step::Field(at) => self.apply_field(flow, spec, at).await,
            _ => self.apply_code(flow, spec).await,
        }
    }

    /// Continues with the value of field number `at`.
    async fn apply_field(&self, mut flow: Flow, spec: &ServerSpec, at: usize) -> Result<Vec<Part>> {
        let answer = self
            .open_sealed(&flow, flow.answer.as_deref(), FlowValue::Answer)
            .await?;
        let entered = self.open_entered(&flow).await?;
        // If the pack has changed or a key is missing, the flow begins again.
        let (Some(field), Some(answer), Some(mut values)) =
            (spec.user_config.get(at), answer, entered)
        else {
            return self.ask_for(spec).await;
        };
        let offered = options(&self.pack, self.principal.locale.as_deref(), field);
        let checked = personal::check(field, &parse_answer(field, &offered, answer.expose()));
        match checked {
            Ok(value) => values.set(field, value),
            Err(fault) => {
                self.store_step(&flow).await?;
                let why = self.notice("bad_answer", field_error_text(fault), &[]);
                return Ok(vec![why, self.prompt(spec, field)]);
            }
        }
        let Some(next) = spec.user_config.get(at + 1) else {
            return self.finish(spec, &Entered::Values(values)).await;
        };
        let context = context_of(self.principal, &flow, FlowValue::Entered);
        flow.entered = Some(
            self.app
                .keys
                .seal(self.principal.tenant, &context, &values.to_sealable())
                .await?,
        );
        (flow.step, flow.secret) = (Step::Field(at + 1), is_secret(next));
        self.store_step(&flow).await?;
        Ok(vec![self.prompt(spec, next)])
    }

    /// Continues with a text that the user typed while the page was open: the code of the page, or a text that must not
    /// be used.
    async fn apply_code(&self, mut flow: Flow, spec: &ServerSpec) -> Result<Vec<Part>> {
        if flow.answer.as_deref() == Some(&[1]) {
            return match self.open_entered_on_page(&flow).await? {
                Some(entered) => self.finish(spec, &entered).await,
                None => self.ask_for(spec).await,
            };
        }
        flow.tries += 1;
        if flow.tries >= TRIES {
            self.end().await?;
            return Ok(vec![self.notice(
                "wrong_code",
                Key::McpConfigWrongCode,
                &[],
            )]);
        }
        let mut tx = self.app.db.tenant(self.principal.tenant).await?;
        store::flows::count_wrong_code(&mut tx, flow.id).await?;
        tx.commit().await?;
        Ok(vec![self.notice(
            "typed_secret",
            Key::McpConfigTypedSecret,
            &[],
        )])
    }

    async fn store_step(&self, flow: &Flow) -> Result<()> {
        let mut tx = self.app.db.tenant(self.principal.tenant).await?;
        store::flows::proceed(&mut tx, flow, LIFE).await?;
        tx.commit().await
    }

    /// Decrypts the values that were entered so far; `None` when they cannot be decrypted.
    async fn open_entered(&self, flow: &Flow) -> Result<Option<Values>> {
        if flow.entered.is_none() {
            return Ok(Some(Values::default()));
        }
        let opened = self
            .open_sealed(flow, flow.entered.as_deref(), FlowValue::Entered)
            .await?;
        opened
            .map(|text| Values::from_sealable(&text))
            .transpose()
            .map_err(Error::internal)
    }

    /// Decrypts the values of the page, or the tokens of the sign-in; `None` when they cannot be decrypted.
    async fn open_entered_on_page(&self, flow: &Flow) -> Result<Option<Entered>> {
        let sealed = flow.entered.as_deref();
        let Some(text) = self.open_sealed(flow, sealed, FlowValue::Entered).await? else {
            return Ok(None);
        };
        if let Ok(tokens) = from_sealable(&text) {
            return Ok(Some(Entered::SignIn(Box::new(tokens), flow.id)));
        }
        let values = Values::from_sealable(&text).map_err(Error::internal)?;
        Ok(Some(Entered::Values(values)))
    }

    async fn open_sealed(
        &self,
        flow: &Flow,
        sealed: Option<&[u8]>,
        which: FlowValue,
    ) -> Result<Option<Secret>> {
        let Some(sealed) = sealed else {
            return Ok(None);
        };
        match self
            .app
            .keys
            .open(
                self.principal.tenant,
                &context_of(self.principal, flow, which),
                sealed,
            )
            .await
        {
            Ok(text) => Ok(Some(text)),
            Err(OpenError::Unopenable(_)) => Ok(None),
            Err(OpenError::Failed(error)) => Err(error),
        }
    }
}
