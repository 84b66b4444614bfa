//! `flows.menu`: what a user can tap besides talking.

use super::{field::Field, personal::label};
use domain::{
    menu::{Action, Badge, Item, Label, Visibility},
    pack::Language,
    texts::named,
};

/// `texts` are those of the default language, in which every `labelKey` must be.
pub(super) fn read(field: &Field, language: &str, texts: &Language) -> Option<Vec<Item>> {
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
        .filter_map(|field| Some((field, item(field, language, texts)?)))
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

fn item(field: &Field, language: &str, texts: &Language) -> Option<Item> {
    let mut object = field.object()?;
    let id = object.optional("id").and_then(|field| field.parsed(id));
    let action = object.required("action", "write what it does, such as `action: mcp-config`");
    let action = action.and_then(|field| field.one_of(&Action::ALL));
    let (text, key) = (object.optional("label"), object.optional("labelKey"));
    let label = match (text, key) {
        (Some(text), Some(key)) => {
            text.warn("has no effect beside `labelKey`", "write one of the two");
            label_key(&key, texts)
        }
        (Some(text), None) => label(&text, language).map(Label::Texts),
        (None, Some(key)) => label_key(&key, texts),
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
        // The names of published packs.
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
    let standard = Item::of(action);
    Some(Item {
        id: id.unwrap_or(standard.id),
        label: label?,
        action,
        visible_when: visible_when.flatten().unwrap_or(standard.visible_when),
        badge: badge.unwrap_or(standard.badge),
    })
}

fn label_key(field: &Field, texts: &Language) -> Option<Label> {
    let text = field.non_blank_text()?;
    // A text of the program's own is there in any case.
    if !texts.strings.contains_key(&text.value) && named(&text.value).is_none() {
        let hint = "write it there under `strings`, or write a `label`";
        field.error(
            format!("the default language has no text {}", text.shown),
            hint,
        );
    }
    Some(Label::Key(text.value))
}

fn id(text: &str) -> Result<String, String> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    if (1..=64).contains(&text.len()) && text.bytes().all(fits) {
        Ok(text.to_owned())
    } else {
        Err(format!(
            "{text:?} is not an id; use letters, digits, `-` and `_`, at most 64"
        ))
    }
}
