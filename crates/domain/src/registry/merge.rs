//! Merges the levels of a server's configuration: registry default, then capabilities, then the agent. Later
//! levels win, `null` removes a key, and the origin of every value is kept.

use std::collections::BTreeMap;

use super::{
    Entry, Origin, ServerRef,
    config::ConfigValue,
    entry::{InvalidDefinition, internal},
};
use crate::template::Source;

/// A key of the schema with the value that the levels give it, before references are resolved.
#[derive(Clone, Debug)]
pub struct MergedKey {
    /// `None`: no level gives it a value, or a level removed it.
    pub value: Option<ConfigValue>,
    /// The level that decided last. `None`: no level mentions the key.
    pub origin: Option<Origin>,
    /// What earlier levels gave it, in order, with `None` where a level removed it.
    pub before: Vec<(Origin, Option<ConfigValue>)>,
}

/// Every key of the entry's schema.
pub fn merge(
    entry: &Entry,
    reference: &ServerRef,
) -> Result<BTreeMap<String, MergedKey>, InvalidDefinition> {
    let empty = MergedKey {
        value: None,
        origin: None,
        before: Vec::new(),
    };
    let mut keys: BTreeMap<String, MergedKey> = entry
        .definition
        .config_schema
        .keys()
        .map(|key| (key.clone(), empty.clone()))
        .collect();
    for (key, value) in &entry.defaults {
        if let Some(merged) = keys.get_mut(key) {
            merged.set_value(Origin::Registry, Some(value.clone()));
        }
    }
    for level in &reference.levels {
        for (key, value) in &level.config {
            let fault = |reason: String| InvalidDefinition::new(key, reason);
            let (Some(schema), Some(merged)) =
                (entry.definition.config_schema.get(key), keys.get_mut(key))
            else {
                return Err(fault(format!(
                    "the MCP server {} takes no such key",
                    entry.id
                )));
            };
            if let Some(value) = value {
                value.fits(schema.kind).map_err(fault)?;
                value.can_be_sent(schema.kind).map_err(fault)?;
                if schema.internal {
                    internal(value).map_err(fault)?;
                }
            }
            merged.set_value(level.origin.clone(), value.clone());
        }
    }
    for (key, schema) in &entry.definition.config_schema {
        let framework = ["session_id", "run_id"].contains(&key.as_str()) && schema.internal;
        if let Some(merged) = keys.get_mut(key).filter(|_| framework) {
            let written = serde_json::Value::String(format!("${{runtime.{key}}}"));
            let value =
                ConfigValue::parse(&written, &[Source::Runtime]).expect("a key of the runtime");
            merged.set_value(Origin::Framework, Some(value));
        }
    }
    Ok(keys)
}

impl MergedKey {
    fn set_value(&mut self, origin: Origin, value: Option<ConfigValue>) {
        if let Some(before) = self.origin.replace(origin) {
            self.before.push((before, self.value.take()));
        }
        self.value = value;
    }
}

/// Whether the server differs from run to run.
pub fn depends_on_run(entry: &Entry, keys: &BTreeMap<String, MergedKey>) -> bool {
    let values = keys
        .values()
        .filter_map(|key| key.value.as_ref())
        .flat_map(ConfigValue::references);
    entry
        .url
        .references()
        .cloned()
        .chain(values)
        .any(|reference| reference.source.is_of_run())
}
