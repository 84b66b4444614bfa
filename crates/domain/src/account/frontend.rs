//! The chat frontends of a tenant and the headers in which they name their users.

use serde::{Deserialize, Serialize};

use super::SourceSettings;

/// A frontend whose headers are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Frontend {
    OpenWebui,
    Librechat,
}

/// The header names that a key's settings give: those of a known frontend, with some replaced, or all by
/// name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct FrontendSettings {
    pub preset: Option<Frontend>,
    /// The header with the immutable id of the user.
    #[cfg_attr(feature = "openapi", schema(pattern = "^[!#$%&'*+.^_`|~0-9A-Za-z-]+$"))]
    pub user_id: Option<String>,
    #[cfg_attr(feature = "openapi", schema(pattern = "^[!#$%&'*+.^_`|~0-9A-Za-z-]+$"))]
    pub name: Option<String>,
    #[cfg_attr(feature = "openapi", schema(pattern = "^[!#$%&'*+.^_`|~0-9A-Za-z-]+$"))]
    pub email: Option<String>,
    /// The header that becomes the claim `roles`.
    #[cfg_attr(feature = "openapi", schema(pattern = "^[!#$%&'*+.^_`|~0-9A-Za-z-]+$"))]
    pub roles: Option<String>,
    #[cfg_attr(feature = "openapi", schema(pattern = "^[!#$%&'*+.^_`|~0-9A-Za-z-]+$"))]
    pub locale: Option<String>,
    /// The header with the frontend's own id of the conversation.
    #[cfg_attr(feature = "openapi", schema(pattern = "^[!#$%&'*+.^_`|~0-9A-Za-z-]+$"))]
    pub conversation: Option<String>,
    /// An e-mail address in the header counts as verified. Absent: as for the keys of this name before, at first
    /// `false`.
    pub trust_email: Option<bool>,
    /// An issuer, or the name of another frontend's key, whose users are this frontend's users, too. Absent: as for the
    /// keys of this name before; at first the frontend has users of its own.
    pub shares_users_with: Option<String>,
}

impl FrontendSettings {
    /// Whether nothing at all is said.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// What they say about the users.
    pub fn source(&self) -> SourceSettings {
        SourceSettings {
            trust_email: self.trust_email,
            shares_users_with: self.shares_users_with.clone(),
        }
    }

    /// `None` when no header names the user.
    pub fn headers(self) -> Option<FrontendHeaders> {
        let preset = self.preset.map(|preset| match preset {
            Frontend::OpenWebui => FrontendHeaders::open_webui(),
            Frontend::Librechat => FrontendHeaders::librechat(),
        });
        let user_id = self
            .user_id
            .or_else(|| preset.as_ref().map(|preset| preset.user_id.clone()))?;
        let or = |said: Option<String>, of: fn(&FrontendHeaders) -> &Option<String>| {
            said.or_else(|| preset.as_ref().and_then(|preset| of(preset).clone()))
        };
        Some(FrontendHeaders {
            user_id,
            name: or(self.name, |preset| &preset.name),
            email: or(self.email, |preset| &preset.email),
            roles: or(self.roles, |preset| &preset.roles),
            locale: or(self.locale, |preset| &preset.locale),
            conversation: or(self.conversation, |preset| &preset.conversation),
        })
    }
}

/// The request headers in which a frontend says who its user is. They count only together with the
/// frontend's key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct FrontendHeaders {
    /// The immutable id of the user. A request without it is refused.
    pub user_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub email: Option<String>,
    /// Becomes the claim `roles`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub roles: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub locale: Option<String>,
    /// The frontend's own id of the conversation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conversation: Option<String>,
}

impl FrontendHeaders {
    /// What Open WebUI sends with `ENABLE_FORWARD_USER_INFO_HEADERS=true`.
    pub fn open_webui() -> Self {
        Self {
            user_id: "X-OpenWebUI-User-Id".to_owned(),
            name: Some("X-OpenWebUI-User-Name".to_owned()),
            email: Some("X-OpenWebUI-User-Email".to_owned()),
            roles: Some("X-OpenWebUI-User-Role".to_owned()),
            locale: None,
            conversation: Some("X-OpenWebUI-Chat-Id".to_owned()),
        }
    }

    /// For LibreChat, whose `headers` of a custom endpoint fill these from `{{LIBRECHAT_USER_ID}}`,
    /// `{{LIBRECHAT_USER_NAME}}`, `{{LIBRECHAT_USER_EMAIL}}`, `{{LIBRECHAT_USER_ROLE}}` and
    /// `{{LIBRECHAT_BODY_CONVERSATIONID}}`.
    pub fn librechat() -> Self {
        Self {
            user_id: "X-LibreChat-User-Id".to_owned(),
            name: Some("X-LibreChat-User-Name".to_owned()),
            email: Some("X-LibreChat-User-Email".to_owned()),
            roles: Some("X-LibreChat-User-Role".to_owned()),
            locale: None,
            conversation: Some("X-LibreChat-Conversation-Id".to_owned()),
        }
    }

    /// Every header that is named.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let optional = [
            &self.name,
            &self.email,
            &self.roles,
            &self.locale,
            &self.conversation,
        ];
        std::iter::once(self.user_id.as_str())
            .chain(optional.into_iter().filter_map(Option::as_deref))
    }
}
