//! The capabilities that a pack refers to: files with servers and a prompt.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::{ReferenceOwner, RegistryReferences, server::server};
use crate::{field::Field, server::PackContext};
use domain::registry::{CAPABILITIES, Origin};

const FOLDER: &str = "capabilities";

const MAX_BYTES: usize = 256 * 1024;

pub(super) fn bad_name(text: &str) -> String {
    format!(
        "{text:?} is not the name of a capability; write that of a file in `{FOLDER}/`, without `.yaml`"
    )
}

/// Reads the file of a capability. Its problems are those of the pack.
pub(super) fn capability(
    item: &Field,
    name: &str,
    pack: &PackContext,
    found: &mut RegistryReferences,
) {
    let path = capabilities_folder(pack.folder).join(format!("{name}.yaml"));
    let bytes = fs::read(&path);
    pack.files
        .borrow_mut()
        .insert(path.clone(), bytes.as_deref().unwrap_or_default().to_vec());
    let text = match bytes.map(String::from_utf8) {
        Ok(Ok(text)) if text.len() <= MAX_BYTES => text,
        Ok(_) => {
            item.error(
                format!("{} is not text, or larger than 256 KiB", path.display()),
                "",
            );
            return;
        }
        Err(error) => {
            let hint = format!("write it as {}", path.display());
            item.error(
                format!("the capability {name} cannot be read: {}", error.kind()),
                &hint,
            );
            return;
        }
    };
    let context = item.context.for_file(&path.display().to_string(), &text);
    if let Some(root) = context.parse()
        && let Some(mut object) = Field::new(&context, &root, "").object()
    {
        let owner = ReferenceOwner {
            origin: Origin::Capability(name.to_owned()),
            sources: CAPABILITIES,
            pack,
        };
        found.prompts.extend(
            object
                .optional("prompt")
                .and_then(|field| field.non_blank_text())
                .map(|text| text.value),
        );
        let servers = object.optional("mcpServers");
        for (name, item) in servers
            .as_ref()
            .and_then(Field::entries)
            .unwrap_or_default()
        {
            server(name, &item, &owner, &mut found.references);
        }
        object.finish();
    }
    let (problems, used) = context.finish();
    found.problems.extend(problems);
    found.used.extend(used);
}

/// The folder of capabilities `capabilities_folder` a pack's.
fn capabilities_folder(folder: &Path) -> PathBuf {
    match folder
        .parent()
        .filter(|parent| parent.components().next().is_some())
    {
        Some(parent) => parent.join(FOLDER),
        None => folder.join("..").join(FOLDER),
    }
}
