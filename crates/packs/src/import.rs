//! Writes a pack of another format as a native one. Variables stay references, and the author's comments stay at their
//! lines; comments of lines that do not exist any more stand at the top.
//!
//! The written pack is read back before it is returned: it must do the same as the original.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io::Write as _,
    path::{Path, PathBuf},
};

use super::{
    dialect::{Dialect, Documents, NATIVE_FILES, servers_of},
    field::Field,
    finding::find_in_folder,
    folder::{self, PackReadResult, PackTree},
    native,
    parse_context::{ParseContext, UnsetPolicy},
    report::{LoadError, Report},
    yaml::{Comment, Node, Origin},
    yaml_writer::{Annotator, write},
};
use domain::{config::Environment, pack::Pack};

/// The largest distance in lines between a comment and the line that it is about.
const MAX_COMMENT_DISTANCE: usize = 5;

/// A native pack that is not written yet.
pub struct Imported {
    pub id: String,
    pub text: String,
    /// The folder that it comes from.
    pub folder: PathBuf,
    /// The files of that folder that the pack needs, as paths relative to it.
    pub needs: Vec<String>,
    /// Whether a server gets the pack's folder as an argument.
    pub names_folder: bool,
    /// The warnings of the original.
    pub report: Report,
    /// Whether both packs were compared, which needs all variables of the original.
    pub compared: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    #[error(transparent)]
    Broken(#[from] LoadError),
    #[error("there are {0} packs; name one of them")]
    NotOne(usize),
    #[error("{0} is a native pack already")]
    Native(String),
    #[error("the pack cannot be written so that it does the same; please report it: {0}")]
    Differs(String),
    #[error("{} has a pack already, in {}; remove it, or name another folder with `--to`", .0.display(), .1.display())]
    Occupied(PathBuf, PathBuf),
    #[error("{} cannot be written: {}", .0.display(), .1)]
    Unwritable(PathBuf, std::io::Error),
}

/// Reads one pack below a path. Variables may be unset.
pub fn import(path: &Path, env: &Environment) -> Result<Imported, ImportError> {
    let folder::PacksReadResult {
        mut packs, report, ..
    } = folder::read(path, env, None, UnsetPolicy::Allowed);
    if !report.is_ok() {
        return Err(LoadError(report).into());
    }
    if packs.len() != 1 {
        return Err(ImportError::NotOne(packs.len()));
    }
    let PackReadResult {
        documents, tree, ..
    } = packs.remove(0);
    if documents.dialect == Dialect::Native {
        return Err(ImportError::Native(documents.name()));
    }
    let PackTree {
        root,
        files,
        comments,
    } = tree.expect("a pack without problems has a tree");
    let head = heading(&documents);
    let annotator = CommentAnnotator::new(&root, comments);
    let body = write(&root, &annotator);
    let text = head + &annotator.remaining_comments(&files, &documents.folder) + "\n" + &body;
    let servers = servers_of(&root);
    let needs: BTreeSet<String> = servers
        .iter()
        .flat_map(|server| list_needed_files(server, &documents.folder))
        .collect();
    let names_folder = servers.iter().any(names_its_folder);
    let compared = compare(path, &text, &documents.folder, env)?;
    let id = root
        .get_path(&["metadata", "id"])
        .and_then(Node::scalar_text)
        .unwrap_or_default()
        .to_owned();
    let needs = needs.into_iter().collect();
    Ok(Imported {
        id,
        text,
        folder: documents.folder,
        needs,
        names_folder,
        report,
        compared,
    })
}

/// Reads the text back and compares it with the original, if all variables of the original are set. Returns whether
/// both were compared. `Err` if the text reads differently, or cannot be read.
fn compare(path: &Path, text: &str, folder: &Path, env: &Environment) -> Result<bool, ImportError> {
    let original = folder::read(path, env, None, UnsetPolicy::Refused)
        .packs
        .pop()
        .and_then(|outcome| outcome.pack);
    let unset = if original.is_some() {
        UnsetPolicy::Refused
    } else {
        UnsetPolicy::Allowed
    };
    let copy = read_back(text, folder, env, unset)?;
    if let Some(original) = &original
        && !copy.as_ref().is_some_and(|copy| copy.same_as(original))
    {
        return Err(ImportError::Differs("it reads differently".to_owned()));
    }
    Ok(original.is_some())
}

/// The first line of the pack. It names the files that the pack was made from.
fn heading(documents: &Documents) -> String {
    let shown = documents.files.iter().map(|file| {
        file.strip_prefix(&documents.folder)
            .unwrap_or(file)
            .display()
            .to_string()
    });
    format!(
        "# Imported from {} ({}).\n",
        shown.collect::<Vec<_>>().join(", "),
        documents.dialect.name()
    )
}

/// Whether the folder of the pack is among the arguments of a server's command.
fn names_its_folder(server: &Node) -> bool {
    let arguments = server.get("args").map(Node::items).unwrap_or_default();
    let mut arguments = arguments.iter().filter_map(Node::scalar_text);
    arguments.any(|text| matches!(text, "." | "./"))
}

/// The files in the pack's folder that a server needs: its file of variables, its program, and arguments that name a
/// file.
fn list_needed_files(server: &Node, folder: &Path) -> Vec<String> {
    let text = |name: &str| server.get(name).and_then(Node::scalar_text);
    let mut files: Vec<String> = text("envFile").map(str::to_owned).into_iter().collect();
    if text("transport") != Some("stdio") {
        return files;
    }
    let program = text("command").and_then(|command| command.strip_prefix("${workspaceFolder}/"));
    let arguments = server.get("args").map(Node::items).unwrap_or_default();
    let arguments = arguments.iter().filter_map(Node::scalar_text);
    let named = program.into_iter().chain(arguments);
    let named = named.map(|name| name.strip_prefix("./").unwrap_or(name));
    let is_there = |name: &&str| {
        !name.is_empty() && Path::new(name).is_relative() && folder.join(name).is_file()
    };
    files.extend(named.filter(is_there).map(str::to_owned));
    files
}

fn read_back(
    text: &str,
    folder: &Path,
    env: &Environment,
    unset: UnsetPolicy,
) -> Result<Option<Pack>, ImportError> {
    let context = ParseContext::new(NATIVE_FILES[0], text, env, unset).in_folder(folder);
    let pack = context
        .parse()
        .and_then(|root| native::read(&Field::new(&context, &root, ""), folder, None).pack);
    if context.is_refused() {
        let problems = context.finish().0;
        return Err(ImportError::Differs(
            problems
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
                .join("\n"),
        ));
    }
    Ok(pack)
}

impl Imported {
    /// Writes the pack into a folder without a pack. Returns the file.
    pub fn write_to(&self, folder: &Path) -> Result<PathBuf, ImportError> {
        let file = folder.join(NATIVE_FILES[0]);
        let there = match find_in_folder(folder) {
            Ok(there) => there.map(|documents| documents.files[0].clone()),
            Err(_) => Some(folder.to_owned()),
        };
        if let Some(other) = there {
            return Err(ImportError::Occupied(folder.to_owned(), other));
        }
        let written = fs::create_dir_all(folder)
            .and_then(|()| File::create_new(&file))
            .and_then(|mut open| open.write_all(self.text.as_bytes()));
        written.map_err(|error| ImportError::Unwritable(file.clone(), error))?;
        Ok(file)
    }
}

/// The author's comments by the line that they belong to, which is a number of a file and a line. Each comment is
/// written once, and then removed from these maps.
struct CommentAnnotator {
    above: RefCell<BTreeMap<(usize, usize), Vec<String>>>,
    beside: RefCell<BTreeMap<(usize, usize), String>>,
    /// The comments whose line does not exist any more.
    lost: Vec<Comment>,
}

impl CommentAnnotator {
    fn new(root: &Node, comments: Vec<Comment>) -> Self {
        let mut lines = BTreeSet::new();
        collect_lines(root, &mut lines);
        let (mut above, mut beside) = (BTreeMap::<_, Vec<String>>::new(), BTreeMap::new());
        let mut lost = Vec::new();
        for comment in comments {
            let here = (comment.source, comment.line);
            let near = lines
                .range(here..(comment.source, comment.line + MAX_COMMENT_DISTANCE))
                .next();
            match near {
                _ if comment.beside && lines.contains(&here) => {
                    beside.insert(here, comment.text.trim().to_owned());
                }
                Some(line) if !comment.beside => above
                    .entry(*line)
                    .or_default()
                    .push(comment.text.trim().to_owned()),
                _ => lost.push(comment),
            }
        }
        Self {
            above: RefCell::new(above),
            beside: RefCell::new(beside),
            lost,
        }
    }

    /// The comments that have not been written beside a value, each with its file and line.
    fn remaining_comments(&self, files: &[String], folder: &Path) -> String {
        let (above, beside) = (self.above.borrow(), self.beside.borrow());
        let above = above
            .iter()
            .flat_map(|(place, texts)| texts.iter().map(move |text| (*place, text.as_str())));
        let beside = beside.iter().map(|(place, text)| (*place, text.as_str()));
        let lost = self
            .lost
            .iter()
            .map(|comment| ((comment.source, comment.line), comment.text.trim()));
        let mut all: Vec<_> = above
            .chain(beside)
            .chain(lost)
            .filter(|(_, text)| !text.is_empty())
            .collect();
        all.sort_unstable();
        let folder = format!("{}/", folder.display());
        let named = |source: usize| {
            files[source]
                .strip_prefix(&folder)
                .unwrap_or(&files[source])
                .to_owned()
        };
        let lines = all
            .iter()
            .map(|((source, line), text)| format!("# {}:{line}: {text}", named(*source)));
        lines.flat_map(|line| [line, "\n".to_owned()]).collect()
    }
}

/// The line that a node was written in. `None` for a generated node.
fn line_of(node: &Node) -> Option<(usize, usize)> {
    (!matches!(node.origin, Origin::Generated(_))).then_some((node.source, node.at.line))
}

fn collect_lines(node: &Node, lines: &mut BTreeSet<(usize, usize)>) {
    lines.extend(line_of(node));
    node.items()
        .iter()
        .chain(node.entries().iter().map(|(_, inner)| inner))
        .for_each(|inner| collect_lines(inner, lines));
}

impl Annotator for CommentAnnotator {
    fn is_uncommented(&self, item: &Node) -> bool {
        let line = line_of(item).unwrap_or_default();
        !self.above.borrow().contains_key(&line) && !self.beside.borrow().contains_key(&line)
    }

    fn comments_above(&self, node: &Node) -> Vec<String> {
        let own = line_of(node).and_then(|line| self.above.borrow_mut().remove(&line));
        let said = node
            .note
            .iter()
            .flat_map(|text| text.lines().map(str::to_owned));
        own.into_iter().flatten().chain(said).collect()
    }

    fn comment_beside(&self, node: &Node, _: &[&str]) -> Option<String> {
        line_of(node).and_then(|line| self.beside.borrow_mut().remove(&line))
    }

    fn replacement(&self, _: &Node, _: &[&str]) -> Option<String> {
        None
    }
}
