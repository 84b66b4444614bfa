//! One key of a configuration and its value.

use super::{refusal::ResolveError, values::Sources};
use crate::{
    header,
    registry::{
        Entry, Origin, ServerRef,
        config::{ConfigValue, KeySchema, MAX_VALUE, UNCARRIED, Unresolved},
        merge::MergedKey,
    },
    template::{OnMissing, Reference, Resolved},
};

/// A key's text; `None` when it is left out.
pub(super) fn key_of(
    entry: &Entry,
    reference: &ServerRef,
    key: &str,
    merged: &MergedKey,
    sources: Sources,
) -> Result<Option<(Resolved, Origin)>, ResolveError> {
    let schema = &entry.definition.config_schema[key];
    let missing = |what: String| ResolveError::Missing {
        alias: reference.alias.clone(),
        what,
        key: key.to_owned(),
    };
    let unfit = |reason: String| ResolveError::Key {
        alias: reference.alias.clone(),
        key: key.to_owned(),
        reason,
    };
    let (Some(value), Some(origin)) = (&merged.value, &merged.origin) else {
        return if schema.required {
            Err(missing(key.to_owned()))
        } else {
            Ok(None)
        };
    };
    let sources = sources.at(origin);
    if let Some(reason) = sources.refused(&value.references()) {
        return Err(unfit(reason));
    }
    let resolved = resolve_value(value, schema, sources).map_err(|why| match why {
        Unresolved::Missing(what) => missing(what),
        Unresolved::WrongType(reason) => unfit(reason),
    })?;
    let Some(mut resolved) = resolved else {
        return Ok(None);
    };
    if schema.required && resolved.text.expose().trim().is_empty() {
        // A server that is asked to limit itself to nothing may take it for no limit.
        let references = value.references();
        let first = references.first().map(Reference::dotted);
        return Err(missing(first.unwrap_or_else(|| key.to_owned())));
    }
    if resolved.text.expose().len() > MAX_VALUE {
        return Err(unfit(format!("its value is longer than {MAX_VALUE} bytes")));
    }
    if !header::can_carry(resolved.text.expose()) {
        return Err(unfit(UNCARRIED.to_owned()));
    }
    resolved.sensitive |= schema.sensitive;
    Ok(Some((resolved, origin.clone())))
}

fn resolve_value(
    value: &ConfigValue,
    schema: &KeySchema,
    sources: Sources,
) -> Result<Option<Resolved>, Unresolved> {
    let on_missing = if schema.required {
        OnMissing::Error
    } else {
        OnMissing::Omit
    };
    value.resolve(
        schema.kind,
        on_missing,
        |it| sources.get(it),
        |name| sources.secret(name),
    )
}
