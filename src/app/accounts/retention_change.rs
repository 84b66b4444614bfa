//! How long a tenant's things are kept, as the operator changes it.

use serde::Deserialize;

use super::tenants::given;
use crate::domain::{
    error::{Error, Result},
    retention::{MAX_DAYS, Retention},
    usage::Limit,
};

/// A change of how long a tenant's things are kept: a number of days, `unlimited`, or `null` for the installation's.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RetentionChange {
    #[serde(default, deserialize_with = "given")]
    pub conversations: Option<Option<Limit>>,
    #[serde(default, deserialize_with = "given")]
    pub guest_conversations: Option<Option<Limit>>,
    #[serde(default, deserialize_with = "given")]
    pub runs: Option<Option<Limit>>,
    #[serde(default, deserialize_with = "given")]
    pub approval_arguments: Option<Option<Limit>>,
    #[serde(default, deserialize_with = "given")]
    pub audit: Option<Option<Limit>>,
}

impl RetentionChange {
    /// Applies it; adds what has changed, in words.
    pub(super) fn apply(self, own: &mut Retention, changed: &mut Vec<String>) {
        let said = self;
        for (name, limit, said) in [
            ("conversations", &mut own.conversations, said.conversations),
            (
                "guest conversations",
                &mut own.guest_conversations,
                said.guest_conversations,
            ),
            ("runs", &mut own.runs, said.runs),
            (
                "approval arguments",
                &mut own.approval_arguments,
                said.approval_arguments,
            ),
            ("audit", &mut own.audit, said.audit),
        ] {
            if let Some(said) = said.filter(|said| *said != *limit) {
                changed.push(match said {
                    None => format!("{name} kept as the settings have it"),
                    Some(Limit::Unlimited(_)) => format!("{name} kept for ever"),
                    Some(Limit::AtMost(days)) => format!("{name} kept {days} days"),
                });
                *limit = said;
            }
        }
    }

    pub(super) fn check(&self) -> Result<()> {
        let change = self;
        let days = [
            ("conversations", change.conversations),
            ("guest_conversations", change.guest_conversations),
            ("runs", change.runs),
            ("approval_arguments", change.approval_arguments),
            ("audit", change.audit),
        ];
        for (name, said) in days {
            if let Some(Some(Limit::AtMost(days))) = said
                && !i32::try_from(days).is_ok_and(|days| (1..=MAX_DAYS).contains(&days))
            {
                return Err(Error::invalid(
                    format!("retention.{name}"),
                    format!("must be a number of days from 1 to {MAX_DAYS}, or `unlimited`"),
                ));
            }
        }
        Ok(())
    }
}
