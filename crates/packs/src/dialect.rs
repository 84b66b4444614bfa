//! The formats that load as a pack. The files in a folder decide the format. This module also supplies what
//! packs of other programs lack: an id, texts, a model.
//!
//! Each is a parser to the tree of a native pack, which [`native`](super::native) reads like any other. So
//! every rule holds for all of them, and nothing further on knows where a pack came from.

mod access_file;
mod aos_files;
mod environment_model;
mod finding;
mod imported;

use std::{
    fs,
    path::{Path, PathBuf, absolute},
};

use self::access_file::tighten;
pub(super) use self::{
    environment_model::{endpoint_of, key_of},
    finding::{missing_pack_hint, of_file, of_folder},
    imported::{Parts, assemble, open_to_all},
};
use super::{
    aos, holaos, holodeck,
    node_builder::generated_text,
    parse_context::{ParseContext, ProblemPlace},
    report::Severity,
    server::Files,
    yaml::{Node, Value},
};
use domain::ids::AgentId;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    Native,
    HolaOs,
    Aos,
    HoloDeck,
}

pub(super) const NATIVE_FILES: [&str; 3] = ["agent-pack.yaml", "agent-pack.yml", "agent-pack.json"];
/// Beside a pack of another format: who may do what, in the native one.
pub(super) const ACCESS: &str = "access.yaml";
const WORKSPACE: &str = "workspace.yaml";
const AGENT: &str = "agent.yaml";

impl Dialect {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Native => "agent-pack",
            Self::HolaOs => "holaOS",
            Self::Aos => "AOS",
            Self::HoloDeck => "HoloDeck",
        }
    }
}

/// The files of one pack.
#[derive(Debug)]
pub(super) struct Documents {
    pub dialect: Dialect,
    pub folder: PathBuf,
    /// At least one; `access.yaml` is the last one, if there is one.
    pub files: Vec<PathBuf>,
}

impl Documents {
    /// The name of the pack in messages.
    pub(super) fn name(&self) -> String {
        let path = if self.dialect == Dialect::Aos {
            &self.folder
        } else {
            &self.files[0]
        };
        path.display().to_string()
    }

    /// The file with the access rules.
    pub(super) fn access(&self) -> Option<usize> {
        let last = self.files.len() - 1;
        (last > 0 && self.files[last] == self.folder.join(ACCESS)).then_some(last)
    }
}

/// The tree of a native pack, and other files that it was made of. Without a tree there is a problem.
pub(super) fn read(documents: &Documents, context: &ParseContext) -> (Option<Node>, Files) {
    let mut files = Files::new();
    let mut root = match documents.dialect {
        Dialect::Native => {
            if let Some(at) = documents.access() {
                let message = "this file is for packs of other formats".to_owned();
                let hint = "write `toolAccess` and `flows.authentication` in the pack, and remove this file";
                context.report(Severity::Error, ProblemPlace::start_of(at), message, hint);
            }
            return (context.parse(), files);
        }
        Dialect::HolaOs => holaos::read(context),
        Dialect::Aos => Some(aos::read(context, documents)),
        Dialect::HoloDeck => holodeck::read(context, &documents.folder, &mut files),
    };
    if let (Some(root), Some(at)) = (&mut root, documents.access()) {
        tighten(root, context, at);
    }
    if let Some(Err(reason)) = id_of(&documents.folder).map(|id| AgentId::parse(&id)) {
        let message = format!("the name of the folder is the id of the pack: {reason}");
        context.report(
            Severity::Error,
            ProblemPlace::start_of(0),
            message,
            "rename the folder",
        );
    }
    let root = root.map(|root| named(root, &documents.folder));
    (root.filter(|_| !context.is_refused()), files)
}

fn id_of(folder: &Path) -> Option<String> {
    let named = |path: PathBuf| Some(path.file_name()?.to_str()?.to_owned());
    // A folder may be named by the way out of another one.
    absolute(folder)
        .ok()
        .and_then(named)
        .or_else(|| fs::canonicalize(folder).ok().and_then(named))
}

/// Puts the id in front.
fn named(mut root: Node, folder: &Path) -> Node {
    let id = generated_text("the name of the folder", id_of(folder).unwrap_or_default());
    if let Value::Map(entries) = &mut root.value
        && let Some((_, metadata)) = entries.iter_mut().find(|(key, _)| key.text == "metadata")
        && let Value::Map(fields) = &mut metadata.value
    {
        fields.insert(
            0,
            (
                super::yaml::Key {
                    text: "id".to_owned(),
                    at: id.at,
                },
                id,
            ),
        );
    }
    root
}

pub(super) fn servers_of(root: &Node) -> &[Node] {
    root.get_path(&["mcp", "servers"])
        .map(Node::items)
        .unwrap_or_default()
}
