//! The levels of a server's configuration on top of each other: registry default, then capabilities, then the
//! agent. Later wins, `null` takes away, and nothing is forgotten of where a value came from.

use std::collections::BTreeMap;

use super::{
    Entry, Origin, ServerRef,
    config::ConfigValue,
    entry::{Fault, internal},
};
use crate::domain::template::Source;

/// A key of the schema with what it is given, before values are filled in.
#[derive(Clone, Debug)]
pub struct MergedKey {
    /// `None`: nobody gives it a value, or somebody took it away.
    pub value: Option<ConfigValue>,
    /// Who said so last; `None`: nobody said anything.
    pub origin: Option<Origin>,
    /// What was said before, in order, with `None` where a key was taken away.
    pub before: Vec<(Origin, Option<ConfigValue>)>,
}

/// Every key of the entry's schema.
pub fn merge(entry: &Entry, reference: &ServerRef) -> Result<BTreeMap<String, MergedKey>, Fault> {
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
            merged.say(Origin::Registry, Some(value.clone()));
        }
    }
    for level in &reference.levels {
        for (key, value) in &level.config {
            let fault = |reason: String| Fault::new(key, reason);
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
            merged.say(level.origin.clone(), value.clone());
        }
    }
    for (key, schema) in &entry.definition.config_schema {
        let framework = ["session_id", "run_id"].contains(&key.as_str()) && schema.internal;
        if let Some(merged) = keys.get_mut(key).filter(|_| framework) {
            let written = serde_json::Value::String(format!("${{runtime.{key}}}"));
            let value =
                ConfigValue::parse(&written, &[Source::Runtime]).expect("a key of the runtime");
            merged.say(Origin::Framework, Some(value));
        }
    }
    Ok(keys)
}

impl MergedKey {
    fn say(&mut self, origin: Origin, value: Option<ConfigValue>) {
        if let Some(before) = self.origin.replace(origin) {
            self.before.push((before, self.value.take()));
        }
        self.value = value;
    }
}

/// Whether the server is another one for each run.
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
