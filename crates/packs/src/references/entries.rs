//! The entries of the registry that a pack brings along.

use std::{fs, io::ErrorKind, path::PathBuf, sync::Arc};

use super::RegistryReferences;
use crate::{
    report::{Problem, Severity},
    server::PackContext,
};
use domain::registry::{Definition, Entry, Rules};

/// The entries beside the pack, in the order of their files.
pub(super) fn entries(pack: &PackContext, found: &mut RegistryReferences) {
    let path = pack.folder.join("registry");
    if fs::symlink_metadata(&path).is_err_and(|error| error.kind() == ErrorKind::NotFound) {
        return;
    }
    let listed =
        fs::read_dir(&path).and_then(|folder| folder.map(|file| Ok(file?.path())).collect());
    let mut files: Vec<PathBuf> = match listed {
        Ok(files) => files,
        Err(error) => {
            found.problems.push(Problem::whole(
                Severity::Error,
                path.display().to_string(),
                format!("cannot be read: {}", error.kind()),
                "",
            ));
            return;
        }
    };
    files.retain(|file| {
        file.extension()
            .is_some_and(|extension| extension == "json")
    });
    files.sort();
    for file in files {
        add_entry(file, pack, found);
    }
}

fn add_entry(file: PathBuf, pack: &PackContext, found: &mut RegistryReferences) {
    let bytes = fs::read(&file);
    let name = file.display().to_string();
    let content = bytes.as_deref().unwrap_or_default().to_vec();
    pack.files.borrow_mut().insert(file, content);
    let problem = |message: String| Problem::whole(Severity::Error, name, message, "");
    let read = bytes
        .map_err(|error| format!("cannot be read: {}", error.kind()))
        .and_then(|bytes| entry(&bytes));
    match read {
        Ok(entry) if found.entries.iter().any(|other| other.id == entry.id) => {
            let message = format!("there is an entry {} in another file", entry.id);
            found.problems.push(problem(message));
        }
        Ok(entry) => found.entries.push(Arc::new(entry)),
        Err(message) => found.problems.push(problem(message)),
    }
}

fn entry(json: &[u8]) -> Result<Entry, String> {
    let definition: Definition = serde_json::from_slice(json).map_err(|error| {
        let place = format!("line {} column {}", error.line(), error.column());
        let text = error.to_string();
        // Other sentences quote what they found, which may be secret.
        let harmless = ["unknown field", "missing field", "unknown variant"]
            .iter()
            .any(|it| text.starts_with(it));
        if harmless {
            text
        } else {
            format!("is not an entry of the registry ({place})")
        }
    })?;
    let definition = definition
        .keep_sensitive(None)
        .map_err(|fault| fault.to_string())?;
    Entry::parse(definition, Rules::Operator).map_err(|fault| fault.to_string())
}
