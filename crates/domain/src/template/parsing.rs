//! How a template is parsed.

use super::{Piece, Reference, Template, TemplateError, is_variable_name, source::Source};

impl Template {
    pub(super) fn parse_with(
        text: &str,
        reference: impl Fn(&str) -> Result<Reference, TemplateError>,
    ) -> Result<Self, TemplateError> {
        let mut pieces = Vec::new();
        let mut literal = String::new();
        let mut rest = text;
        while let Some(at) = rest.find('$') {
            literal.push_str(&rest[..at]);
            rest = &rest[at..];
            if let Some(after) = rest.strip_prefix("$${") {
                literal.push_str("${");
                rest = after;
            } else if let Some(after) = rest.strip_prefix("${") {
                let (name, after) = after.split_once('}').ok_or(TemplateError::Unclosed)?;
                if !literal.is_empty() {
                    pieces.push(Piece::Literal(std::mem::take(&mut literal)));
                }
                pieces.push(Piece::Reference(reference(name)?));
                rest = after;
            } else {
                literal.push('$');
                rest = &rest[1..];
            }
        }
        literal.push_str(rest);
        if !literal.is_empty() {
            pieces.push(Piece::Literal(literal));
        }
        Ok(Self { pieces })
    }

    /// Parses the spelling of a personal server's headers: `{value}` is what the user entered in the field
    /// `own`, `{name}` what they entered in another, `{base64(user:token)}` the base64 of two with a colon
    /// between them, and everything else itself.
    pub fn parse_user(text: &str, own: &str) -> Result<Self, TemplateError> {
        let field = |name: &str| user_reference(name.trim(), own);
        let mut pieces = Vec::new();
        let mut rest = text;
        while let Some((literal, after)) = rest.split_once('{') {
            if !literal.is_empty() {
                pieces.push(Piece::Literal(literal.to_owned()));
            }
            let (inner, after) = after.split_once('}').ok_or(TemplateError::UnclosedField)?;
            let encoded = inner
                .strip_prefix("base64(")
                .and_then(|inner| inner.strip_suffix(')'));
            pieces.push(match encoded {
                Some(names) => {
                    Piece::Base64(names.split(':').map(field).collect::<Result<_, _>>()?)
                }
                None => Piece::Reference(field(inner)?),
            });
            rest = after;
        }
        if !rest.is_empty() {
            pieces.push(Piece::Literal(rest.to_owned()));
        }
        Ok(Self { pieces })
    }
}

/// `NAME`. A dotted name belongs to a source that is not there yet, which deserves its own sentence.
pub(super) fn reference(name: &str) -> Result<Reference, TemplateError> {
    if is_variable_name(name) {
        return Ok(Reference {
            source: Source::Env,
            key: name.to_owned(),
        });
    }
    let dotted = name.contains('.') && name.split('.').all(is_variable_name);
    if dotted {
        return Err(TemplateError::UnknownSource(
            name.chars().take(40).collect(),
        ));
    }
    // The rest may be the secret itself.
    let end = name
        .find(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '.')
        .unwrap_or(name.len());
    let shown: String = name[..end].chars().take(40).collect();
    Err(TemplateError::BadName(if shown.len() < name.len() {
        shown + "…"
    } else {
        shown
    }))
}

/// The field that `{name}` refers to: `value` is the field itself.
fn user_reference(name: &str, own: &str) -> Result<Reference, TemplateError> {
    let key = match name {
        "value" => own,
        name if is_variable_name(name) => name,
        _ => return Err(TemplateError::BadField),
    };
    Ok(Reference {
        source: Source::User,
        key: key.to_owned(),
    })
}
