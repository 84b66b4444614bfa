//! The names in `languages.*.strings`: a text that nobody asks for by its name is said to have no effect.

use crate::field::{Field, nearest};
use domain::{
    menu::Label,
    pack::Flows,
    texts::{UNSAID, named, names},
};

/// Warns of names that no text has, with the nearest one, and once of the texts of published packs that are never said
/// here.
pub(super) fn check(document: &Field, flows: &Flows) {
    let labels = flows.menu.iter().filter_map(|item| match &item.label {
        Label::Key(key) => Some(key.as_str()),
        Label::BuiltIn | Label::Texts(_) => None,
    });
    let mut used: Vec<&str> = labels.collect();
    if flows.welcome.enabled {
        used.push(&flows.welcome.template_key);
    }
    let mut known: Vec<&str> = names().collect();
    known.extend(&used);
    let languages = document.get_path(&["languages"]).filter(Field::is_map);
    let languages = languages.and_then(|field| field.entries());
    let mut unsaid: Option<Field> = None;
    let mut unsaid_names: Vec<&str> = Vec::new();
    for (_, language) in languages.iter().flatten() {
        let strings = language.get_path(&["strings"]).filter(Field::is_map);
        for (name, text) in strings
            .and_then(|field| field.entries())
            .unwrap_or_default()
        {
            if used.contains(&name) || named(name).is_some() {
                continue;
            }
            if UNSAID.contains(&name) {
                if !unsaid_names.contains(&name) {
                    unsaid_names.push(name);
                }
                unsaid.get_or_insert(text);
                continue;
            }
            let near = nearest(name, &known);
            let near = near.map_or_else(String::new, |near| format!("did you mean {near:?}? "));
            text.warn(
                "has no effect: no text has this name",
                &format!("{near}locales/en.toml has all names"),
            );
        }
    }
    if let Some(first) = unsaid {
        let listed = unsaid_names.join(", ");
        first.warn(
            format!("these texts have no effect here: {listed}"),
            "this program says nothing of the kind",
        );
    }
}
