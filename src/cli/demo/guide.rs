//! What the demo prints once it is up.

use super::{Model, notes::Notes};
use crate::cli::chat::DemoNotes;

pub fn text(people: &DemoNotes, page: &str, notes: &Notes, model: &Model) -> String {
    let url = people.url.as_str().trim_end_matches('/');
    let employee = people
        .tokens
        .get("employee")
        .map(String::as_str)
        .unwrap_or_default();
    let agent = &people.agent;
    let program = std::env::args()
        .next()
        .unwrap_or_else(|| "chatelaine".to_owned());
    let tokens: Vec<String> = people
        .tokens
        .iter()
        .map(|(user, token)| format!("  {user:<9} {token}"))
        .collect();
    let own = notes
        .tokens
        .iter()
        .map(|(token, holder)| format!("  {token}  ({})", holder.scopes.join(", ")));
    let own: Vec<String> = own.collect();
    let file = notes.file.display();
    let model = describe(model);
    format!(
        "
Chatelaine is up at {url}. Ctrl-C stops it; the next start finds the same data.
{model}

Open it in a browser, and be any of its five people:
  {page}

Or talk to it in another terminal:
  {program} chat --as employee    (also: guest, finance, manager, admin)

Money needs a second pair of eyes: let finance say
  /call bank send_money {{\"from_account\":\"current\",\"to\":\"acme\",\"amount\":\"12.50\",\"currency\":\"EUR\"}}
and the manager /approvals, then /approve and the code.

Or by curl:
  TOKEN={employee}
  ID=$(curl -s {url}/v1/conversations -H \"Authorization: Bearer $TOKEN\" -H 'Content-Type: application/json' \\
       -d '{{\"agent\":\"{agent}\"}}' | sed 's/.*\"id\":\"\\([^\"]*\\)\".*/\\1/')
  curl -s {url}/v1/conversations/$ID/messages -H \"Authorization: Bearer $TOKEN\" -H 'Content-Type: application/json' \\
       -d '{{\"text\":\"/tools\"}}'
  curl -N {url}/v1/conversations/$ID/events?after=0 -H \"Authorization: Bearer $TOKEN\"

Or by any OpenAI client: base_url={url}/v1, api_key=one of the tokens, model={agent}.

Tokens, good for 30 days:
{}

The notes are personal: nobody has their tools before they say /connect in a chat and enter a token of their own.
The notes know these; take one out of {file}
and it is refused from then on:
{}
",
        tokens.join("\n"),
        own.join("\n")
    )
}

fn describe(model: &Model) -> String {
    match model {
        Model::Endpoint { model, at } => format!("The model is {model} at {at}."),
        Model::None => {
            "There is no model: set OPENAI_BASE_URL and OPENAI_API_KEY for one (Ollama: \
                        OPENAI_BASE_URL=http://localhost:11434/v1 LLM_MODEL=qwen3).\n\
                        Without it these work: /tools, /connections, /help, and\n  \
                        /call bank get_exchange_rate {\"from\":\"EUR\",\"to\":\"USD\"}"
                .to_owned()
        }
    }
}
