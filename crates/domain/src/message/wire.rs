//! How a part of a message is read from JSON, also in forms that older versions wrote.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer, de::Error as _};
use serde_json::value::RawValue;

use super::{Choice, Part, TextSource};

/// Written by hand, because a tagged enum parses everything before it knows the tag. A server's raw result
/// must not be parsed: it may hold numbers and text that Rust cannot represent.
impl<'de> Deserialize<'de> for Part {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Tag<'a> {
            #[serde(borrow, rename = "type")]
            kind: Cow<'a, str>,
        }
        #[derive(Deserialize)]
        struct Said {
            #[serde(default)]
            code: String,
            text: String,
        }
        #[derive(Deserialize)]
        struct Written {
            text: String,
            #[serde(default)]
            source: Option<Box<TextSource>>,
        }
        #[derive(Deserialize)]
        struct Offered {
            text: String,
            choices: Vec<Choice>,
        }
        fn read<'a, T: Deserialize<'a>, E: serde::de::Error>(part: &'a RawValue) -> Result<T, E> {
            serde_json::from_str(part.get()).map_err(E::custom)
        }
        let part = Box::<RawValue>::deserialize(deserializer)?;
        match read::<Tag, D::Error>(&part)?.kind.as_ref() {
            "text" => read(&part).map(|Written { text, source }| Self::Text { text, source }),
            "notice" => read(&part).map(|Said { code, text }| Self::Notice { code, text }),
            "choices" => {
                read(&part).map(|Offered { text, choices }| Self::Choices { text, choices })
            }
            "prompt" => read(&part).map(Self::Prompt),
            "attachment" => read(&part).map(Self::Attachment),
            "tool_call" => read(&part).map(Self::ToolCall),
            "tool_result" => read(&part).map(Self::ToolResult),
            "approval" => read(&part).map(Self::Approval),
            "call_outcome" => read(&part).map(Self::CallOutcome),
            "server_prompt" => read(&part).map(Self::ServerPrompt),
            "agent_callback" => read(&part).map(Self::AgentCallback),
            other => Err(D::Error::custom(format!("unknown part {other:?}"))),
        }
    }
}
