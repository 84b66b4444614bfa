//! Asks for the arguments that the words of a skill's command do not say, with the form in which servers ask. The run of
//! the last answer makes the call, through the gate like any other call of a command.

use std::sync::Arc;

use uuid::Uuid;

use super::commands::{Answer, notice};
use crate::app::{
    App,
    servers::agents,
    tools::{
        elicitations::{self, target_of},
        skills::IncompleteCommand,
    },
};
use domain::{
    elicitation::{Elicitation, Request, State, Step, fault_notice},
    error::Result,
    message::{Part, ToolCall},
    run::ClaimedRun,
    skill,
    texts::{self, Key},
};

/// Says which words could not be used, and asks for the first argument that is missing.
pub async fn begin(
    app: &Arc<App>,
    run: &ClaimedRun,
    incomplete: IncompleteCommand,
) -> Result<Vec<Part>> {
    let IncompleteCommand { skill, reading } = incomplete;
    let pack = agents::pack(app, &run.principal, run.agent.as_str()).await?;
    let texts = texts::of(&pack, &run.principal);
    let command = skill.command();
    let mut parts = Vec::new();
    if reading.is_unclear {
        let usage = format!("{command} {}", reading.usage);
        let text = texts.render(Key::SkillUnclear, &[("usage", &usage)]);
        parts.push(notice("bad_command", text));
    }
    let names = reading.missing.iter().map(|field| field.name.as_str());
    let names = names.chain(reading.unaskable.iter().map(String::as_str));
    let names = names.collect::<Vec<_>>().join(", ");
    let can_ask = reading.unaskable.is_empty() && target_of(app, run, false).is_some();
    let request = Request::of_command(&command, reading.given, reading.missing);
    let Some(request) = request.filter(|_| can_ask) else {
        let values = [
            ("command", command.as_str()),
            ("names", &names),
            ("example", "{\"argument\": \"value\"}"),
        ];
        let text = texts.render(Key::SkillUsage, &values);
        parts.push(notice("bad_command", text));
        return Ok(parts);
    };
    for ((field, fault), said) in reading.faults.iter().zip(&reading.unread) {
        let step = Step::Field(&request.questions[0], field);
        let why = fault_notice(&texts, *fault, said, &step).plain();
        parts.push(notice("bad_answer", format!("{} – {why}", field.label())));
    }
    let elicitation = Elicitation {
        id: Uuid::now_v7(),
        conversation: run.conversation,
        user: run.principal.user.clone(),
        agent: run.agent.clone(),
        server: skill.server.clone(),
        tool: skill.tool().to_owned(),
        run: run.id,
        call_id: ToolCall::id_of_command(run.id),
        credential: String::new(),
        for_model: false,
        round: 0,
        state: State::Open,
        step: 0,
        request: Vec::new(),
        entered: None,
        fault: None,
        answer_run: None,
        live: false,
    };
    let asked = elicitations::ask_for_command(app, &run.principal, elicitation, &request).await?;
    parts.push(asked.unwrap_or_else(|| {
        let text = texts.render(Key::SkillAskBusy, &[("command", &command)]);
        notice("bad_command", text)
    }));
    Ok(parts)
}

/// The command with what was entered, or the notice that it was left off.
pub async fn finish(app: &App, run: &ClaimedRun, answered: &Elicitation) -> Result<Answer> {
    let pack = agents::pack(app, &run.principal, run.agent.as_str()).await?;
    let unsealed = elicitations::unseal(app, run.tenant, answered).await?;
    let command = unsealed.as_ref().and_then(|(request, entered)| {
        let (command, arguments) = request.command(entered)?;
        let (skill, _) = skill::find_in_text(&pack, command)?;
        let is_left_off = entered.dismissal.is_some();
        (!is_left_off).then(|| skill.call(ToolCall::id_of_command(run.id), arguments))
    });
    Ok(match command {
        Some(call) => Answer::Call {
            call,
            ambiguity: None,
        },
        None => {
            let text = texts::of(&pack, &run.principal).render(Key::SkillAskEnded, &[]);
            Answer::Parts(vec![notice("cancelled", text)])
        }
    })
}
