//! How types are read from columns: `select id as "id: RunId"`, or `"id: _"` where the struct says the type.

use sqlx::{
    Decode, Postgres, Type,
    error::BoxDynError,
    postgres::{PgTypeInfo, PgValueRef},
    types::Json,
};
use uuid::Uuid;

use crate::{
    approval,
    credential::CredentialState,
    ids::{
        AgentId, ApiKeyId, ApprovalId, AuditId, ConversationId, CredentialId, DeliveryId, IssuerId,
        KekId, MessageId, ReplicaId, RunId, ServerId, TenantId, UserId, WebhookId,
    },
    retention::Retention,
    run::RunStatus,
    usage::Limits,
};

macro_rules! uuids {
    ($($name:ident),+ $(,)?) => {$(
        impl Type<Postgres> for $name {
            fn type_info() -> PgTypeInfo {
                <Uuid as Type<Postgres>>::type_info()
            }
        }

        impl Decode<'_, Postgres> for $name {
            fn decode(value: PgValueRef<'_>) -> Result<Self, BoxDynError> {
                Uuid::decode(value).map(Self)
            }
        }
    )+};
}

uuids! {
    ApiKeyId, ApprovalId, AuditId, ConversationId, CredentialId, DeliveryId, IssuerId, MessageId, ReplicaId, RunId,
    TenantId, WebhookId,
}

/// Text that is checked when it is read; what does not pass is an error that names the column.
macro_rules! texts {
    ($($name:path, $parse:expr;)+) => {$(
        impl Type<Postgres> for $name {
            fn type_info() -> PgTypeInfo {
                <str as Type<Postgres>>::type_info()
            }

            fn compatible(given: &PgTypeInfo) -> bool {
                <str as Type<Postgres>>::compatible(given)
            }
        }

        impl<'r> Decode<'r, Postgres> for $name {
            fn decode(value: PgValueRef<'r>) -> Result<Self, BoxDynError> {
                let text = <&str as Decode<'r, Postgres>>::decode(value)?;
                $parse(text).map_err(BoxDynError::from)
            }
        }
    )+};
}

texts! {
    AgentId, AgentId::parse;
    ServerId, ServerId::parse;
    KekId, KekId::parse;
    UserId, |text: &str| Ok::<_, String>(UserId(text.into()));
    CredentialState, |text| CredentialState::parse(text).ok_or_else(|| unknown("state", text));
    approval::State, |text| approval::State::parse(text).ok_or_else(|| unknown("state", text));
    approval::Choice, |text| approval::Choice::parse(text).ok_or_else(|| unknown("choice", text));
    RunStatus, |text| RunStatus::parse(text).ok_or_else(|| unknown("status", text));
}

/// Plain data in a column of JSON.
macro_rules! jsons {
    ($($name:ident),+) => {$(
        impl Type<Postgres> for $name {
            fn type_info() -> PgTypeInfo {
                <Json<Self> as Type<Postgres>>::type_info()
            }

            fn compatible(given: &PgTypeInfo) -> bool {
                <Json<Self> as Type<Postgres>>::compatible(given)
            }
        }

        impl Decode<'_, Postgres> for $name {
            fn decode(value: PgValueRef<'_>) -> Result<Self, BoxDynError> {
                Json::decode(value).map(|Json(data)| data)
            }
        }
    )+};
}

jsons!(Limits, Retention);

fn unknown(what: &str, text: &str) -> String {
    format!("unknown {what} {text:?}")
}
