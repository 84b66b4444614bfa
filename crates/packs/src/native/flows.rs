//! Reads `flows`: the welcome, the sign-in and the menu, which is what a user can tap.

use crate::{
    field::{Field, boolean_word},
    object::Object,
    personal::read_label,
};
use domain::{
    menu::{Action, Badge, Item, Label, Visibility, standard},
    pack::{Authentication, CHOSEN_CLAIMS, Flows, Language, Welcome},
    texts::named,
};

/// Fields of `flows.authentication` that have no effect: names of admins that people choose themselves, and the
/// credential that a user shows.
pub(super) const WITHOUT_EFFECT: [&str; 3] =
    ["adminAvatars", "credentialDefinitionId", "issuerServiceDid"];
/// The older name of `greetingMessage`.
const OLD_GREETING: &str = "welcomeMessage";

pub(super) fn read_flows(top: &mut Object, language: &str, texts: &Language) -> Flows {
    top.optional("flows")
        .and_then(|field| read_sections(&field, language, texts))
        .unwrap_or_default()
}

fn read_sections(field: &Field, language: &str, texts: &Language) -> Option<Flows> {
    let mut object = field.object()?;
    let flows = Flows {
        welcome: object
            .optional("welcome")
            .and_then(|field| read_welcome(&field, texts))
            .unwrap_or_default(),
        authentication: object
            .optional("authentication")
            .and_then(|f| read_authentication(&f))
            .unwrap_or_default(),
        menu: object
            .optional("menu")
            .and_then(|field| read_menu(&field, language, texts))
            .unwrap_or_else(standard),
    };
    object.finish();
    Some(flows)
}

/// Reads `welcome`. The section turns the welcome on, unless it says `enabled: false`.
fn read_welcome(field: &Field, texts: &Language) -> Option<Welcome> {
    let mut object = field.object()?;
    // In published packs `sendOnProfile` turns the welcome on and off, too.
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

/// The field `flows.authentication.enabled`, if it turns the sign-in off.
pub(super) fn find_disabled_sign_in<'a>(document: &Field<'a>) -> Option<Field<'a>> {
    find_disabled(&document.get_path(&["flows", "authentication"])?)
}

fn find_disabled<'a>(authentication: &Field<'a>) -> Option<Field<'a>> {
    let enabled = authentication.get_path(&["enabled"])?;
    let is_off = enabled.flag() == Some(false)
        || enabled.try_text().as_deref().and_then(boolean_word) == Some(false);
    is_off.then_some(enabled)
}

fn read_authentication(field: &Field) -> Option<Authentication> {
    let mut object = field.object()?;
    let word = |field: &Field| {
        let text = field.non_blank_text()?;
        Some(text.value.trim().to_owned())
    };
    let id = object.optional_or("userIdAttribute", "userIdentityAttribute");
    let (user_id_attribute, trusted_issuers) = id
        .and_then(|field| Some(read_user_id(&field, word(&field)?)))
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
    if let Some(enabled) = find_disabled(field)
        && required
    {
        enabled.warn(
            "nobody is let in without a sign-in by this line alone",
            "write `required: false` to let guests in; `check` then says which tools they reach",
        );
    }
    let admin_users = object
        .optional("adminUsers")
        .map(|field| field.text_values());
    object.warn_without_effect(
        &WITHOUT_EFFECT[..1],
        "people choose such names themselves, so none of them makes an admin; write the ids of admins in `adminUsers`",
    );
    object.warn_without_effect(
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

/// The claim that holds the id of a user, and the issuers that are trusted with it. A claim that people choose
/// themselves is used only if the operator trusts an issuer with it; else the claim is `sub`.
fn read_user_id(field: &Field, claim: String) -> (String, Vec<String>) {
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

/// Reads `menu`. `texts` are those of the default language, which must have every `labelKey`.
fn read_menu(field: &Field, language: &str, texts: &Language) -> Option<Vec<Item>> {
    let mut object = field.object()?;
    let list = object.required(
        "items",
        "write `items: [{ id: connect, action: mcp-config }]`",
    );
    object.finish();
    let mut items: Vec<Item> = Vec::new();
    for (field, item) in list?
        .list()?
        .iter()
        .filter_map(|field| Some((field, read_item(field, language, texts)?)))
    {
        if items.iter().any(|other| other.id == item.id) {
            field.error(
                format!("the item {:?} is there already", item.id),
                "give each item an id of its own",
            );
        }
        items.push(item);
    }
    Some(items)
}

fn read_item(field: &Field, language: &str, texts: &Language) -> Option<Item> {
    let mut object = field.object()?;
    let id = object
        .optional("id")
        .and_then(|field| field.parse_with(check_item_id));
    let action = object.required("action", "write what it does, such as `action: mcp-config`");
    let action = action.and_then(|field| field.one_of(&Action::ALL));
    let (text, key) = (object.optional("label"), object.optional("labelKey"));
    let label = match (text, key) {
        (Some(text), Some(key)) => {
            text.warn("has no effect beside `labelKey`", "write one of the two");
            read_label_key(&key, texts)
        }
        (Some(text), None) => read_label(&text, language).map(Label::Texts),
        (None, Some(key)) => read_label_key(&key, texts),
        (None, None) => Some(Label::BuiltIn),
    };
    let visible_when = object.optional("visibleWhen").map(|field| {
        field.one_of(&[
            ("always", Visibility::Always),
            ("authenticated", Visibility::Authenticated),
            ("unauthenticated", Visibility::Unauthenticated),
            ("configuring", Visibility::Configuring),
            ("notConfiguring", Visibility::NotConfiguring),
            ("hasPendingApprovals", Visibility::HasPendingApprovals),
            ("hasApprovalRequests", Visibility::HasApprovalRequests),
        ])
    });
    let badge = object.optional("badge").map(|field| {
        // Published packs use these names.
        match field.raw() {
            Some("pendingApprovalCount") => return Some(Badge::PendingApprovals),
            Some("approvalRequestCount") => return Some(Badge::ApprovalRequests),
            _ => {}
        }
        let badge = field.one_of(&[
            ("needsAttention", Some(Badge::NeedsAttention)),
            ("pendingApprovals", Some(Badge::PendingApprovals)),
            ("approvalRequests", Some(Badge::ApprovalRequests)),
            ("none", None),
        ]);
        badge.unwrap_or_default()
    });
    object.finish();
    let action = action?;
    let standard = Item::for_action(action);
    Some(Item {
        id: id.unwrap_or(standard.id),
        label: label?,
        action,
        visible_when: visible_when.flatten().unwrap_or(standard.visible_when),
        badge: badge.unwrap_or(standard.badge),
    })
}

fn read_label_key(field: &Field, texts: &Language) -> Option<Label> {
    let text = field.non_blank_text()?;
    // The program has texts of its own in every language.
    if !texts.strings.contains_key(&text.value) && named(&text.value).is_none() {
        let hint = "write it there under `strings`, or write a `label`";
        field.error(
            format!("the default language has no text {}", text.shown),
            hint,
        );
    }
    Some(Label::Key(text.value))
}

fn check_item_id(text: &str) -> Result<String, String> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    if (1..=64).contains(&text.len()) && text.bytes().all(fits) {
        Ok(text.to_owned())
    } else {
        Err(format!(
            "{text:?} is not an id; use letters, digits, `-` and `_`, at most 64"
        ))
    }
}
