//! How a conversation starts (`flows`): the welcome, the sign-in and the menu.

use crate::{
    field::{Field, boolean_word},
    menu,
    object::Object,
};
use domain::{
    menu::standard,
    pack::{Authentication, CHOSEN_CLAIMS, Flows, Language, Welcome},
};

/// The names of admins by what they call themselves, and what a user shows to sign in.
pub(super) const WITHOUT_EFFECT: [&str; 3] =
    ["adminAvatars", "credentialDefinitionId", "issuerServiceDid"];
/// The older name of `greetingMessage`.
const OLD_GREETING: &str = "welcomeMessage";

pub(super) fn flows(top: &mut Object, language: &str, texts: &Language) -> Flows {
    top.optional("flows")
        .and_then(|field| read(&field, language, texts))
        .unwrap_or_default()
}

fn read(field: &Field, language: &str, texts: &Language) -> Option<Flows> {
    let mut object = field.object()?;
    let flows = Flows {
        welcome: object
            .optional("welcome")
            .and_then(|field| welcome(&field, texts))
            .unwrap_or_default(),
        authentication: object
            .optional("authentication")
            .and_then(|f| authentication(&f))
            .unwrap_or_default(),
        menu: object
            .optional("menu")
            .and_then(|field| menu::read(&field, language, texts))
            .unwrap_or_else(standard),
    };
    object.finish();
    Some(flows)
}

/// The block turns the welcome on, unless it says `enabled: false`.
fn welcome(field: &Field, texts: &Language) -> Option<Welcome> {
    let mut object = field.object()?;
    // Published packs greet where `sendOnProfile` is on, too, and never where it is off.
    let enabled = ["enabled", "sendOnProfile"].map(|name| {
        object
            .optional(name)
            .is_none_or(|field| field.boolean_or_word().unwrap_or_default())
    });
    let enabled = enabled == [true, true];
    let key = object.optional("templateKey");
    let at = key.as_ref().unwrap_or(field).clone();
    let (key, shown) = key.and_then(|field| field.non_blank_text()).map_or_else(
        || {
            (
                Welcome::default().template_key,
                "\"greetingMessage\"".to_owned(),
            )
        },
        |text| match text.value.as_str() {
            OLD_GREETING => (Welcome::default().template_key, text.shown),
            _ => (text.value, text.shown),
        },
    );
    let known = if key == "greetingMessage" {
        texts.greeting_message.is_some()
    } else {
        texts.strings.contains_key(&key)
    };
    if enabled && !known {
        let hint =
            "write it there (`greetingMessage`, or a key of `strings`), or write `enabled: false`";
        at.error(format!("the default language has no text {shown}"), hint);
    }
    object.finish();
    Some(Welcome {
        enabled,
        template_key: key,
    })
}

/// The line that turns the sign-in off, if a pack has one.
pub(super) fn turned_off<'a>(document: &Field<'a>) -> Option<Field<'a>> {
    off(&document.get_path(&["flows", "authentication"])?)
}

fn off<'a>(authentication: &Field<'a>) -> Option<Field<'a>> {
    let enabled = authentication.get_path(&["enabled"])?;
    let is_off = enabled.flag() == Some(false)
        || enabled.try_text().as_deref().and_then(boolean_word) == Some(false);
    is_off.then_some(enabled)
}

fn authentication(field: &Field) -> Option<Authentication> {
    let mut object = field.object()?;
    let word = |field: &Field| {
        let text = field.non_blank_text()?;
        Some(text.value.trim().to_owned())
    };
    let id = object.optional_or("userIdAttribute", "userIdentityAttribute");
    let (user_id_attribute, trusted_issuers) = id
        .and_then(|field| Some(user_id(&field, word(&field)?)))
        .unwrap_or_else(|| {
            let default = Authentication::default();
            (default.user_id_attribute, default.trusted_issuers)
        });
    let roles_attribute = object
        .optional("rolesAttribute")
        .and_then(|field| word(&field));
    let default_role = object
        .optional("defaultRole")
        .and_then(|field| word(&field));
    if let Some(field) = object.optional("enabled") {
        field.boolean_or_word();
    }
    let required = object
        .optional("required")
        .and_then(|field| field.boolean_or_word())
        .unwrap_or(Authentication::default().required);
    if let Some(enabled) = off(field)
        && required
    {
        enabled.warn(
            "nobody is let in without a sign-in by this line alone",
            "write `required: false` to let guests in; `check` then says which tools they reach",
        );
    }
    let admin_users = object.optional("adminUsers").map(|field| field.words());
    object.pass_over_known(
        &WITHOUT_EFFECT[..1],
        "people choose such names themselves, so none of them makes an admin; write the ids of admins in `adminUsers`",
    );
    object.pass_over_known(
        &WITHOUT_EFFECT[1..],
        "users sign in at the issuers of their tenant, or come through a frontend with a key, instead of showing a credential",
    );
    object.finish();
    Some(Authentication {
        required,
        user_id_attribute,
        trusted_issuers,
        roles_attribute,
        default_role,
        admin_users: admin_users.unwrap_or_default(),
    })
}

/// The claim that names users, and the issuers that are trusted with it. A claim that people choose themselves counts only
/// where the operator says so; else `sub` names the users.
fn user_id(field: &Field, claim: String) -> (String, Vec<String>) {
    if !CHOSEN_CLAIMS.contains(&claim.as_str()) {
        return (claim, Vec::new());
    }
    let trusted = field.context.trusted_issuers(&claim);
    if trusted.is_empty() {
        field.warn(
            format!(
                "people choose their {claim:?} themselves, so `sub` is used: `adminUsers` means the ids of users"
            ),
            "write `userIdAttribute: email`, or name the issuers that are trusted with this claim in CHATELAINE_ID_CLAIMS",
        );
        return (Authentication::default().user_id_attribute, Vec::new());
    }
    (claim, trusted)
}
