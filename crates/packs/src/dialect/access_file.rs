//! `access.yaml`, which stands beside a pack of another format and restricts who may call which tool.

use super::servers_of;
use crate::{
    field::Field,
    node_builder::NodeBuilder,
    parse_context::ParseContext,
    yaml::{EMPTY, Node, Value},
};

/// `access.yaml`: `authentication` as in `flows`, and `toolAccess` by server.
pub(super) fn tighten(root: &mut Node, context: &ParseContext, source: usize) {
    let Some(document) = context.parse_source(source, |fault| {
        (fault.message == EMPTY).then(|| {
            (
                EMPTY.to_owned(),
                "write `toolAccess: { <server>: … }`, or remove it",
            )
        })
    }) else {
        return;
    };
    let document = Field::new(context, &document, "");
    let Some(mut top) = document.object() else {
        return;
    };
    if let Some(authentication) = top.optional("authentication") {
        let mut flows = NodeBuilder::default();
        flows.put("authentication", crate::node_builder::copy(&authentication));
        root.set("flows", flows.into_node(&authentication));
    }
    let access = top.optional("toolAccess");
    for (name, field) in access.as_ref().and_then(Field::entries).unwrap_or_default() {
        if !set_access(root, name, crate::node_builder::copy(&field)) {
            let known: Vec<_> = servers_of(root)
                .iter()
                .filter_map(|server| server.get("name")?.scalar_text())
                .collect();
            field.error(
                format!("there is no server {name:?}"),
                &format!("the servers are {}", known.join(", ")),
            );
        }
    }
    top.finish();
}

fn set_access(root: &mut Node, name: &str, access: Node) -> bool {
    let Value::Map(top) = &mut root.value else {
        return false;
    };
    let Some((_, mcp)) = top.iter_mut().find(|(key, _)| key.text == "mcp") else {
        return false;
    };
    let Value::Map(fields) = &mut mcp.value else {
        return false;
    };
    let Some((_, servers)) = fields.iter_mut().find(|(key, _)| key.text == "servers") else {
        return false;
    };
    let Value::List(servers) = &mut servers.value else {
        return false;
    };
    let named = |server: &&mut Node| server.get("name").and_then(Node::scalar_text) == Some(name);
    servers.iter_mut().find(named).is_some_and(|server| {
        server.set("toolAccess", access);
        true
    })
}
