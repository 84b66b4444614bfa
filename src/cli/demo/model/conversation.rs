//! A request of chat completions as the demo model reads it: the tools on offer, and the turns of the conversation.

use serde_json::Value;

/// Why a request is refused, and which field of it is wrong.
pub(super) struct Refusal {
    pub(super) reason: String,
    pub(super) param: String,
}

impl Refusal {
    pub(super) fn new(reason: impl Into<String>, param: impl Into<String>) -> Self {
        Self {
            reason: reason.into(),
            param: param.into(),
        }
    }
}

pub(super) struct Conversation {
    pub(super) system: String,
    pub(super) tools: Vec<Tool>,
    /// Oldest first; the last one is to be answered.
    pub(super) turns: Vec<Turn>,
    /// Whether the answer is to be JSON, and its schema if there is one.
    pub(super) format: Option<Value>,
}

/// A tool on offer.
pub(super) struct Tool {
    /// As it is called.
    pub(super) name: String,
    /// What stands before `__` in the name, empty without it.
    pub(super) server: String,
    /// What stands behind it.
    pub(super) title: String,
    pub(super) description: String,
    pub(super) schema: Value,
}

/// What somebody said, and what the model did then.
#[derive(Default)]
pub(super) struct Turn {
    pub(super) said: String,
    /// What the program told with it of calls that were made earlier.
    pub(super) outcomes: Vec<Value>,
    pub(super) has_file: bool,
    pub(super) calls: Vec<MadeCall>,
    /// Everything that the model said in this turn.
    pub(super) answer: String,
}

pub(super) struct MadeCall {
    id: String,
    pub(super) name: String,
    pub(super) result: Option<String>,
}

/// Begins what the service adds to a message for the model.
const SERVICE_NOTE: &str = "[Note of the service:";
/// Begins what the program tells in the place of the user.
const FROM_PROGRAM: &str = "[From the program, not from the user";
const CALLBACK_END: &str = "</agent-callback>";
/// Begin lines that are not the user's words.
const FILES: [&str; 2] = ["[image:", "[file:"];
const CUT: &str = "(the beginning of the conversation is left out)";

impl Conversation {
    pub(super) fn read(request: &Value) -> Result<Self, Refusal> {
        let messages = request["messages"]
            .as_array()
            .filter(|messages| !messages.is_empty())
            .ok_or_else(|| Refusal::new("messages must be a list with a message", "messages"))?;
        if request["n"].as_u64().is_some_and(|count| count != 1) {
            return Err(Refusal::new("the demo model gives one answer", "n"));
        }
        let mut conversation = Self {
            system: String::new(),
            tools: tools(request),
            turns: vec![Turn::default()],
            format: Some(&request["response_format"])
                .filter(|format| format.is_object() && format["type"] != "text")
                .cloned(),
        };
        for (at, message) in messages.iter().enumerate() {
            conversation.add(message, at)?;
        }
        Ok(conversation)
    }

    fn add(&mut self, message: &Value, at: usize) -> Result<(), Refusal> {
        let text = text_of(&message["content"]);
        let Some(turn) = self.turns.last_mut() else {
            return Ok(());
        };
        match message["role"].as_str() {
            Some("system" | "developer") => self.system = format!("{}{text}\n", self.system),
            Some("user") => self.turns.extend(user_turn(&text)),
            Some("assistant") => {
                turn.answer = format!("{}{text}\n", turn.answer);
                let calls = message["tool_calls"].as_array().into_iter().flatten();
                turn.calls.extend(calls.map(|call| {
                    MadeCall {
                        id: call["id"].as_str().unwrap_or_default().to_owned(),
                        name: call["function"]["name"]
                            .as_str()
                            .unwrap_or_default()
                            .to_owned(),
                        result: None,
                    }
                }));
            }
            Some("tool" | "function") => {
                let id = message["tool_call_id"].as_str().unwrap_or_default();
                let open = |call: &&mut MadeCall| call.id == id && call.result.is_none();
                if let Some(call) = turn.calls.iter_mut().find(open) {
                    let text = text.split(SERVICE_NOTE).next().unwrap_or_default();
                    call.result = Some(text.trim().to_owned());
                }
            }
            _ => {
                return Err(Refusal::new(
                    "role must be one of system, developer, user, assistant, tool, function",
                    format!("messages[{at}].role"),
                ));
            }
        }
        Ok(())
    }

    /// The turn that is to be answered.
    pub(super) fn last(&self) -> &Turn {
        &self.turns[self.turns.len() - 1]
    }
}

fn tools(request: &Value) -> Vec<Tool> {
    if request["tool_choice"] == "none" {
        return Vec::new();
    }
    let offered = request["tools"].as_array().into_iter().flatten();
    let tools = offered.filter_map(|tool| {
        let function = &tool["function"];
        let name = function["name"].as_str()?;
        let (server, title) = name.split_once("__").unwrap_or(("", name));
        Some(Tool {
            name: name.to_owned(),
            server: server.to_owned(),
            title: title.to_owned(),
            description: function["description"]
                .as_str()
                .unwrap_or_default()
                .to_owned(),
            schema: function["parameters"].clone(),
        })
    });
    tools.collect()
}

/// The texts of a content, which is a text or a list of parts.
fn text_of(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => {
            let texts = parts.iter().filter_map(|part| part["text"].as_str());
            texts.collect::<Vec<_>>().join("\n")
        }
        _ => String::new(),
    }
}

/// The turn that a message of the user begins. A message without words, such as images of a tool, begins none.
fn user_turn(text: &str) -> Option<Turn> {
    let mut turn = Turn::default();
    let mut said = Vec::new();
    let mut lines = text.split(SERVICE_NOTE).next().unwrap_or_default().lines();
    while let Some(line) = lines.next() {
        if line.starts_with(FROM_PROGRAM) {
            turn.outcomes.extend(outcome(&mut lines));
        } else if FILES.iter().any(|begin| line.starts_with(begin)) {
            turn.has_file = true;
        } else if line != CUT {
            said.push(line);
        }
    }
    said.join("\n").trim().clone_into(&mut turn.said);
    let is_empty = turn.said.is_empty() && turn.outcomes.is_empty() && !turn.has_file;
    (!is_empty).then_some(turn)
}

/// What stands behind the line that says that it is from the program: JSON and perhaps advice, or an element.
fn outcome<'a>(lines: &mut (impl Iterator<Item = &'a str> + Clone)) -> Option<Value> {
    let first = lines.next()?;
    if first.starts_with('<') {
        let text: Vec<&str> = lines.take_while(|line| *line != CALLBACK_END).collect();
        return Some(Value::String(text.join("\n")));
    }
    let mut ahead = lines.clone();
    if ahead.next().is_some_and(|line| line.starts_with('[')) {
        lines.next();
    }
    serde_json::from_str(first).ok()
}
