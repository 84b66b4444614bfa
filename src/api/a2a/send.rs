//! `SendMessage`: a call of a skill, or a turn of the agent. It waits for the end unless the request asks for the task at
//! once. A client that leaves can read the task later. A task whose user is asked to confirm a call takes the answer.

use std::collections::HashMap;

use ::a2a::{A2AError, Message, Part, PartContent, Role, SendMessageRequest, Task, TaskState};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use super::{A2aRequest, RequestError, invalid, task::read_task_id};
use crate::app::{
    self,
    runs::{
        ending::{self, wait},
        repeats::{self, EarlierRequest, EqualRequest, RefusedRun},
        starting::{RunInitiator, RunTarget, StartedRun, begin, load_started},
    },
    tools::{
        approvals::{self, InterruptAnswer, InterruptResponse},
        skills,
    },
};
use domain::{
    approval::Kind,
    attachment, clock,
    command::{ConsentCommand, ConsentVerb},
    error::{Error, Missing},
    ids::ConversationId,
    json::Members,
    request_key::{KeySource, KeyedRun, RequestKey},
    skill,
};

/// The member of `metadata` that names the skill of a message.
const SKILL: &str = "skillId";

/// The text and the data of a message.
struct MessageContent {
    text: String,
    data: Map<String, Value>,
}

impl A2aRequest<'_> {
    pub(super) async fn send(self, request: SendMessageRequest) -> Result<Task, RequestError> {
        let SendMessageRequest {
            message,
            configuration,
            metadata,
            ..
        } = request;
        let configuration = configuration.as_ref();
        if configuration.is_some_and(|wanted| wanted.task_push_notification_config.is_some()) {
            return Err(A2AError::push_notification_not_supported().into());
        }
        if message.role != Role::User {
            return Err(invalid("message.role", "must be the user's"));
        }
        if let Some(task) = &message.task_id {
            return self.answer_task(task, &message).await;
        }
        let context = message
            .context_id
            .as_deref()
            .map(read_context)
            .transpose()?;
        let skill = skill_of(metadata.as_ref())?.or(skill_of(message.metadata.as_ref())?);
        let content = MessageContent::from_message(&message)?;
        let waits = !configuration
            .and_then(|wanted| wanted.return_immediately)
            .unwrap_or(false);
        let _open = waits
            .then(|| self.state.limits.open_stream(self.principal))
            .transpose()?;
        let begun = self
            .begin(&message, skill.as_deref(), content, context)
            .await?;
        if waits {
            self.permit.release();
            wait(&self.state.app, self.principal, &begun).await?;
        }
        self.task_of(begun.run).await
    }

    /// Begins the run that the message asks for, or finds it if the message was sent before.
    async fn begin(
        &self,
        message: &Message,
        skill: Option<&str>,
        content: MessageContent,
        context: Option<ConversationId>,
    ) -> Result<StartedRun, RequestError> {
        let app = &self.state.app;
        let sent = serde_json::to_vec(&(self.agent, skill, message)).map_err(Error::internal)?;
        let digest: [u8; 32] = Sha256::digest(&sent).into();
        let mut key = RequestKey {
            key: format!("a2a:{}", hex::encode(digest)),
            digest,
            // A message that is sent again has the same id, so it counts as an attempt.
            origin: KeySource::Attempt(1),
            sees_stop: false,
            names_message: true,
            arrived: clock::instant(),
            replaced: None,
            server: None,
        };
        match repeats::settle_equal(app, self.principal, &key).await? {
            EqualRequest::Replaced(run) => key.replaced = run,
            EqualRequest::Refused(RefusedRun {
                conversation, run, ..
            }) => {
                let failed = KeyedRun {
                    conversation,
                    run: Some(run),
                    message: None,
                    repeats: 0,
                };
                return Ok(load_started(app, self.principal, failed).await?);
            }
        }
        if let Some(earlier) = self.join_earlier(&key).await? {
            return Ok(earlier);
        }
        let begun = match skill {
            Some(skill) => self.begin_skill(skill, content, context, key.clone()).await,
            None => self.begin_turn(content, context, key.clone()).await,
        };
        match begun {
            Ok(begun) => Ok(begun),
            // An equal message came first.
            Err(error) => self.join_earlier(&key).await?.ok_or(error),
        }
    }

    async fn join_earlier(&self, key: &RequestKey) -> Result<Option<StartedRun>, RequestError> {
        let app = &self.state.app;
        match repeats::join(app, self.principal, key).await? {
            Some(EarlierRequest::Same(earlier)) => {
                Ok(Some(load_started(app, self.principal, earlier).await?))
            }
            _ => Ok(None),
        }
    }

    /// Begins one call of a skill's tool.
    async fn begin_skill(
        &self,
        named: &str,
        content: MessageContent,
        conversation: Option<ConversationId>,
        key: RequestKey,
    ) -> Result<StartedRun, RequestError> {
        let unknown = || {
            invalid(
                "metadata.skillId",
                &format!("there is no skill {named:?} for you; see the agent's card"),
            )
        };
        let (agent, skill) = match self.agent {
            Some(agent) => (agent, named),
            None => named.split_once('/').ok_or_else(unknown)?,
        };
        let given = Members::from(&content.data);
        let arguments =
            skill::with_input(given, &content.text).map_err(|why| invalid("input", &why))?;
        let wanted = skills::SkillRunSpec {
            agent,
            skill,
            arguments,
            conversation,
            key: Some(&key),
        };
        skills::begin(&self.state.app, self.principal, &wanted)
            .await
            .map_err(|error| match error {
                Error::NotFound(Missing::Conversation(_) | Missing::ConversationWithAgent(_)) => {
                    no_context()
                }
                Error::NotFound(_) | Error::Forbidden(_) => unknown(),
                other => other.into(),
            })
    }

    /// Begins a turn of the agent's model. The data of the message are the parameters that `paramsSchema` asks for.
    async fn begin_turn(
        &self,
        content: MessageContent,
        context: Option<ConversationId>,
        key: RequestKey,
    ) -> Result<StartedRun, RequestError> {
        let app = &self.state.app;
        let Some(agent) = self.agent else {
            return Err(invalid(
                "metadata.skillId",
                "name a skill here, as `agent/skill`; or talk to /a2a/AGENT",
            ));
        };
        if app::tools::skills::cards::get(app, Some(self.principal), agent)
            .await
            .is_ok_and(|card| !card.talks)
        {
            return Err(invalid(
                "metadata.skillId",
                "this agent has no model; name one of the skills on its card",
            ));
        }
        let target = match context {
            Some(session) => {
                let found = app::chat::conversations::get(app, self.principal, session).await;
                if found.is_ok_and(|conversation| conversation.agent.as_str() == agent) {
                    RunTarget::Resume { session }
                } else {
                    return Err(no_context());
                }
            }
            None => RunTarget::Start {
                agent: agent.to_owned(),
            },
        };
        let wanted = app::runs::starting::RunSpec {
            target,
            prompt: content.text,
            params: Members::from(&content.data),
            scope: Members::default(),
            callback: None,
            parent_session: None,
            key: Some(key),
        };
        Ok(begin(app, RunInitiator::Program(self.principal), wanted).await?)
    }

    /// Takes the answer to a task that asks its user to confirm a call: `/confirm CODE` or `/decline CODE`. A task takes no
    /// other message. A further one begins a task of its own in the same context.
    async fn answer_task(self, id: &str, message: &Message) -> Result<Task, RequestError> {
        let run = read_task_id(id)?;
        let task = self.task_of(run).await?;
        let context = message.context_id.as_deref();
        if context.is_some_and(|context| context != task.context_id) {
            return Err(invalid("message.contextId", "is not the one of that task"));
        }
        let MessageContent { text, data } = MessageContent::from_message(message)?;
        // Data beside a command are more than the command.
        let command = ConsentCommand::read(&text).filter(|_| data.is_empty());
        let (answer, code) = match command {
            Some(ConsentCommand::One {
                verb: ConsentVerb::Confirm,
                code,
                ..
            }) => (InterruptAnswer::Confirm, code),
            Some(ConsentCommand::One {
                verb: ConsentVerb::Decline,
                code,
                ..
            }) => (InterruptAnswer::Decline, code),
            _ if task.status.state == TaskState::InputRequired => return Ok(ask_again(task)),
            _ => return Err(no_second_message()),
        };
        let (app, principal) = (&self.state.app, self.principal);
        let requests = ending::list_request_outcomes(app, principal, run).await?;
        let asked = requests.into_iter().map(|request| request.approval);
        let asked = asked.filter(|approval| approval.kind == Kind::Confirmation);
        let Some(asked) = asked.into_iter().find(|asked| asked.code == code) else {
            return match task.status.state {
                TaskState::InputRequired => Ok(ask_again(task)),
                _ => Err(no_second_message()),
            };
        };
        // A task shows its request, whose arguments never change, and its code is none of another task.
        let response = InterruptResponse {
            interrupt: format!("{}.{}", asked.id, asked.args_sha256),
            answer,
        };
        let conversation = asked.conversation_id;
        approvals::answer_interrupts(app, principal, conversation, &[response]).await?;
        approvals::await_end(app, principal, asked.id).await?;
        self.task_of(run).await
    }
}

/// The task as it waits for its user, with the reason why a message has decided nothing.
fn ask_again(mut task: Task) -> Task {
    let why = "Nothing is decided: this task waits for its user. Send /confirm or /decline and the code above, and \
               nothing else.";
    if let Some(asked) = &mut task.status.message {
        asked.parts.push(Part::text(why));
    }
    task
}

fn no_second_message() -> RequestError {
    let why = "a task takes no further messages; send one with its contextId and without taskId";
    A2AError::unsupported_operation(why).into()
}

fn read_context(text: &str) -> Result<ConversationId, RequestError> {
    text.parse().map_err(|_| no_context())
}

fn no_context() -> RequestError {
    invalid(
        "message.contextId",
        "there is no such context of yours here; leave it out to begin one",
    )
}

fn skill_of(metadata: Option<&HashMap<String, Value>>) -> Result<Option<String>, RequestError> {
    match metadata.and_then(|metadata| metadata.get(SKILL)) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(id)) => Ok(Some(id.clone())),
        Some(_) => Err(invalid("metadata.skillId", "must be text")),
    }
}

impl MessageContent {
    /// Reads text and data. A text file becomes text, under its name; other files are not accepted.
    fn from_message(message: &Message) -> Result<Self, RequestError> {
        let (mut texts, mut data) = (Vec::<String>::new(), Map::new());
        for part in &message.parts {
            match &part.content {
                PartContent::Text(text) => texts.push(text.clone()),
                PartContent::Data(Value::Object(map)) => data.extend(map.clone()),
                PartContent::Data(_) => {
                    return Err(invalid("message.parts.data", "must be an object"));
                }
                PartContent::Raw(data) => {
                    let name = part.filename.as_deref().unwrap_or_default();
                    let media_type = attachment::media_type(name, data);
                    let text = std::str::from_utf8(data).ok();
                    let (Some(media_type), Some(text)) = (media_type, text) else {
                        return Err(A2AError::content_type_not_supported().into());
                    };
                    let name = attachment::clean_name(name, media_type);
                    texts.push(format!("[file: {name}]\n{text}"));
                }
                PartContent::Url(_) => {
                    return Err(A2AError::content_type_not_supported().into());
                }
            }
        }
        if message.parts.is_empty() {
            return Err(invalid("message.parts", "must not be empty"));
        }
        Ok(Self {
            text: texts.join("\n"),
            data,
        })
    }
}
