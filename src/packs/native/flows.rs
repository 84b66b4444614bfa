//! How a conversation starts (`flows`): the welcome, the sign-in and the menu.

use crate::{
    domain::{
        menu::standard,
        pack::{Authentication, Flows, Language, Welcome},
    },
    packs::{field::Field, menu, object::Object},
};

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
    let enabled = object
        .optional("enabled")
        .is_none_or(|field| field.boolean().unwrap_or_default());
    let key = object.optional("templateKey");
    let at = key.as_ref().unwrap_or(field).clone();
    let (key, shown) = key.and_then(|field| field.non_blank_text()).map_or_else(
        || {
            (
                Welcome::default().template_key,
                "\"greetingMessage\"".to_owned(),
            )
        },
        |text| (text.value, text.shown),
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

pub(super) fn authentication(field: &Field) -> Option<Authentication> {
    let mut object = field.object()?;
    let mut word = |name| {
        object
            .optional(name)
            .and_then(|field| field.non_blank_text())
            .map(|text| text.value.trim().to_owned())
    };
    let default = Authentication::default();
    let authentication = Authentication {
        user_id_attribute: word("userIdAttribute").unwrap_or(default.user_id_attribute),
        roles_attribute: word("rolesAttribute"),
        default_role: word("defaultRole"),
        required: object
            .optional("required")
            .and_then(|field| field.boolean())
            .unwrap_or(default.required),
        admin_users: object
            .optional("adminUsers")
            .map(|field| field.words())
            .unwrap_or_default(),
    };
    object.finish();
    Some(authentication)
}
