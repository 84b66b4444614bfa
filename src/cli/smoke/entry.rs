//! What a user of a personal server would enter, asked for here: on a terminal field by field, without showing
//! a secret; from a pipe one line for each field.

use std::io::{self, IsTerminal as _};

use anyhow::bail;

use crate::{
    cli::{chat::completion::Words, lines::Lines, print_line},
    domain::{
        pack::Pack,
        personal::{self, Values},
        server::{FieldKind, ServerSpec, UserField},
    },
};

/// The values of every field, each checked. On a terminal a wrong one is asked for again.
pub(super) async fn ask(pack: &Pack, spec: &ServerSpec) -> anyhow::Result<Values> {
    let interactive = io::stdin().is_terminal();
    let mut lines = Lines::start(interactive, vec!["› ".to_owned()], Words::default(), None);
    let mut values = Values::default();
    for field in &spec.user_config {
        loop {
            if interactive {
                print_line(&question(pack, field));
            }
            let Some(line) = lines.next(field.kind == FieldKind::Secret).await? else {
                let names: Vec<_> = spec
                    .user_config
                    .iter()
                    .map(|field| field.name.as_str())
                    .collect();
                bail!(
                    "{}: nothing was entered; a line is needed for each of: {}",
                    field.name,
                    names.join(", ")
                );
            };
            match personal::check(field, line.trim_end_matches(['\r', '\n'])) {
                Ok(value) => {
                    values.set(field, value);
                    break;
                }
                Err(fault) if interactive => print_line(&format!("{} {fault}", field.name)),
                Err(fault) => bail!("{} {fault}", field.name),
            }
        }
    }
    Ok(values)
}

fn question(pack: &Pack, field: &UserField) -> String {
    let label = pack.text(&field.label, None).unwrap_or(&field.name);
    let options: Vec<_> = field
        .options
        .iter()
        .map(|option| option.value.as_str())
        .collect();
    let hint = match field.kind {
        FieldKind::Boolean => " (true or false)".to_owned(),
        FieldKind::Select => format!(" ({})", options.join(", ")),
        FieldKind::Text | FieldKind::Secret | FieldKind::Url => String::new(),
    };
    format!(
        "{label}{hint}{}",
        if field.required {
            ""
        } else {
            " – may be left empty"
        }
    )
}
