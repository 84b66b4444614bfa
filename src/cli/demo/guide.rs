//! What the demo prints once it is up.

use super::Model;
use crate::cli::chat::DemoNotes;

pub fn text(notes: &DemoNotes, model: &Model) -> String {
    let url = notes.url.as_str().trim_end_matches('/');
    let employee = notes.tokens.get("employee").map(String::as_str).unwrap_or_default();
    let agent = &notes.agent;
    let program = std::env::args().next().unwrap_or_else(|| "chatelaine".to_owned());
    let tokens: Vec<String> = notes.tokens.iter().map(|(user, token)| format!("  {user:<9} {token}")).collect();
    let model = match model {
        Model::Endpoint { model, at } => format!("The model is {model} at {at}."),
        Model::None => "There is no model: set OPENAI_BASE_URL and OPENAI_API_KEY for one (Ollama: \
                        OPENAI_BASE_URL=http://localhost:11434/v1 LLM_MODEL=qwen3).\n\
                        Without it these work: /tools, /connections, /help, and\n  \
                        /call bank get_exchange_rate {\"from\":\"EUR\",\"to\":\"USD\"}"
            .to_owned(),
    };
    format!(
        "
Chatelaine is up at {url}. Ctrl-C stops it; the next start finds the same data.
{model}

Talk to it (in another terminal):
  {program} chat --as employee    (also: guest, finance, admin)

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
",
        tokens.join("\n")
    )
}
