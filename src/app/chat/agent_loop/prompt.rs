//! What the model is told of its task: the pack's prompt in the user's language, and the toolbox by server. A provider
//! keeps the beginning of a request for the next one, so that what may change from step to step stands at its end.

use std::fmt::Write as _;

use crate::{
    app::{chat::tool_search, tools::toolset::Toolbox},
    domain::{
        connection::DownCause,
        pack::Pack,
        policy::{Decision, decide},
        principal::Principal,
    },
    llm::Turn,
};

/// The prompt lists at most this many tools by name; the request always contains all of them.
const LISTED: usize = 200;

/// The system prompt of one step.
pub(super) fn system(
    pack: &Pack,
    principal: &Principal,
    toolbox: &Toolbox,
    most_tools: usize,
) -> String {
    let language = pack.language(principal.locale.as_deref());
    let default = pack.language(None);
    let mut prompt = String::new();
    for text in [
        language
            .system_prompt
            .as_ref()
            .or(default.system_prompt.as_ref()),
        pack.llm.agent_prompt.as_ref(),
    ] {
        if let Some(text) = text.filter(|text| !text.trim().is_empty()) {
            prompt.push_str(text.trim());
            prompt.push_str("\n\n");
        }
    }
    describe(&mut prompt, toolbox);
    if tool_search::is_needed(toolbox, most_tools) {
        let _ = write!(
            prompt,
            " Not all tools are in this request: find others with `{}` before you call them.",
            tool_search::TOOL
        );
    }
    prompt
}

/// What is so at the moment: the servers of the user whose tools are not known. It is told behind all else.
pub(super) fn state(toolbox: &Toolbox, down: impl Fn(&str) -> Option<DownCause>) -> Option<String> {
    let mut awaited = Vec::new();
    let mut broken = Vec::new();
    for server in toolbox.awaited() {
        match down(server) {
            Some(cause) => broken.push(format!("{server} ({})", cause.sentence())),
            None => awaited.push(server),
        }
    }
    let mut state = Vec::new();
    if !broken.is_empty() {
        state.push(format!(
            "These servers belong to you and cannot be used now: {}. If asked, say so.",
            broken.join(", ")
        ));
    }
    if !awaited.is_empty() {
        state.push(format!(
            "These servers belong to you, and which tools they have is not known yet: {}. If asked, say that they are \
             being connected.",
            awaited.join(", ")
        ));
    }
    (!state.is_empty()).then(|| format!("[Note of the service: {}]", state.join(" ")))
}

/// Puts into a conversation what was so when the run began, with its question, and behind all else what is so now if that
/// is something else.
pub(super) fn tell_state(history: &mut Vec<Turn>, first: Option<&str>, now: Option<&str>) {
    let mut turns = history.iter_mut().rev();
    let question = turns.find_map(|turn| match turn {
        Turn::User(text) => Some(text),
        _ => None,
    });
    if let (Some(question), Some(first)) = (question, first) {
        *question = format!("{question}\n\n{first}");
    }
    let Some(now) = now.filter(|now| Some(*now) != first) else {
        return;
    };
    match history.last_mut() {
        Some(Turn::User(text) | Turn::ToolResult { text, .. }) => {
            *text = format!("{text}\n\n{now}");
        }
        _ => history.push(Turn::User(now.to_owned())),
    }
}

/// The toolbox in words, so that the model can answer "What tools can I use?".
fn describe(prompt: &mut String, toolbox: &Toolbox) {
    if toolbox.is_empty() {
        if toolbox.awaited().next().is_none() {
            prompt.push_str("You have no tools for this user. If asked, say so.");
        }
        return;
    }
    prompt.push_str(
        "Tools of this user, by server. If the user asks what tools they can use, list exactly these, by server.\n",
    );
    let mut server = "";
    for (spec, named) in toolbox.iter().take(LISTED) {
        if spec.id.as_str() != server {
            server = spec.id.as_str();
            let _ = write!(prompt, "\n{server}:");
        }
        let approval = match decide(spec, toolbox.access(), &named.tool.name) {
            Decision::Approve(_) => " (needs approval)",
            _ => "",
        };
        let _ = write!(prompt, " {}{approval},", named.shown);
    }
    if prompt.ends_with(',') {
        prompt.pop();
    }
    if toolbox.len() > LISTED {
        let _ = write!(prompt, ", and {} more", toolbox.len() - LISTED);
    }
    prompt.push_str("\n\nNever claim to have done something that no tool result confirms.");
}
