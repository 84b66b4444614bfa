//! The demo model's next reply: the calls that a sentence still lacks, or an answer in plain words.

use serde_json::{Value, json};

use super::{
    arguments::{self, Gap, Lack, Role},
    conversation::{Conversation, Refusal, Tool, Turn},
    intents::Kind,
    results::{self, Told},
    sentence::{Want, understand},
    words::{self, Lang},
};
use domain::decimal::{two_readings, write_ungrouped_for};

pub(super) struct Reply {
    pub(super) text: String,
    pub(super) calls: Vec<Call>,
}

pub(super) struct Call {
    pub(super) name: String,
    pub(super) arguments: Value,
}

/// What the demo model is, in its first answer and wherever somebody asks.
const WHAT_I_AM: [&str; 3] = [
    "*Demo model: understands a few sentences; set OPENAI_API_KEY for a real one.*",
    "*Modelo de demostración: entiende unas pocas frases; define OPENAI_API_KEY para usar uno de verdad.*",
    "*Modèle de démonstration : il comprend quelques phrases ; définissez OPENAI_API_KEY pour en avoir un vrai.*",
];
/// The same below every other answer.
const SIGNATURE: [&str; 3] = [
    "*Demo model*",
    "*Modelo de demostración*",
    "*Modèle de démonstration*",
];
const HELLO: [&str; 3] = ["Hello!", "¡Hola!", "Bonjour !"];
const WELCOME: [&str; 3] = ["You are welcome.", "De nada.", "Je vous en prie."];
const LEFT: [&str; 3] = [
    "All right, nothing was done.",
    "De acuerdo, no se ha hecho nada.",
    "D'accord, rien n'a été fait.",
];
const HELD: [&str; 3] = [
    "I have sent nothing. When money is to be sent now, say so in one sentence: amount, currency and recipient.",
    "No he enviado nada. Cuando haya que enviar dinero ahora, dilo en una frase: importe, moneda y destinatario.",
    "Je n'ai rien envoyé. Quand il faut envoyer de l'argent maintenant, dites-le en une phrase : montant, devise et destinataire.",
];
const NO_TOOL: [&str; 3] = [
    "There is no tool for that here: your role may not have it, or a server of yours is not connected yet (/connect).",
    "Aquí no hay ninguna herramienta para eso: quizá tu rol no la tiene, o un servidor tuyo aún no está conectado (/connect).",
    "Il n'y a pas d'outil pour cela ici : votre rôle ne l'a peut-être pas, ou l'un de vos serveurs n'est pas encore connecté (/connect).",
];
const NOT_UNDERSTOOD: [&str; 3] = [
    "I do not understand that.",
    "No entiendo eso.",
    "Je ne comprends pas cela.",
];
const NO_FILES: [&str; 3] = [
    "I cannot look at files or pictures.",
    "No puedo mirar archivos ni imágenes.",
    "Je ne peux pas regarder de fichiers ni d'images.",
];
const TRY: [&str; 3] = [
    "Try for example:",
    "Prueba por ejemplo:",
    "Essayez par exemple :",
];
const TOOLS: [&str; 3] = [
    "What you can use here:",
    "Lo que puedes usar aquí:",
    "Ce que vous pouvez utiliser ici :",
];
const NO_TOOLS: [&str; 3] = [
    "There are no tools for you here.",
    "Aquí no hay herramientas para ti.",
    "Il n'y a pas d'outils pour vous ici.",
];
/// Sentences to try, for those intents that a tool on offer serves.
const EXAMPLES: [(Kind, [&str; 3]); 6] = [
    (
        Kind::Rate,
        [
            "How many dollars is 100 euro?",
            "¿Cuántos dólares son 100 euros?",
            "Combien de dollars valent 100 euros ?",
        ],
    ),
    (
        Kind::Balance,
        [
            "Show the balances",
            "Muestra los saldos",
            "Montre les soldes",
        ],
    ),
    (
        Kind::Transfer,
        [
            "Please pay 12.50 EUR to acme",
            "Transfiere 12,50 EUR a acme",
            "Paie 12,50 EUR à acme",
        ],
    ),
    (
        Kind::Time,
        [
            "What time is it in Tokyo?",
            "¿Qué hora es en Tokio?",
            "Quelle heure est-il à Tokyo ?",
        ],
    ),
    (
        Kind::WriteNote,
        [
            "Write a note: ask for the invoice",
            "Escribe una nota: pedir la factura",
            "Écris une note : demander la facture",
        ],
    ),
    (
        Kind::FindNotes,
        ["Show my notes", "Muestra mis notas", "Montre mes notes"],
    ),
];
/// Turns that are read for a question that is still open.
const REMEMBERED: usize = 8;

/// What the model says or calls next.
pub(super) fn reply(conversation: &Conversation) -> Result<Reply, Refusal> {
    let mut reply = match side_task(conversation) {
        Some(text) => Reply {
            text,
            calls: Vec::new(),
        },
        None => answer(conversation),
    };
    if let (Some(format), true) = (&conversation.format, reply.calls.is_empty()) {
        reply.text = as_json(&reply.text, format)?;
    }
    Ok(reply)
}

fn answer(conversation: &Conversation) -> Reply {
    let turn = conversation.last();
    let lang = language(conversation);
    let wants = open_wants(conversation, lang);
    let mut said: Vec<String> = Vec::new();
    if turn.calls.is_empty() {
        said.extend(
            turn.outcomes
                .iter()
                .map(|outcome| tell_outcome(outcome, lang)),
        );
    }
    let only_outcomes = turn.said.is_empty() && !turn.outcomes.is_empty();
    let work = Work::plan(&wants, &conversation.tools, turn);
    if !work.calls.is_empty() {
        return Reply {
            text: said.join("\n\n"),
            calls: work.calls,
        };
    }
    let is_first = conversation
        .turns
        .iter()
        .filter(|turn| !turn.said.is_empty())
        .count()
        <= 1;
    let mut is_help = is_first;
    if !only_outcomes {
        for (want, state) in wants.iter().zip(&work.states) {
            said.push(match state {
                State::Said => match want.intent.kind {
                    Kind::Thanks => lang.of(&WELCOME).to_owned(),
                    Kind::Leave => lang.of(&LEFT).to_owned(),
                    Kind::Greeting => {
                        is_help = true;
                        format!(
                            "{} {}",
                            lang.of(&HELLO),
                            examples(&conversation.tools, lang)
                        )
                    }
                    _ => {
                        is_help = true;
                        capabilities(conversation, lang)
                    }
                },
                State::Held => lang.of(&HELD).to_owned(),
                State::NoTool => lang.of(&NO_TOOL).to_owned(),
                State::Lacks(gap) => question(gap, lang),
                State::Called(result) => tell(want, result, lang),
            });
        }
        if wants.is_empty() {
            is_help = true;
            let first = if turn.has_file {
                lang.of(&NO_FILES)
            } else {
                lang.of(&NOT_UNDERSTOOD)
            };
            said.push(format!("{first} {}", examples(&conversation.tools, lang)));
        }
    }
    said.push(
        if is_help {
            lang.of(&WHAT_I_AM)
        } else {
            lang.of(&SIGNATURE)
        }
        .to_owned(),
    );
    Reply {
        text: said.join("\n\n"),
        calls: Vec::new(),
    }
}

/// What stands of each want, and the calls that come next.
struct Work {
    states: Vec<State>,
    calls: Vec<Call>,
}

enum State {
    /// The model's own words do.
    Said,
    Held,
    NoTool,
    Lacks(Gap),
    Called(String),
}

impl Work {
    /// A tool that was called in this turn is not called again for the same want, whatever its answer was.
    fn plan(wants: &[Want], tools: &[Tool], turn: &Turn) -> Self {
        let mut work = Self {
            states: Vec::new(),
            calls: Vec::new(),
        };
        let mut used: Vec<&str> = Vec::new();
        for want in wants {
            let state = work.advance(want, tools, turn, &mut used);
            work.states.push(state);
        }
        work
    }

    fn advance<'a>(
        &mut self,
        want: &Want,
        tools: &'a [Tool],
        turn: &Turn,
        used: &mut Vec<&'a str>,
    ) -> State {
        if want.is_held {
            return State::Held;
        }
        if !want.intent.wants_tool() {
            return State::Said;
        }
        let Some(tool) = want.intent.choose(tools, want.facts.clock.is_some()) else {
            return State::NoTool;
        };
        let before = used.iter().filter(|name| **name == tool.name).count();
        let arguments = arguments::fill(tool, &want.facts, tools, turn);
        if let Err(Lack::Answer(gap)) = arguments {
            return State::Lacks(gap);
        }
        if let Err(Lack::Lookup(name)) = arguments {
            // Everything that can be looked up is looked up in one step.
            for name in std::iter::once(name).chain(arguments::lookups(tool, tools, turn)) {
                let is_new = self.calls.iter().all(|call| call.name != name)
                    && turn.result_of(&name).is_none();
                if is_new {
                    self.calls.push(Call {
                        name,
                        arguments: json!({}),
                    });
                }
            }
            return State::Said;
        }
        used.push(&tool.name);
        let made: Vec<_> = turn
            .calls
            .iter()
            .filter(|call| call.name == tool.name)
            .collect();
        match (made.get(before), arguments) {
            (Some(call), _) => State::Called(call.result.clone().unwrap_or_default()),
            (None, Ok(arguments)) => {
                self.calls.push(Call {
                    name: tool.name.clone(),
                    arguments,
                });
                State::Said
            }
            (None, Err(_)) => State::Said,
        }
    }
}

impl Turn {
    /// What a tool answered in this turn.
    pub(super) fn result_of(&self, name: &str) -> Option<&str> {
        let call = self.calls.iter().find(|call| call.name == name)?;
        Some(call.result.as_deref().unwrap_or_default())
    }
}

/// What the last turn wants: of its own, or as the answer to a question of the model that is still open.
fn open_wants(conversation: &Conversation, lang: Lang) -> Vec<Want> {
    let turns = &conversation.turns;
    let mut open: Option<(Want, Gap)> = None;
    let mut wants = Vec::new();
    for turn in &turns[turns.len().saturating_sub(REMEMBERED)..] {
        let spoken = words::language(&turn.said).unwrap_or(lang);
        wants = understand(&turn.said, spoken);
        // A sentence that says what it wants is no answer to what was asked before.
        if wants.is_empty()
            && let Some((want, gap)) = open.take()
        {
            wants.extend(want.with_answer(&gap, &turn.said, spoken));
        }
        let work = Work::plan(&wants, &conversation.tools, turn);
        open = wants
            .iter()
            .zip(work.states)
            .find_map(|(want, state)| match state {
                State::Lacks(gap)
                    if Lang::ALL
                        .into_iter()
                        .any(|lang| turn.answer.contains(&question(&gap, lang))) =>
                {
                    Some((want.clone(), gap))
                }
                _ => None,
            });
    }
    wants
}

/// The language of the last sentence that tells one, or else of the instructions.
fn language(conversation: &Conversation) -> Lang {
    let said = conversation
        .turns
        .iter()
        .rev()
        .map(|turn| turn.said.as_str());
    let mut texts = said.chain([conversation.system.as_str()]);
    texts.find_map(words::language).unwrap_or(Lang::En)
}

fn question(gap: &Gap, lang: Lang) -> String {
    let asked = match gap.role {
        Role::Amount => lang.of(&["How much?", "¿Cuánto?", "Combien ?"]),
        Role::Currency => lang.of(&[
            "In which currency?",
            "¿En qué moneda?",
            "Dans quelle devise ?",
        ]),
        Role::CurrencyTo => lang.of(&[
            "To which currency?",
            "¿A qué moneda?",
            "Vers quelle devise ?",
        ]),
        Role::Recipient => lang.of(&["To whom?", "¿A quién?", "À qui ?"]),
        Role::Account => lang.of(&["Which account?", "¿Qué cuenta?", "Quel compte ?"]),
        Role::Zone | Role::ZoneTo => lang.of(&[
            "In which city or time zone, such as Europe/Paris?",
            "¿En qué ciudad o zona horaria, por ejemplo Europe/Madrid?",
            "Dans quelle ville ou quel fuseau horaire, par exemple Europe/Paris ?",
        ]),
        Role::Clock => lang.of(&[
            "What time, such as 15:00?",
            "¿Qué hora, por ejemplo 15:00?",
            "Quelle heure, par exemple 15:00 ?",
        ]),
        Role::Text => lang.of(&[
            "What should it say?",
            "¿Qué debe decir?",
            "Que faut-il écrire ?",
        ]),
        Role::Query => lang.of(&[
            "What should I look for?",
            "¿Qué busco?",
            "Que faut-il chercher ?",
        ]),
        Role::Number => lang.of(&["Which number?", "¿Qué número?", "Quel numéro ?"]),
        Role::Other => {
            let which = lang.of(&["Which value for", "¿Qué valor para", "Quelle valeur pour"]);
            return format!("{which} “{}”?", gap.name);
        }
    };
    let choices = if gap.choices.is_empty() {
        String::new()
    } else {
        format!(" ({})", gap.choices.join(", "))
    };
    let readings = gap.unfit.as_deref().filter(|_| gap.role == Role::Amount);
    if let Some([first, second]) = readings.and_then(two_readings) {
        let unfit = gap.unfit.as_deref().unwrap_or_default();
        let code = lang.of(&["en", "es", "fr"]);
        let [first, second] =
            [first, second].map(|digits| write_ungrouped_for(Some(code), &digits));
        let [can_be, or] = lang.of(&[
            ["can be read as", "or as"],
            ["se puede leer como", "o como"],
            ["peut se lire comme", "ou comme"],
        ]);
        return format!("“{unfit}” {can_be} {first} {or} {second}. {asked}");
    }
    match &gap.unfit {
        Some(unfit) if gap.role == Role::Amount => {
            let is_none = lang.of(&[
                "is no amount.",
                "no es un importe.",
                "n'est pas un montant.",
            ]);
            format!("“{unfit}” {is_none} {asked}")
        }
        Some(unfit) => {
            let unknown = lang.of(&[
                "is not known here.",
                "no se conoce aquí.",
                "n'est pas connu ici.",
            ]);
            format!("“{unfit}” {unknown} {asked}{choices}")
        }
        None => format!("{asked}{choices}"),
    }
}

/// Sentences that the tools on offer can serve.
fn examples(tools: &[Tool], lang: Lang) -> String {
    let served = EXAMPLES.iter().filter(|(kind, _)| {
        let intents = super::intents::INTENTS
            .iter()
            .filter(|intent| intent.kind == *kind);
        intents
            .into_iter()
            .any(|intent| intent.choose(tools, false).is_some())
    });
    let lines: Vec<String> = served
        .map(|(_, texts)| format!("- {}", lang.of(texts)))
        .collect();
    if lines.is_empty() {
        return lang.of(&NO_TOOLS).to_owned();
    }
    format!("{}\n{}", lang.of(&TRY), lines.join("\n"))
}

/// Every tool by its server, with what it is for.
fn capabilities(conversation: &Conversation, lang: Lang) -> String {
    if conversation.tools.is_empty() {
        return lang.of(&NO_TOOLS).to_owned();
    }
    let mut said = vec![lang.of(&TOOLS).to_owned()];
    let mut servers: Vec<&str> = Vec::new();
    for tool in &conversation.tools {
        if !servers.contains(&tool.server.as_str()) {
            servers.push(&tool.server);
        }
    }
    for server in servers {
        let tools = conversation
            .tools
            .iter()
            .filter(|tool| tool.server == server);
        let lines = tools.map(|tool| {
            let needs = format!("{} (needs approval)", tool.name);
            let note = if conversation.system.contains(&needs) {
                lang.of(&[
                    " (needs approval)",
                    " (necesita aprobación)",
                    " (demande une approbation)",
                ])
            } else {
                ""
            };
            let about = tool
                .description
                .split(". ")
                .next()
                .unwrap_or_default()
                .trim_end_matches('.');
            format!("- {}{note}: {about}", tool.title)
        });
        let lines = lines.collect::<Vec<_>>().join("\n");
        said.push(if server.is_empty() {
            lines
        } else {
            format!("**{server}**\n{lines}")
        });
    }
    said.push(examples(&conversation.tools, lang));
    said.join("\n\n")
}

/// The result of a call in a sentence.
fn tell(want: &Want, result: &str, lang: Lang) -> String {
    let value = match results::read(result) {
        Told::Data(value) => value,
        Told::Waits {
            code,
            approvers,
            until,
        } => {
            let what = summary(want, lang);
            let approvers = approvers.replace(" or ", lang.of(&[" or ", " o ", " ou "]));
            return match lang {
                Lang::En => format!(
                    "{what}The request **{code}** waits for approval by {approvers} until {until}. I will tell you the outcome."
                ),
                Lang::Es => format!(
                    "{what}La petición **{code}** espera la aprobación de {approvers} hasta {until}. Te diré el resultado."
                ),
                Lang::Fr => format!(
                    "{what}La demande **{code}** attend l'approbation de {approvers} jusqu'à {until}. Je vous dirai le résultat."
                ),
            };
        }
        Told::Failed(text) => {
            return format!(
                "{} {text}",
                lang.of(&[
                    "That did not work:",
                    "No ha funcionado:",
                    "Cela n'a pas marché :"
                ])
            );
        }
        Told::Text(text) => {
            return format!(
                "{} {text}",
                lang.of(&["The tool says:", "La herramienta dice:", "L'outil dit :"])
            );
        }
    };
    let facts = &want.facts;
    match want.intent.kind {
        Kind::Rate => {
            if let (Some(rate), [from, to]) = (results::rate(&value), facts.currencies.as_slice()) {
                let unit = format!("1 {from} = {rate} {to}");
                let whole = facts
                    .amount
                    .as_ref()
                    .and_then(|amount| Some((amount, results::times(amount, &rate)?)));
                return match whole {
                    Some((amount, product)) => {
                        format!("{amount} {from} = **{product} {to}** ({unit})")
                    }
                    None => format!("**{unit}**"),
                };
            }
        }
        Kind::Time => {
            let is_in = lang.of(&["in", "en", "à"]);
            match results::times_of_day(&value).as_slice() {
                [(place, time, date)] => {
                    let it_is = lang.of(&["It is", "Son las", "Il est"]);
                    return format!("{it_is} **{time}** {is_in} {place} ({date}).");
                }
                [(from, time, _), (to, other, date)] => {
                    let same = lang.of(&["is", "son las", "correspond à"]);
                    return format!(
                        "{time} {is_in} {from} {same} **{other}** {is_in} {to} ({date})."
                    );
                }
                _ => {}
            }
        }
        Kind::Transfer | Kind::Invoice | Kind::WriteNote | Kind::DeleteNote => {
            let done = lang.of(&["Done.", "Hecho.", "C'est fait."]);
            return format!(
                "{done} {}{}",
                summary(want, lang),
                results::plain(&value, lang)
            );
        }
        _ => {}
    }
    results::plain(&value, lang)
}

/// What was asked for, as it was understood.
fn summary(want: &Want, lang: Lang) -> String {
    let facts = &want.facts;
    let (Some(amount), Some(recipient)) = (&facts.amount, &facts.recipient) else {
        return String::new();
    };
    let currency = facts.currencies.first().copied().unwrap_or_default();
    let to = lang.of(&["to", "a", "à"]);
    format!("{amount} {currency} {to} {recipient}. ")
}

/// How a call that was made earlier ended, as the program tells it.
fn tell_outcome(outcome: &Value, lang: Lang) -> String {
    if let Value::String(text) = outcome {
        return text.clone();
    }
    let text = |key: &str| outcome[key].as_str().filter(|text| !text.is_empty());
    let code = text("request").map_or_else(String::new, |code| format!(" **{code}**"));
    let by = text("by").map_or_else(String::new, |by| {
        format!(" {} {by}", lang.of(&["by", "por", "par"]))
    });
    let state = text("state").or_else(|| text("status")).unwrap_or_default();
    let request = lang.of(&["The request", "La petición", "La demande"]);
    let ended = match state {
        "succeeded" => lang.of(&["was approved{by} and carried out.", "fue aprobada{by} y se ha ejecutado.", "a été approuvée{by} et exécutée."]),
        "failed" => lang.of(&["was approved{by} and failed.", "fue aprobada{by} y ha fallado.", "a été approuvée{by} et a échoué."]),
        "rejected" => lang.of(&["was rejected{by}. Nothing was done.", "fue rechazada{by}. No se ha hecho nada.", "a été refusée{by}. Rien n'a été fait."]),
        "expired" => lang.of(&["expired: nobody approved it in time.", "ha caducado: nadie la aprobó a tiempo.", "a expiré : personne ne l'a approuvée à temps."]),
        "cancelled" => lang.of(&["was taken back. Nothing was done.", "fue retirada. No se ha hecho nada.", "a été retirée. Rien n'a été fait."]),
        "outcome_unknown" => lang.of(&[
            "was approved{by}, and nobody knows whether it was carried out. Check before you try again.",
            "fue aprobada{by}, y no se sabe si se ejecutó. Compruébalo antes de repetir.",
            "a été approuvée{by}, et on ne sait pas si elle a été exécutée. Vérifiez avant de recommencer.",
        ]),
        _ => lang.of(&["is over.", "ha terminado.", "est terminée."]),
    };
    let mut said = format!("{request}{code} {}", ended.replace("{by}", &by));
    let details =
        text("result")
            .or_else(|| text("reason"))
            .map(|details| match results::read(details) {
                Told::Data(value) => results::plain(&value, lang),
                Told::Waits { .. } => String::new(),
                Told::Failed(text) | Told::Text(text) => text,
            });
    if let Some(details) = details.filter(|details| !details.is_empty()) {
        said = format!("{said} {details}");
    }
    said
}

/// What a frontend asks beside its chat: a title, tags, suggestions.
fn side_task(conversation: &Conversation) -> Option<String> {
    let asked = &conversation.last().said;
    if !conversation.tools.is_empty() {
        return None;
    }
    let transcript = asked.lines().filter_map(|line| line.split_once(": "));
    let mut said = transcript
        .filter(|(who, _)| who.eq_ignore_ascii_case("user"))
        .map(|(_, said)| said);
    let title = said.next().map(|said| {
        said.split_whitespace()
            .take(6)
            .collect::<Vec<_>>()
            .join(" ")
    });
    if conversation.system.starts_with("Write a title") {
        return title;
    }
    let task = asked.strip_prefix("### Task:")?;
    if task.contains("\"follow_ups\"") {
        return Some(json!({ "follow_ups": [] }).to_string());
    }
    if task.contains("\"tags\"") {
        return Some(json!({ "tags": [] }).to_string());
    }
    task.contains("\"title\"")
        .then(|| json!({ "title": title.unwrap_or_default() }).to_string())
}

/// A text as JSON, where a schema has a place for one text.
fn as_json(text: &str, format: &Value) -> Result<String, Refusal> {
    let schema = &format["json_schema"]["schema"];
    let properties = schema["properties"].as_object();
    let required: Vec<&str> = schema["required"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    match (properties, required.as_slice()) {
        (None, []) => Ok(json!({ "answer": text }).to_string()),
        (Some(properties), [only])
            if properties
                .get(*only)
                .is_some_and(|property| property["type"] == "string") =>
        {
            Ok(json!({ *only: text }).to_string())
        }
        _ => Err(Refusal::new(
            "the demo model writes no JSON of this schema",
            "response_format",
        )),
    }
}
