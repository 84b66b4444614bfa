//! A page as the tests read it: its fenced blocks, its links, its headings, and the code in its sentences.
//!
//! A comment before a block says what is to be done with it:
//!
//! | comment | meaning |
//! |---|---|
//! | `<!-- answer -->` before `json` | the shape of what the `sh` block before it printed |
//! | `<!-- file: PATH -->` before `yaml` | this file of the packs' folder, which must load with the files before it |
//! | `<!-- not run: WHY -->` | the block is only read: command lines are parsed, nothing is started |

use std::{fs, path::Path};

/// A page with its path below the repository.
pub struct Page {
    pub path: String,
    pub text: String,
}

/// A fenced block.
#[derive(Clone, Debug)]
pub struct Block {
    /// `docs/users.md:12`, for messages.
    pub place: String,
    /// The word after the fence.
    pub language: String,
    /// What the comment before the block says, empty without one.
    pub comment: String,
    pub text: String,
}

impl Block {
    pub fn is_run(&self) -> bool {
        !self.comment.starts_with("not run:")
    }

    /// The path in `<!-- file: PATH -->`.
    pub fn file(&self) -> Option<&str> {
        self.comment.strip_prefix("file:").map(str::trim)
    }
}

/// Pages that are written elsewhere and not in this form yet: their links and names are checked, their blocks are not.
/// This list only shrinks.
const NOT_YET: [&str; 1] = ["docs/scaling.md"];

/// The pages whose blocks are tested.
pub fn tested() -> Vec<Page> {
    let mut pages = pages();
    pages.retain(|page| !NOT_YET.contains(&page.path.as_str()));
    pages
}

/// Whether a page may still be missing.
pub fn may_be_missing(path: &str) -> bool {
    NOT_YET.contains(&path)
}

/// The README and every page of `docs/`.
pub fn pages() -> Vec<Page> {
    let folders = ["docs", "docs/frontends"].map(|folder| fs::read_dir(folder).unwrap());
    let mut paths: Vec<String> = folders
        .into_iter()
        .flatten()
        .map(|entry| entry.unwrap().path().display().to_string())
        .filter(|path| Path::new(path).extension().is_some_and(|end| end == "md"))
        .collect();
    paths.sort();
    paths.insert(0, "README.md".to_owned());
    paths.iter().map(|path| Page::read(path)).collect()
}

impl Page {
    pub fn read(path: &str) -> Self {
        let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}"));
        Self {
            path: path.to_owned(),
            text,
        }
    }

    pub fn blocks(&self) -> Vec<Block> {
        let mut blocks: Vec<Block> = Vec::new();
        let mut open: Option<Block> = None;
        let mut before = "";
        for (number, line) in self.text.lines().enumerate() {
            match (&mut open, line.trim_start().strip_prefix("```")) {
                (Some(_), Some(_)) => blocks.extend(open.take()),
                (Some(block), None) => {
                    block.text.push_str(line);
                    block.text.push('\n');
                }
                (None, Some(language)) => {
                    let comment = before
                        .strip_prefix("<!--")
                        .and_then(|rest| rest.strip_suffix("-->"));
                    open = Some(Block {
                        place: format!("{}:{}", self.path, number + 1),
                        language: language.trim().to_owned(),
                        comment: comment.unwrap_or_default().trim().to_owned(),
                        text: String::new(),
                    });
                }
                (None, None) if line.trim().is_empty() => {}
                (None, None) => before = line.trim(),
            }
            if open.is_some() {
                before = "";
            }
        }
        assert!(open.is_none(), "{}: a block is not closed", self.path);
        blocks
    }

    /// The text outside of the blocks, with line numbers from 1.
    pub fn prose(&self) -> Vec<(usize, &str)> {
        let mut inside = false;
        let lines = self.text.lines().enumerate();
        let lines = lines.filter(|(_, line)| {
            let fence = line.trim_start().starts_with("```");
            inside ^= fence;
            !inside && !fence
        });
        lines.map(|(at, line)| (at + 1, line)).collect()
    }

    /// `code` in sentences, with the line.
    pub fn code_spans(&self) -> Vec<(usize, String)> {
        let mut spans = Vec::new();
        for (number, line) in self.prose() {
            let odd = line.split('`').skip(1).step_by(2);
            spans.extend(odd.map(|span| (number, span.to_owned())));
        }
        spans
    }

    /// Where the links lead, with the line.
    pub fn links(&self) -> Vec<(usize, &str)> {
        let lines = self.prose().into_iter();
        lines
            .flat_map(|(number, line)| {
                let targets = line.split("](").skip(1);
                targets.filter_map(move |rest| Some((number, rest.split(')').next()?)))
            })
            .collect()
    }

    /// The anchors of the headings, as GitHub makes them.
    pub fn anchors(&self) -> Vec<String> {
        let headings = self.prose().into_iter().filter(|(_, l)| l.starts_with('#'));
        headings
            .map(|(_, line)| {
                let title = line.trim_start_matches('#').trim().to_lowercase();
                let kept = title
                    .chars()
                    .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
                kept.map(|c| if c == ' ' { '-' } else { c }).collect()
            })
            .collect()
    }
}
