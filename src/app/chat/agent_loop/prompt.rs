//! What the model is told of its task: the pack's prompt in the user's language, the toolbox by server, and
//! the tools themselves.

use std::fmt::Write as _;

use crate::{
    app::tools::toolset::Toolbox,
    domain::{
        pack::Pack,
        policy::{Decision, decide},
        principal::Principal,
    },
    llm::ToolDef,
};

/// More names than this are not listed in the prompt; the tools themselves are always in the request.
const LISTED: usize = 200;

/// The system prompt of one step.
pub(super) fn system(pack: &Pack, principal: &Principal, toolbox: &Toolbox) -> String {
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
    prompt
}

/// The toolbox in words, so that the model can answer "What tools can I use?".
fn describe(prompt: &mut String, toolbox: &Toolbox) {
    let awaited: Vec<_> = toolbox.awaited().collect();
    if !awaited.is_empty() {
        let _ = write!(
            prompt,
            "These servers belong to you, and which tools they have is not known yet: {}. If asked, say that they are \
             being connected.\n\n",
            awaited.join(", ")
        );
    }
    if toolbox.is_empty() {
        if awaited.is_empty() {
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
        let approval = match decide(spec, toolbox.standing(), &named.tool.name) {
            Decision::Approve(_) => " (needs approval)",
            _ => "",
        };
        let _ = write!(prompt, " {}{approval},", named.tool.name);
    }
    if prompt.ends_with(',') {
        prompt.pop();
    }
    if toolbox.len() > LISTED {
        let _ = write!(prompt, ", and {} more", toolbox.len() - LISTED);
    }
    prompt.push_str("\n\nNever claim to have done something that no tool result confirms.");
}

/// The tools of the request.
pub(super) fn definitions(toolbox: &Toolbox) -> Vec<ToolDef> {
    let define = |named: &crate::app::tools::toolset::NamedTool| ToolDef {
        name: named.name.clone(),
        description: named.tool.description.clone(),
        schema: named.tool.input_schema.clone().into(),
    };
    toolbox.iter().map(|(_, named)| define(named)).collect()
}
