//! How much work a schema makes with certain arguments. A small schema can apply its parts to the same value
//! many times, and a recursive schema applies itself as often as the arguments are deep.

use std::{collections::HashMap, ptr};

use serde_json::Value;

use super::graph::{AppliesTo, Graph, Node};

/// Applications of a schema to a value.
const MAX_COST: u64 = 200_000;
/// Schemas that are applied inside of one another.
const MAX_DEPTH: usize = 1_000;

/// Whether the arguments can be checked within the limits.
pub(super) fn is_bounded(graph: &Graph, arguments: &Value) -> bool {
    let mut count = Count {
        graph,
        known: HashMap::new(),
    };
    count.cost(graph.root(), arguments, 0).is_some()
}

struct Count<'g, 'a> {
    graph: &'g Graph<'a>,
    /// By schema and value.
    known: HashMap<(Node, Node), u64>,
}

impl<'a> Count<'_, 'a> {
    /// What applying a schema to a value costs; `None` when that is too much.
    fn cost(&mut self, schema: &'a Value, value: &Value, depth: usize) -> Option<u64> {
        let key = (ptr::from_ref(schema), ptr::from_ref(value));
        if let Some(known) = self.known.get(&key) {
            return Some(*known);
        }
        if depth > MAX_DEPTH {
            return None;
        }
        let mut cost = 1_u64;
        for (place, part) in self.graph.edges(schema).ok()? {
            cost = cost.checked_add(self.cost_at(place, part, value, depth + 1)?)?;
            if cost > MAX_COST {
                return None;
            }
        }
        self.known.insert(key, cost);
        Some(cost)
    }

    fn cost_at(
        &mut self,
        place: AppliesTo,
        part: &'a Value,
        value: &Value,
        depth: usize,
    ) -> Option<u64> {
        let sum = |all: u64, one: Option<u64>| all.checked_add(one?).filter(|sum| *sum <= MAX_COST);
        match (place, value) {
            (AppliesTo::Same | AppliesTo::Reference, _) => self.cost(part, value, depth),
            (AppliesTo::Property(name), Value::Object(members)) => match members.get(name) {
                Some(member) => self.cost(part, member, depth),
                None => Some(0),
            },
            (AppliesTo::EachProperty, Value::Object(members)) => members
                .values()
                .try_fold(0, |all, member| sum(all, self.cost(part, member, depth))),
            (AppliesTo::EachPropertyName, Value::Object(members)) => {
                let one = self.cost(part, &Value::Null, depth)?;
                sum(0, one.checked_mul(members.len() as u64))
            }
            (AppliesTo::Item(at), Value::Array(items)) => match items.get(at) {
                Some(item) => self.cost(part, item, depth),
                None => Some(0),
            },
            (AppliesTo::EachItem, Value::Array(items)) => items
                .iter()
                .try_fold(0, |all, item| sum(all, self.cost(part, item, depth))),
            _ => Some(0),
        }
    }
}
