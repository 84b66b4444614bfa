//! What an answer means: people write "2", "yes", "GitHub" or "-".

use super::{LIFE, OfFlow, Scene, TRIES, context, is_secret};
use crate::{
    app::platform::keys::OpenError,
    domain::{
        connection::Trouble,
        error::{Error, Result},
        flow::{Flow, Step},
        message::{Choice, Part},
        pack::Pack,
        personal::{self, Fault, Values},
        secret::Secret,
        server::{AccessMode, FieldKind, ServerSpec, UserField},
        texts::Key,
    },
    store,
};

/// The personal server that somebody means: by number in the list, or by name.
pub(super) fn picked<'p>(pack: &'p Pack, text: &str) -> Option<&'p ServerSpec> {
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
fn meant(field: &UserField, offered: &[Choice], answer: &str) -> String {
    let said = answer.trim();
    match field.kind {
        _ if !field.required && said == "-" => String::new(),
        FieldKind::Boolean => match said.to_lowercase().as_str() {
            "yes" | "y" | "true" | "sí" | "si" | "oui" | "o" | "1" => "true".to_owned(),
            "no" | "n" | "false" | "non" | "0" => "false".to_owned(),
            _ => said.to_owned(),
        },
        FieldKind::Select => {
            let named = |choice: &&Choice| {
                choice.value == said || choice.label.to_lowercase() == said.to_lowercase()
            };
            let numbered = said
                .parse::<usize>()
                .ok()
                .and_then(|number| offered.get(number.checked_sub(1)?));
            offered
                .iter()
                .find(named)
                .or(numbered)
                .map_or_else(|| said.to_owned(), |choice| choice.value.clone())
        }
        FieldKind::Text | FieldKind::Secret | FieldKind::Url => said.to_owned(),
    }
}

/// How the program says why a connection test failed.
pub(super) fn words_for(trouble: Trouble) -> Key {
    match trouble {
        Trouble::Unauthorized => Key::Unauthorized,
        Trouble::Unreachable => Key::Unreachable,
        Trouble::Timeout => Key::Timeout,
        Trouble::BadTemplate => Key::BadTemplate,
        Trouble::NotMcp => Key::NotMcp,
    }
}

/// And why a value cannot be used.
pub(super) fn words_for_fault(fault: Fault) -> Key {
    match fault {
        Fault::Missing | Fault::Unknown => Key::Missing,
        Fault::LineBreak => Key::LineBreak,
        Fault::TooLong => Key::TooLong,
        Fault::NotAnAddress => Key::NotAnAddress,
        Fault::NotABoolean => Key::NotABoolean,
        Fault::NotAnOption => Key::NotAnOption,
        Fault::NotForHeaders => Key::BadTemplate,
    }
}

impl Scene<'_> {
    /// Takes in the answer of the flow.
    pub(super) async fn take_in(&self, flow: Flow) -> Result<Vec<Part>> {
        // Judged when it was caught: an answer that waited for its run was not late.
        if flow.answer.as_ref().is_none_or(Vec::is_empty) {
            self.end().await?;
            return Ok(vec![self.say("flow_expired", Key::Expired, &[])]);
        }
        if flow.step == Step::Pick {
            let answer = self
                .opened(&flow, flow.answer.as_deref(), OfFlow::Answer)
                .await?;
            return match answer
                .as_ref()
                .and_then(|answer| picked(self.pack, answer.expose()))
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
            return Ok(vec![self.say("flow_expired", Key::Expired, &[])]);
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
            .opened(&flow, flow.answer.as_deref(), OfFlow::Answer)
            .await?;
        let entered = self.entered(&flow).await?;
        // The pack has changed, or a key is gone: what was entered is not enough any more.
        let (Some(field), Some(answer), Some(mut values)) =
            (spec.user_config.get(at), answer, entered)
        else {
            return self.ask_for(spec).await;
        };
        let offered = options(self.pack, self.principal.locale.as_deref(), field);
        let checked = personal::check(field, &meant(field, &offered, answer.expose()));
        match checked {
            Ok(value) => values.set(field, value),
            Err(fault) => {
                self.proceed(&flow).await?;
                let why = self.say("bad_answer", words_for_fault(fault), &[]);
                return Ok(vec![why, self.prompt(spec, field)]);
            }
        }
        let Some(next) = spec.user_config.get(at + 1) else {
            return self.finish(spec, &values).await;
        };
        let context = context(self.principal, &flow, OfFlow::Entered);
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

    /// What was typed while the page was to be used: its code, or something that must not be used.
    async fn code_named(&self, mut flow: Flow, spec: &ServerSpec) -> Result<Vec<Part>> {
        if flow.answer.as_deref() == Some(&[1]) {
            return match self.entered(&flow).await? {
                Some(values) => self.finish(spec, &values).await,
                None => self.ask_for(spec).await,
            };
        }
        flow.tries += 1;
        if flow.tries >= TRIES {
            self.end().await?;
            return Ok(vec![self.say("wrong_code", Key::WrongCode, &[])]);
        }
        let mut tx = self.app.db.tenant(self.principal.tenant).await?;
        store::flows::refuse(&mut tx, flow.id).await?;
        tx.commit().await?;
        Ok(vec![self.say("typed_secret", Key::TypedSecret, &[])])
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
            .opened(flow, flow.entered.as_deref(), OfFlow::Entered)
            .await?;
        opened
            .map(|text| Values::from_sealable(&text))
            .transpose()
            .map_err(Error::internal)
    }

    async fn opened(
        &self,
        flow: &Flow,
        sealed: Option<&[u8]>,
        which: OfFlow,
    ) -> Result<Option<Secret>> {
        let Some(sealed) = sealed else {
            return Ok(None);
        };
        match self
            .app
            .keys
            .open(
                self.principal.tenant,
                &context(self.principal, flow, which),
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
