//! What providers refuse: one table for each, in the words that they use, with the source of each rule. Stubs of them
//! refuse with these words ([`super::StrictProvider`]), and the scripted model holds every request of the suite to those
//! of the endpoints that speak its protocol.

use serde_json::Value;

/// Who answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Openai,
    /// OpenAI's protocol, with grammars made from schemas and a template that wants roles to alternate.
    LlamaCpp,
    /// OpenAI's protocol again.
    Mistral,
    Anthropic,
    Gemini,
    Ollama,
}

impl Kind {
    pub const ALL: [Self; 6] = [
        Self::Openai,
        Self::LlamaCpp,
        Self::Mistral,
        Self::Anthropic,
        Self::Gemini,
        Self::Ollama,
    ];
}

pub struct Rule {
    /// Where the provider says so.
    pub source: &'static str,
    /// What the provider says of a request that breaks the rule.
    refuse: fn(&Value) -> Option<String>,
}

const fn rule(source: &'static str, refuse: fn(&Value) -> Option<String>) -> Rule {
    Rule { source, refuse }
}

const OPENAI: &[Rule] = &[
    rule(
        "API reference, chat, `tools`: a max of 128 functions",
        |body| {
            let count = tools(body).len();
            (count > 128).then(|| format!("Invalid 'tools': array too long. Expected an array with maximum length 128, but got an array with length {count} instead."))
        },
    ),
    rule("API reference, chat, `tools.function.name`", |body| {
        each_tool(body, |at, tool| {
            let is_legal = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
            (!is_name(&tool.name, 64, is_legal)).then(|| format!("Invalid 'tools[{at}].function.name': string does not match pattern. Expected a string that matches the pattern '^[a-zA-Z0-9_-]+$'."))
        })
    }),
    rule("openai-python, `ChatCompletionMessageParam`", |body| {
        let is_bad = |message: &Value| {
            message
                .get("tool_calls")
                .is_some_and(|calls| !calls.is_array())
        };
        let at = list(&body["messages"]).iter().position(is_bad)?;
        Some(format!(
            "Invalid type for 'messages[{at}].tool_calls': expected an array of objects, but got null instead."
        ))
    }),
    rule("OmniRoute#13552: the error of the API", |body| {
        each_tool(body, |_, tool| {
            let at_top = ["oneOf", "anyOf", "allOf", "enum", "not"];
            let bad = tool.schema["type"] != "object"
                || at_top.iter().any(|key| !tool.schema[*key].is_null());
            bad.then(|| format!("Invalid schema for function '{}': schema must have type 'object' and not have 'oneOf'/'anyOf'/'allOf'/'enum'/'not' at the top level.", tool.name))
        })
    }),
    rule(
        "mcphost#35, mcp-digitalocean#265, mcp-openapi-proxy#16: the error of the API",
        |body| {
            each_schema(body, |tool, schema, place| {
                (has_type(schema, "array") && !schema["items"].is_object()).then(|| format!("Invalid schema for function '{}': In context={place}, array schema missing items.", tool.name))
            })
        },
    ),
    rule(
        "Structured Outputs: `$ref` stands alone and leads into the schema",
        |body| {
            each_schema(body, |tool, schema, place| {
                let reference = schema["$ref"].as_str()?;
                if schema.as_object()?.len() > 1 {
                    return Some(format!(
                        "Invalid schema for function '{}': In context={place}, $ref cannot have keywords.",
                        tool.name
                    ));
                }
                let target = tool.schema.pointer(reference.strip_prefix('#')?);
                target.is_none().then(|| format!("Invalid schema for function '{}': In context={place}, reference can only point to definitions defined at the top level of the schema.", tool.name))
            })
        },
    ),
    rule(
        "Structured Outputs, supported schemas: up to 10 levels of nesting, 5000 properties",
        |body| {
            each_tool(body, |_, tool| {
                (levels(&tool.schema) > 10).then(|| format!("Invalid schema for function '{}': 'parameters' exceeds the maximum nesting depth.", tool.name))
            })
        },
    ),
    rule(
        "Dokploy/mcp#45, vercel/ai#21037: the error of the API, without the name of the function",
        |body| {
            each_schema(body, |_, schema, place| {
                let pattern = schema["pattern"].as_str()?;
                ["(?=", "(?!", "(?<"].iter().any(|look| pattern.contains(look)).then(|| format!("Invalid JSON schema: regex lookaround is not supported. Found at {place}.pattern."))
            })
        },
    ),
    rule("camel#2215, dify#28987: the error of the API", |body| {
        each_call_id(body, |id| {
            (id.len() > 40).then(|| format!("Invalid 'messages[1].tool_calls[0].id': string too long. Expected a string with maximum length 40, but got a string with length {} instead.", id.len()))
        })
    }),
];

/// `common/json-schema-to-grammar.cpp` of llama.cpp, and the templates of the models that it serves.
const LLAMA_CPP: &[Rule] = &[
    rule(
        "SchemaConverter::visit, its last branch; BrowserOS#255",
        |body| {
            each_schema(body, |_, schema, _| {
                let known = [
                    "type",
                    "$ref",
                    "anyOf",
                    "oneOf",
                    "allOf",
                    "const",
                    "enum",
                    "properties",
                    "items",
                    "prefixItems",
                ];
                let is_known = known.iter().any(|key| schema.get(*key).is_some());
                (!is_known).then(|| {
                    format!("JSON schema conversion failed:\nUnrecognized schema: {schema}")
                })
            })
        },
    ),
    rule(
        "SchemaConverter::_visit_pattern; llama.cpp#26930, hermes-agent#18530 (escapes)",
        |body| {
            each_schema(body, |_, schema, _| {
                let pattern = schema["pattern"].as_str()?;
                let bad =
                    !pattern.starts_with('^') || !pattern.ends_with('$') || pattern.contains('\\');
                bad.then(|| {
                    "JSON schema conversion failed:\nPattern must start with '^' and end with '$'"
                        .to_owned()
                })
            })
        },
    ),
    rule("llama-grammar.cpp, MAX_REPETITION_THRESHOLD", |body| {
        each_schema(body, |_, schema, _| {
            let limits = ["minLength", "maxLength", "minItems", "maxItems"];
            limits.iter().any(|limit| schema[*limit].as_u64().is_some_and(|most| most > 2000)).then(|| "failed to parse grammar: number of repetitions exceeds sane defaults, please reduce the number of repetitions".to_owned())
        })
    }),
    rule(
        "templates of Gemma and Mistral 7B v0.3: raise_exception",
        |body| {
            let roles: Vec<&str> = messages(body)
                .iter()
                .filter_map(|message| message["role"].as_str())
                .collect();
            let repeated = roles
                .windows(2)
                .find(|pair| pair[0] == pair[1] && pair[0] != "tool");
            repeated.map(|pair| format!("Conversation roles must alternate user/assistant/user/assistant/... ({0} after {0})", pair[0]))
        },
    ),
];

const MISTRAL: &[Rule] = &[
    rule(
        "mistral-vibe#578, crush#279: the error of the API",
        |body| {
            let roles: Vec<&str> = messages(body)
                .iter()
                .filter_map(|message| message["role"].as_str())
                .collect();
            roles
                .windows(2)
                .any(|pair| pair == ["tool", "user"])
                .then(|| "Unexpected role 'user' after role 'tool'".to_owned())
        },
    ),
    rule(
        "langchain#24668, opencode#1680: the error of the API",
        |body| {
            each_call_id(body, |id| {
                (!is_name(id, 9, |c| c.is_ascii_alphanumeric()) || id.len() != 9).then(|| {
                    format!("Tool call id was {id} but must be a-z, A-Z, 0-9, with a length of 9.")
                })
            })
        },
    ),
    rule("API reference, chat: the last message", |body| {
        let last = messages(body).last()?["role"].as_str()?;
        (!["user", "tool"].contains(&last)).then(|| format!("Expected last role User or Tool (or Assistant with prefix True) for serving but got {last}"))
    }),
];

const ANTHROPIC: &[Rule] = &[
    rule("API reference, messages, `tools.name`", |body| {
        each_tool(body, |at, tool| {
            let is_legal = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
            (!is_name(&tool.name, 128, is_legal)).then(|| {
                format!(
                    "tools.{at}.custom.name: String should match pattern '^[a-zA-Z0-9_-]{{1,128}}$'"
                )
            })
        })
    }),
    rule(
        "claude-code#34771, #79418, twilio-labs/mcp#42: the error of the API",
        |body| {
            each_tool(body, |at, tool| {
                let is_legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
                let names = tool.schema["properties"].as_object()?.keys();
                let bad = names.filter(|name| !is_name(name, 64, is_legal)).count() > 0;
                bad.then(|| format!("tools.{at}.custom.input_schema.properties: Property keys should match pattern '^[a-zA-Z0-9_.-]{{1,64}}$'"))
            })
        },
    ),
    rule(
        "OmniRoute#13552, claude-code#95504: the error of the API",
        |body| {
            each_tool(body, |at, tool| {
                let at_top = ["oneOf", "anyOf", "allOf"];
                at_top.iter().any(|key| !tool.schema[*key].is_null()).then(|| format!("tools.{at}.custom.input_schema: input_schema does not support oneOf, allOf, or anyOf at the top level"))
            })
        },
    ),
    rule("claude-code#63673, #86665: the error of the API", |body| {
        each_tool(body, |at, tool| {
            let is_valid = jsonschema::draft202012::meta::is_valid(&tool.schema)
                && tool.schema["type"] == "object";
            (!is_valid).then(|| format!("tools.{at}.custom.input_schema: JSON schema is invalid. It must match JSON Schema draft 2020-12 (https://json-schema.org/draft/2020-12)."))
        })
    }),
    rule("Prompt caching, limitations: 4 breakpoints", |body| {
        let marks = count_keys(body, "cache_control");
        (marks > 4).then(|| {
            format!("A maximum of 4 blocks with cache_control may be provided. Found {marks}.")
        })
    }),
    rule(
        "API reference, messages: `max_tokens` is required",
        |body| {
            body["max_tokens"]
                .is_null()
                .then(|| "max_tokens: Field required".to_owned())
        },
    ),
    rule(
        "API reference, messages: the first message is the user's, then roles alternate",
        |body| {
            let roles: Vec<&str> = messages(body)
                .iter()
                .filter_map(|message| message["role"].as_str())
                .collect();
            if roles.first() != Some(&"user") {
                return Some("messages: first message must use the \"user\" role".to_owned());
            }
            roles.windows(2).any(|pair| pair[0] == pair[1]).then(|| {
                "messages: roles must alternate between \"user\" and \"assistant\"".to_owned()
            })
        },
    ),
    rule(
        "claude-code#23440, LibreChat-AI/agents#124: the error of the API",
        |body| {
            let blocks = messages(body)
                .iter()
                .flat_map(|message| list(&message["content"]));
            let mut texts = blocks.filter(|block| block["type"] == "text");
            texts
                .any(|block| {
                    block["text"]
                        .as_str()
                        .is_none_or(|text| text.trim().is_empty())
                })
                .then(|| {
                    "messages: text content blocks must contain non-whitespace text".to_owned()
                })
        },
    ),
    rule(
        "Tool use, handle tool calls: results come first and right after",
        |body| {
            let messages = messages(body);
            for (at, message) in messages.iter().enumerate() {
                let calls: Vec<&Value> = list(&message["content"])
                    .iter()
                    .filter(|block| block["type"] == "tool_use")
                    .map(|block| &block["id"])
                    .collect();
                let answer = messages
                    .get(at + 1)
                    .map(|next| list(&next["content"]))
                    .unwrap_or_default();
                let results: Vec<&Value> = answer
                    .iter()
                    .take_while(|block| block["type"] == "tool_result")
                    .map(|block| &block["tool_use_id"])
                    .collect();
                if !calls.iter().all(|call| results.contains(call)) {
                    return Some(format!(
                        "messages.{at}: `tool_use` ids were found without `tool_result` blocks immediately after: {calls:?}"
                    ));
                }
            }
            None
        },
    ),
    rule("API reference, messages, `tool_use.id`", |body| {
        let blocks = messages(body)
            .iter()
            .flat_map(|message| list(&message["content"]));
        let ids = blocks.filter_map(|block| block["id"].as_str());
        let is_legal = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        ids.filter(|id| !is_name(id, 1000, is_legal))
            .map(|_| {
                "messages.1.content.0.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'"
                    .to_owned()
            })
            .next()
    }),
];

/// `FunctionDeclaration`, `Schema` and `Content` of the Gemini API.
const GEMINI: &[Rule] = &[
    rule(
        "FunctionDeclaration.name: begins with a letter or `_`, at most 64 of a-z, A-Z, 0-9, `_`, `.`, `:`, `-`",
        |body| {
            each_tool(body, |at, tool| {
                let is_legal = |c: char| c.is_ascii_alphanumeric() || "_.:-".contains(c);
                let begins = tool
                    .name
                    .starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
                (!begins || !is_name(&tool.name, 64, is_legal)).then(|| format!("GenerateContentRequest.tools[0].function_declarations[{at}].name: Invalid function name. Must start with a letter or an underscore."))
            })
        },
    ),
    rule("FunctionDeclaration.description: required", |body| {
        each_tool(body, |at, tool| {
            tool.description.is_empty().then(|| format!("GenerateContentRequest.tools[0].function_declarations[{at}].description: must not be empty"))
        })
    }),
    rule(
        "FunctionDeclaration.parameters (Vertex AI): names of parameters",
        |body| {
            each_schema(body, |tool, schema, place| {
                let is_legal = |c: char| c.is_ascii_alphanumeric() || c == '_';
                let mut names = schema["properties"].as_object()?.keys();
                let bad = names.find(|name| {
                    !is_name(name, 64, is_legal) || name.starts_with(|c: char| c.is_ascii_digit())
                })?;
                Some(format!(
                    "Invalid schema for function '{}': {place}: the property {bad:?} must start with a letter or an underscore",
                    tool.name
                ))
            })
        },
    ),
    rule(
        "GenerationConfig.responseJsonSchema: the keywords that are supported",
        |body| {
            const KNOWN: [&str; 21] = [
                "$id",
                "$defs",
                "$ref",
                "$anchor",
                "type",
                "format",
                "title",
                "description",
                "enum",
                "items",
                "prefixItems",
                "minItems",
                "maxItems",
                "minimum",
                "maximum",
                "anyOf",
                "oneOf",
                "properties",
                "additionalProperties",
                "required",
                "propertyOrdering",
            ];
            each_schema(body, |tool, schema, place| {
                let unknown = schema
                    .as_object()?
                    .keys()
                    .find(|key| !KNOWN.contains(&key.as_str()))?;
                Some(format!(
                    "Invalid schema for function '{}': {place}: Unknown name \"{unknown}\": Cannot find field.",
                    tool.name
                ))
            })
        },
    ),
    rule(
        "GenerationConfig.responseJsonSchema: `$ref` stands alone, cycles only where nothing is required",
        |body| {
            each_schema(body, |tool, schema, place| {
                let others = schema.as_object()?.keys().any(|key| !key.starts_with('$'));
                (!schema["$ref"].is_null() && others).then(|| {
                    format!(
                        "Invalid schema for function '{}': {place}: reference beside other fields",
                        tool.name
                    )
                })
            })
        },
    ),
    rule(
        "GenerationConfig.responseJsonSchema: `enum` for strings and numbers",
        |body| {
            each_schema(body, |tool, schema, place| {
                let values = schema["enum"].as_array()?;
                let plain =
                    values.iter().all(Value::is_string) || values.iter().all(Value::is_number);
                (!plain || values.is_empty()).then(|| format!("Invalid schema for function '{}': {place}: enum: only allowed for STRING type", tool.name))
            })
        },
    ),
    rule("gemini-desktop#7: \"items: missing field\"", |body| {
        each_schema(body, |tool, schema, place| {
            (has_type(schema, "array") && !schema["items"].is_object()).then(|| {
                format!(
                    "Invalid schema for function '{}': {place}.items: missing field.",
                    tool.name
                )
            })
        })
    }),
    rule(
        "AIStudioToAPI#154: \"required[0]: property is not defined\"",
        |body| {
            each_schema(body, |tool, schema, place| {
                let mut names = schema["required"]
                    .as_array()?
                    .iter()
                    .filter_map(Value::as_str);
                let bad = names.find(|name| schema["properties"][*name].is_null())?;
                Some(format!(
                    "Invalid schema for function '{}': {place}.required: property is not defined: {bad}",
                    tool.name
                ))
            })
        },
    ),
    rule("gemini-cli#3178: the error of the API", |body| {
        each_schema(body, |tool, schema, place| {
            let format = schema["format"].as_str()?;
            (!["enum", "date-time"].contains(&format)).then(|| format!("Invalid schema for function '{}': {place}.format: only 'enum' and 'date-time' are supported for STRING type", tool.name))
        })
    }),
    rule(
        "gemini-cli#5923: the error of the API, without the name of the function",
        |body| {
            each_tool(body, |_, tool| {
                (levels(&tool.schema) > 10).then(|| "A FunctionDeclaration in the request exceeds the maximum allowed nesting depth.".to_owned())
            })
        },
    ),
    rule(
        "Function calling, turns: a call follows a user turn, its responses follow it, as many as it has calls",
        |body| {
            let contents = list(&body["contents"]);
            if contents.first().is_none_or(|first| first["role"] != "user") {
                return Some("Please ensure that function call turn comes immediately after a user turn or after a function response turn.".to_owned());
            }
            let count = |content: Option<&Value>, part: &str| {
                content.map_or(0, |content| {
                    list(&content["parts"])
                        .iter()
                        .filter(|found| !found[part].is_null())
                        .count()
                })
            };
            for (at, content) in contents.iter().enumerate() {
                let (calls, responses) = (
                    count(Some(content), "functionCall"),
                    count(contents.get(at + 1), "functionResponse"),
                );
                if calls != responses {
                    return Some("Please ensure that the number of function response parts is equal to the number of function call parts of the function call turn.".to_owned());
                }
            }
            None
        },
    ),
    rule(
        "ai.google.dev, thought signatures; 5ire#405: the first call of a step has one",
        |body| {
            let contents = list(&body["contents"]);
            let firsts = contents.iter().filter_map(|content| {
                list(&content["parts"])
                    .iter()
                    .find(|part| !part["functionCall"].is_null())
            });
            firsts
                .filter(|part| part["thoughtSignature"].is_null())
                .map(|_| {
                    "Function call is missing a thought_signature in functionCall parts.".to_owned()
                })
                .next()
        },
    ),
];

/// `api/types.go` of Ollama: `ToolFunctionParameters` and `ToolProperty`; other keywords are not shown to the model.
const OLLAMA: &[Rule] = &[
    rule("ToolProperty; ollama#10328, #18051", |body| {
        const KNOWN: [&str; 8] = [
            "type",
            "description",
            "enum",
            "items",
            "anyOf",
            "properties",
            "required",
            "$defs",
        ];
        each_schema(body, |_, schema, _| {
            let unknown = schema
                .as_object()?
                .keys()
                .find(|key| !KNOWN.contains(&key.as_str()));
            let types =
                schema["type"].is_null() || schema["type"].is_string() || schema["type"].is_array();
            let required = list(&schema["required"]).iter().all(Value::is_string);
            (unknown.is_some() || !types || !required).then(|| format!("json: cannot unmarshal object into Go struct field .tools.function.parameters.properties of type api.ToolProperty ({unknown:?})"))
        })
    }),
    rule("ToolProperty: a property is an object", |body| {
        each_schema(body, |_, schema, _| {
            let properties = schema["properties"].as_object()?;
            properties.values().any(|property| !property.is_object()).then(|| "json: cannot unmarshal bool into Go struct field .tools.function.parameters.properties of type api.ToolProperty".to_owned())
        })
    }),
    rule(
        "ToolCallFunctionArguments: an object; neuron-ai#219",
        |body| {
            let calls = messages(body)
                .iter()
                .flat_map(|message| list(&message["tool_calls"]));
            calls.filter(|call| !call["function"]["arguments"].is_object()).map(|_| "json: cannot unmarshal string into Go struct field ChatRequest.messages of type api.ToolCallFunctionArguments".to_owned()).next()
        },
    ),
];

/// The rules of a provider; those of OpenAI hold where its protocol is spoken.
fn tables(kind: Kind) -> Vec<&'static [Rule]> {
    match kind {
        Kind::Openai => vec![OPENAI],
        Kind::LlamaCpp => vec![OPENAI, LLAMA_CPP],
        Kind::Mistral => vec![OPENAI, MISTRAL],
        Kind::Anthropic => vec![ANTHROPIC],
        Kind::Gemini => vec![GEMINI],
        Kind::Ollama => vec![OLLAMA],
    }
}

/// What a provider says of a request, and the source of the rule; nothing when it takes it.
pub fn refusal(kind: Kind, body: &Value) -> Option<(String, &'static str)> {
    let mut rules = tables(kind).into_iter().flatten();
    rules.find_map(|rule| Some(((rule.refuse)(body)?, rule.source)))
}

/// What any endpoint with OpenAI's protocol refuses, but for Mistral's ids, which only its models want.
pub fn compatible_refusals(body: &Value) -> Vec<String> {
    let rules = [OPENAI, LLAMA_CPP, &MISTRAL[..1]].into_iter().flatten();
    let refusals =
        rules.filter_map(|rule| Some(format!("{} ({})", (rule.refuse)(body)?, rule.source)));
    refusals.collect()
}

/// A tool, however its provider writes it.
pub struct SentTool {
    pub name: String,
    pub description: String,
    pub schema: Value,
}

/// The tools of a request.
pub fn tools(body: &Value) -> Vec<SentTool> {
    let of_gemini = list(&body["tools"])
        .iter()
        .flat_map(|tool| list(&tool["functionDeclarations"]));
    let tools = list(&body["tools"])
        .iter()
        .filter(|tool| tool["functionDeclarations"].is_null());
    tools
        .chain(of_gemini)
        .map(|tool| {
            let tool = if tool["function"].is_object() {
                &tool["function"]
            } else {
                tool
            };
            let text = |key: &str| tool[key].as_str().unwrap_or_default().to_owned();
            let schema = ["parameters", "input_schema", "parametersJsonSchema"]
                .iter()
                .map(|key| &tool[*key])
                .find(|schema| !schema.is_null());
            SentTool {
                name: text("name"),
                description: text("description"),
                schema: schema.cloned().unwrap_or_default(),
            }
        })
        .collect()
}

fn each_tool(body: &Value, look: impl Fn(usize, &SentTool) -> Option<String>) -> Option<String> {
    tools(body)
        .iter()
        .enumerate()
        .find_map(|(at, tool)| look(at, tool))
}

fn each_schema(
    body: &Value,
    look: impl Fn(&SentTool, &Value, &str) -> Option<String>,
) -> Option<String> {
    tools(body).iter().find_map(|tool| {
        parts(&tool.schema, "()")
            .iter()
            .find_map(|(place, schema)| look(tool, schema, place))
    })
}

fn each_call_id(body: &Value, look: impl Fn(&str) -> Option<String>) -> Option<String> {
    messages(body).iter().find_map(|message| {
        let calls = list(&message["tool_calls"]).iter().map(|call| &call["id"]);
        let mut ids = calls
            .chain([&message["tool_call_id"]])
            .filter_map(Value::as_str);
        ids.find_map(&look)
    })
}

/// A schema and all schemas in it that are objects.
fn parts<'a>(schema: &'a Value, place: &str) -> Vec<(String, &'a Value)> {
    let Some(members) = schema.as_object() else {
        return Vec::new();
    };
    let mut found = vec![(place.to_owned(), schema)];
    for (keyword, value) in members {
        let place = format!("{place}.{keyword}");
        match (keyword.as_str(), value) {
            (
                "properties" | "patternProperties" | "$defs" | "definitions" | "dependentSchemas",
                Value::Object(map),
            ) => {
                for (name, part) in map {
                    found.extend(parts(part, &format!("{place}.{name}")));
                }
            }
            ("allOf" | "anyOf" | "oneOf" | "prefixItems", Value::Array(list)) => {
                for part in list {
                    found.extend(parts(part, &place));
                }
            }
            (
                "items"
                | "additionalProperties"
                | "not"
                | "if"
                | "then"
                | "else"
                | "contains"
                | "propertyNames",
                part,
            ) => {
                found.extend(parts(part, &place));
            }
            _ => {}
        }
    }
    found
}

/// Levels below the top.
fn levels(schema: &Value) -> usize {
    let Some(members) = schema.as_object() else {
        return 0;
    };
    let mut deepest = 0;
    for (keyword, value) in members {
        let inner: Vec<&Value> = match (keyword.as_str(), value) {
            ("properties" | "$defs" | "definitions", Value::Object(map)) => map.values().collect(),
            ("allOf" | "anyOf" | "oneOf" | "prefixItems", Value::Array(list)) => {
                list.iter().collect()
            }
            ("items" | "additionalProperties", part @ Value::Object(_)) => vec![part],
            _ => Vec::new(),
        };
        deepest = inner
            .into_iter()
            .map(|part| 1 + levels(part))
            .max()
            .unwrap_or(0)
            .max(deepest);
    }
    deepest
}

fn has_type(schema: &Value, name: &str) -> bool {
    schema["type"] == name || list(&schema["type"]).iter().any(|kind| kind == name)
}

fn is_name(name: &str, most: usize, is_legal: impl Fn(char) -> bool) -> bool {
    !name.is_empty() && name.len() <= most && name.chars().all(is_legal)
}

fn messages(body: &Value) -> &[Value] {
    list(&body["messages"])
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn count_keys(value: &Value, key: &str) -> usize {
    match value {
        Value::Object(members) => {
            let own = usize::from(members.contains_key(key));
            own + members
                .values()
                .map(|member| count_keys(member, key))
                .sum::<usize>()
        }
        Value::Array(items) => items.iter().map(|item| count_keys(item, key)).sum(),
        _ => 0,
    }
}
