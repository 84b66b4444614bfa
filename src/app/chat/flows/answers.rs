//! What an answer to a flow means ("2", "yes", "GitHub" or "-"), and the step that it leads to.

use super::{FlowContext, FlowValue, LIFE, TRIES, context::Entered, context_of, is_secret};
use crate::{
    app::platform::keys::OpenError,
    domain::{
        connection::ConnectionTestError,
        elicitation::{match_choice, parse_boolean},
        error::{Error, Result},
        flow::{Flow, Step},
        message::{Choice, Part},
        oauth::from_sealable,
        pack::Pack,
        personal::{self, FieldError, Values},
        secret::Secret,
        server::{AccessMode, FieldKind, ServerSpec, UserField},
        texts::Key,
    },
    store,
};

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

/// What a field offers, in the user's language.
pub(super) fn options(pack: &Pack, locale: Option<&str>, field: &UserField) -> Vec<Choice> {
    let label = |option: &crate::domain::server::Choice| {
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
pub(super) fn text_key(trouble: ConnectionTestError) -> Key {
    match trouble {
        ConnectionTestError::Unauthorized => Key::McpConfigUnauthorized,
        ConnectionTestError::Unreachable => Key::McpConfigUnreachable,
        ConnectionTestError::Timeout => Key::McpConfigTimeout,
        ConnectionTestError::BadTemplate => Key::McpConfigBadTemplate,
        ConnectionTestError::NotMcp => Key::McpConfigNotMcp,
    }
}

/// The text that says why a value cannot be used.
pub(super) fn fault_text_key(fault: FieldError) -> Key {
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
    /// Takes in the answer of the flow.
    pub(super) async fn take_in(&self, flow: Flow) -> Result<Vec<Part>> {
        // Checked when it was matched: an answer that waited for its run was not late.
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
                .opened(&flow, flow.answer.as_deref(), FlowValue::Answer)
                .await?;
            return match answer
                .as_ref()
                .and_then(|answer| match_server(&self.pack, answer.expose()))
            {
                Some(spec) => self.ask_for(spec).await,
                None => self.unknown("").await,
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
            Step::Field(at) => self.field_answered(flow, spec, at).await,
            _ => self.code_named(flow, spec).await,
        }
    }

    async fn field_answered(
        &self,
        mut flow: Flow,
        spec: &ServerSpec,
        at: usize,
    ) -> Result<Vec<Part>> {
        let answer = self
            .opened(&flow, flow.answer.as_deref(), FlowValue::Answer)
            .await?;
        let entered = self.entered(&flow).await?;
        // The pack has changed, or a key is missing: the entered values are not enough any more.
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
                self.proceed(&flow).await?;
                let why = self.notice("bad_answer", fault_text_key(fault), &[]);
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
        self.proceed(&flow).await?;
        Ok(vec![self.prompt(spec, next)])
    }

    /// Handles a text that was typed while the page was open: its code, or a value that must not be used.
    async fn code_named(&self, mut flow: Flow, spec: &ServerSpec) -> Result<Vec<Part>> {
        if flow.answer.as_deref() == Some(&[1]) {
            return match self.entered_on_page(&flow).await? {
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
        store::flows::refuse(&mut tx, flow.id).await?;
        tx.commit().await?;
        Ok(vec![self.notice(
            "typed_secret",
            Key::McpConfigTypedSecret,
            &[],
        )])
    }

    async fn proceed(&self, flow: &Flow) -> Result<()> {
        let mut tx = self.app.db.tenant(self.principal.tenant).await?;
        store::flows::proceed(&mut tx, flow, LIFE).await?;
        tx.commit().await
    }

    /// What was entered so far; `None` when it cannot be opened.
    async fn entered(&self, flow: &Flow) -> Result<Option<Values>> {
        if flow.entered.is_none() {
            return Ok(Some(Values::default()));
        }
        let opened = self
            .opened(flow, flow.entered.as_deref(), FlowValue::Entered)
            .await?;
        opened
            .map(|text| Values::from_sealable(&text))
            .transpose()
            .map_err(Error::internal)
    }

    /// What the page was sent with, or the sign-in that brought the user back; `None` when it cannot be opened.
    async fn entered_on_page(&self, flow: &Flow) -> Result<Option<Entered>> {
        let sealed = flow.entered.as_deref();
        let Some(text) = self.opened(flow, sealed, FlowValue::Entered).await? else {
            return Ok(None);
        };
        if let Ok(tokens) = from_sealable(&text) {
            return Ok(Some(Entered::SignIn(Box::new(tokens), flow.id)));
        }
        let values = Values::from_sealable(&text).map_err(Error::internal)?;
        Ok(Some(Entered::Values(values)))
    }

    async fn opened(
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
