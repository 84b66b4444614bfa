//! The walk through the schemas of a tool that counts what their references expand to.

use std::{collections::HashMap, ptr};

use serde_json::Value;

use super::{AppliesTo, Graph, Node, patterns_of, too_many, too_many_patterns};
use crate::tool_schema::{MAX_CHAIN, MAX_PATTERNS, MAX_SUBSCHEMAS};

/// One walk computes each of the two values, so that a schema with many references is walked once.
pub(super) struct Walk<'g, 'a> {
    graph: &'g Graph<'a>,
    /// References one after the other from here on; absent while they are being counted.
    steps: HashMap<Node, Option<usize>>,
    /// Schemas from here on; absent while they are being counted.
    sizes: HashMap<Node, Option<u64>>,
    pub(super) patterns: usize,
}

impl<'g, 'a> Walk<'g, 'a> {
    pub(super) fn new(graph: &'g Graph<'a>) -> Self {
        Self {
            graph,
            steps: HashMap::new(),
            sizes: HashMap::new(),
            patterns: 0,
        }
    }

    /// The number of schemas here when every reference is replaced by its target. A reference back to an
    /// outer schema counts as one: how often it is applied depends on the arguments.
    pub(super) fn size(&mut self, schema: &'a Value) -> Result<u64, String> {
        let node = ptr::from_ref(schema);
        if let Some(known) = self.sizes.get(&node) {
            return Ok(known.unwrap_or(1));
        }
        self.sizes.insert(node, None);
        // References may lead to where no schema is looked for.
        if self.sizes.len() > MAX_SUBSCHEMAS {
            return Err(too_many());
        }
        self.patterns += schema.as_object().map_or(0, patterns_of);
        if self.patterns > MAX_PATTERNS {
            return Err(too_many_patterns());
        }
        if self.chain(schema)? > MAX_CHAIN {
            return Err(format!(
                "more than {MAX_CHAIN} references follow one another in it"
            ));
        }
        let mut size = 1_u64;
        for (_, part) in self.graph.edges(schema)? {
            size = size.saturating_add(self.size(part)?);
        }
        self.sizes.insert(node, Some(size));
        Ok(size)
    }

    /// The longest chain of references that is applied to one value.
    pub(super) fn chain(&mut self, schema: &'a Value) -> Result<usize, String> {
        let node = ptr::from_ref(schema);
        match self.steps.get(&node) {
            Some(Some(known)) => return Ok(*known),
            Some(None) => {
                return Err("a reference in it leads back to itself on the same value".to_owned());
            }
            None => {}
        }
        self.steps.insert(node, None);
        let mut longest = 0;
        for (place, part) in self.graph.edges(schema)? {
            let step = match place {
                AppliesTo::Same => 0,
                AppliesTo::Reference => 1,
                _ => continue,
            };
            longest = longest.max(step + self.chain(part)?);
        }
        self.steps.insert(node, Some(longest));
        Ok(longest)
    }
}
