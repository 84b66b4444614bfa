//! The OpenAPI schemas of types that the layers below own. The types that they store or return as JSON are
//! described here, so that only this layer knows OpenAPI.
//!
//! A declaration repeats the fields of its type as serde writes them. One that misses a field or a variant, or
//! has one too many, does not compile.

mod access;
mod accounts;
mod approvals;
mod conversations;
mod messages;
mod registry;
mod replicas;
mod runs;
mod servers;
mod tools;
mod usage;
mod webhooks;

use uuid::Uuid;

use domain::ids;

/// Declares schemas: `struct Name for path::Type { field: type, … }`, with the attributes of `utoipa::ToSchema`.
macro_rules! schemas {
    () => {};
    ($(#[$meta:meta])* struct $name:ident for $type:path {
        $($(#[$field_meta:meta])* $field:ident: $field_type:ty,)*
    } $($rest:tt)*) => {
        const _: () = {
            #[derive(utoipa::ToSchema)]
            $(#[$meta])*
            #[expect(dead_code, reason = "read by the derive only")]
            struct $name { $($(#[$field_meta])* $field: $field_type,)* }
            #[expect(dead_code, reason = "compiles if every field is declared")]
            fn every_field(value: $type) {
                let $type { $($field: _,)* } = value;
            }
            $crate::api::schemas::schemas!(@impl $name, $type);
        };
        $crate::api::schemas::schemas! { $($rest)* }
    };
    ($(#[$meta:meta])* enum $name:ident for $type:path {
        $($(#[$variant_meta:meta])* $variant:ident $(($inner:ty))? $({ $($fields:tt)* })?,)*
    } $($rest:tt)*) => {
        const _: () = {
            #[derive(utoipa::ToSchema)]
            $(#[$meta])*
            #[expect(dead_code, reason = "read by the derive only")]
            enum $name { $($(#[$variant_meta])* $variant $(($inner))? $({ $($fields)* })?,)* }
            #[expect(dead_code, reason = "compiles if every variant is declared")]
            fn every_variant(value: &$type) {
                use $type as Type;
                match value { $(Type::$variant { .. } => {})* }
            }
            $crate::api::schemas::schemas!(@impl $name, $type);
        };
        $crate::api::schemas::schemas! { $($rest)* }
    };
    ($(#[$meta:meta])* id $name:ident; $($rest:tt)*) => {
        const _: () = {
            #[derive(utoipa::ToSchema)]
            $(#[$meta])*
            #[expect(dead_code, reason = "read by the derive only")]
            struct $name(Uuid);
            $crate::api::schemas::schemas!(@impl $name, ids::$name);
        };
        $crate::api::schemas::schemas! { $($rest)* }
    };
    (@impl $name:ident, $type:path) => {
        impl utoipa::PartialSchema for $type {
            fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
                <$name as utoipa::PartialSchema>::schema()
            }
        }
        impl utoipa::ToSchema for $type {
            fn name() -> std::borrow::Cow<'static, str> {
                <$name as utoipa::ToSchema>::name()
            }
            fn schemas(
                schemas: &mut Vec<(String, utoipa::openapi::RefOr<utoipa::openapi::Schema>)>,
            ) {
                <$name as utoipa::ToSchema>::schemas(schemas);
            }
        }
    };
}
use schemas;

schemas! {
    /// An organisation; nothing crosses from one to another.
    id TenantId;
    /// A chat between one user and one agent.
    id ConversationId;
    /// One message of a conversation.
    id MessageId;
    /// One turn of the agent in a conversation.
    id RunId;
    /// Somebody who vouches for users of a tenant.
    id IssuerId;
    /// A key that a frontend or a program authenticates with.
    id ApiKeyId;
    /// One line of the audit trail.
    id AuditId;
    /// A process of this program; new at every start.
    id ReplicaId;
    /// Where a tenant wants to be told what happens.
    id WebhookId;
    /// One message to a webhook; the same however often it is sent.
    id DeliveryId;
    /// A request that a tool call be made.
    id ApprovalId;
    /// An image or a text file in a conversation.
    id AttachmentId;
}
