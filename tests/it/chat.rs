//! `chatelaine chat` at a terminal of its own and between pipes.

mod completion; // of commands, servers and codes
mod local_time; // times in the zone of the terminal
mod markdown; // as a terminal shows it
mod notices; // requests for consent
mod renderer; // events as they arrive
mod style; // where lines end

use std::os::unix::fs::PermissionsExt;

use serde_json::json;

use crate::support::{
    client::Client,
    model::{Gate, call, error, results, text},
    program::chatelaine,
    terminal::Terminal,
    world::World,
};

const BOLD: &str = "\u{1b}[0;1m";

async fn at_a_terminal(world: &World, person: &Client, columns: u16, more: &[&str]) -> Terminal {
    let mut terminal = Terminal::real_with(&world.url, person, columns, more);
    terminal.shows("you › ").await;
    terminal
}

#[tokio::test]
async fn an_answer_is_rendered_and_its_lines_end_between_words() {
    let world = World::shared().await;
    world.model.reply(text(
        "# Rates\nOne **euro** buys many things that nobody needs.\n\n- `USD`\n- CHF",
    ));
    let ann = world.user("ann", &[]).await;
    let mut terminal = at_a_terminal(&world, &ann, 40, &[]).await;
    terminal.enters("What is a euro?");
    terminal.shows(&format!("{BOLD}euro\u{1b}[0m")).await;
    terminal.shows("that nobody\r\nneeds.").await;
    terminal.shows("•").await;
    terminal.shows("\u{1b}[0;36mUSD\u{1b}[0m").await;
    terminal.shows("CHF\r\n").await;
    terminal.shows("you › ").await;
    let shown = terminal.ends().await;
    assert!(
        !shown.contains("**euro**\r\n") && !shown.contains("# Rates\r\n"),
        "{shown}"
    );
}

#[tokio::test]
async fn without_colours_there_are_none() {
    let world = World::shared().await;
    world.model.reply(text("One **euro**."));
    let ann = world.user("ann", &[]).await;
    let mut terminal = at_a_terminal(&world, &ann, 80, &["--no-color"]).await;
    terminal.enters("hi");
    terminal.shows("One euro.").await;
    terminal.shows("you › ").await;
    let shown = terminal.ends().await;
    assert!(!shown.contains("\u{1b}[0;"), "{shown:?}");
}

#[tokio::test]
async fn something_moves_until_the_first_word_and_tools_are_folded() {
    let world = World::shared().await;
    world.tools_ready().await;
    world.model.on(|request| {
        let rate = json!({ "from": "EUR", "to": "USD" }).to_string();
        Some(if results(request).is_empty() {
            text("").and_call(call("bank__get_exchange_rate", rate))
        } else {
            text("It is 1.08.")
        })
    });
    let ann = world.user("ann", &["employee"]).await;
    let mut terminal = at_a_terminal(&world, &ann, 100, &[]).await;
    terminal.enters("What is a euro?");
    terminal.shows("✓\u{1b}[0m").await;
    terminal.shows("bank get_exchange_rate").await;
    terminal.shows("It is 1.08.").await;
    terminal.shows("you › ").await;
    assert!(!terminal.all().contains("\"EUR\""), "arguments are folded");
    terminal.enters("/details");
    terminal.shows("\"from\":\"EUR\"").await;
    terminal.shows("succeeded: ").await;
    terminal.shows("you › ").await;
    terminal.ends().await;
}

#[tokio::test]
async fn ctrl_c_says_what_was_stopped() {
    let world = World::shared().await;
    let gate = Gate::new();
    world.model.reply(text("One two three.").gate(1, &gate));
    let ann = world.user("ann", &[]).await;
    let mut terminal = at_a_terminal(&world, &ann, 100, &[]).await;
    terminal.enters("Count.");
    gate.reached().await;
    terminal.shows("Ctrl-C stops").await;
    terminal.interrupt();
    terminal.shows("■ Stopped: the answer").await;
    terminal.shows("you › ").await;
    let page = ann.get("/v1/runs?status=cancelled").await.expect(200);
    assert_eq!(page["items"].as_array().unwrap().len(), 1, "{page}");
    terminal.types("\u{3}");
    terminal.shows("Ctrl-D leaves").await;
    terminal.ends().await;
}

#[tokio::test]
async fn ctrl_d_that_is_typed_while_an_answer_comes_leaves_after_it() {
    let world = World::shared().await;
    let gate = Gate::new();
    world.model.reply(text("One two three.").gate(1, &gate));
    let ann = world.user("ann", &[]).await;
    let mut terminal = at_a_terminal(&world, &ann, 100, &[]).await;
    terminal.enters("Count.");
    gate.reached().await;
    terminal.shows("Ctrl-C stops").await;
    terminal.types("\u{4}");
    gate.open();
    let shown = terminal.left().await;
    assert!(shown.contains("three."), "{shown}");
}

#[tokio::test]
async fn commands_servers_and_codes_are_completed() {
    let world = World::shared().await;
    world.tools_ready().await;
    let ann = world.user("ann", &["employee"]).await;
    let mut terminal = at_a_terminal(&world, &ann, 100, &[]).await;
    terminal.types("/disc\tba\t");
    terminal.shows("/disconnect bank ").await;
    terminal.types("\u{15}/conv\t");
    terminal.shows("/conversations ").await;
    terminal.types("\u{15}");
    terminal.ends().await;
}

#[tokio::test]
async fn lines_are_remembered_across_starts_but_secrets_are_not() {
    let world = World::shared().await;
    world.model.on(|_| Some(text("Fine.")));
    let ann = world.user("ann", &[]).await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("new/chat");
    let more = ["--history", file.to_str().unwrap()];
    let mut terminal = at_a_terminal(&world, &ann, 100, &more).await;
    terminal.enters("How are you?");
    terminal.shows("Fine.").await;
    terminal.shows("you › ").await;
    terminal.ends().await;
    let mut terminal = at_a_terminal(&world, &ann, 100, &more).await;
    terminal.types("\u{1b}[A");
    terminal.shows("How are you?").await;
    terminal.types("\u{15}");
    terminal.ends().await;
    let mode = std::fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o077, 0, "the lines are their writer's only");
}

#[tokio::test]
async fn earlier_conversations_are_listed_and_continued() {
    let world = World::shared().await;
    world.model.on(|_| Some(text("Fine.")));
    let ann = world.user("ann", &[]).await;
    for title in ["Taxes", "Rates"] {
        let new = json!({ "agent": "bank", "title": title });
        let id = ann.post("/v1/conversations", new).await.expect(201)["id"].clone();
        let said = format!("Tell me about {title}.");
        ann.say_and_wait(id.as_str().unwrap(), &said).await;
    }
    let mut terminal = Terminal::real_with(&world.url, &ann, 100, &["--continue"]);
    terminal.shows("Tell me about Rates.").await;
    terminal.shows("you › ").await;
    terminal.enters("/conversations");
    terminal.shows("1. ").await;
    terminal.shows("Rates ←").await;
    terminal.shows("2. ").await;
    terminal.shows("Taxes").await;
    terminal.shows("you › ").await;
    terminal.enters("/conversations 7");
    terminal
        .shows("there is no conversation of that number")
        .await;
    terminal.enters("/conversations 2");
    terminal.shows("Tell me about Taxes.").await;
    terminal.shows("you › ").await;
    terminal.ends().await;
    // By the clock of the terminal, which is an hour ahead of UTC.
    let page = ann.get("/v1/conversations?limit=1").await.expect(200);
    assert!(
        page["items"][0]["updated_at"]
            .as_str()
            .unwrap()
            .ends_with('Z')
    );
}

#[tokio::test]
async fn between_pipes_text_stays_as_it_is_and_a_failure_is_a_status() {
    let world = World::shared().await;
    world.model.reply(text("One **euro**."));
    let ann = world.user("ann", &[]).await;
    let mut script = Terminal::piped(&world.url, &ann);
    script.enters("hi");
    script.shows("‹ One **euro**.\n").await;
    let (shown, is_success) = script.ends_with().await;
    assert!(
        is_success && !shown.contains('\u{1b}') && !shown.contains('⠋'),
        "{shown:?}"
    );
    for _ in 0..8 {
        world.model.reply(error(400, "no such model"));
    }
    let mut script = Terminal::piped(&world.url, &ann);
    script.enters("hi");
    let (shown, is_success) = script.ends_with().await;
    assert!(!is_success, "{shown}");
}

#[tokio::test]
async fn an_admin_reads_why_somebody_lacks_a_tool() {
    let world = World::shared().await;
    world.tools_ready().await;
    let ann = world.user("ann", &["employee"]).await;
    ann.get("/v1/me").await.expect(200);
    let explain = async |person: &Client| {
        let output = chatelaine(&["explain", "bank", "--user", "ann", "--url", &world.url])
            .env("CHATELAINE_TOKEN", person.token())
            .output();
        let output = output.await.unwrap();
        let said =
            String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        (output.status.success(), said.into_owned())
    };
    let (is_success, said) = explain(&world.admin().await).await;
    assert!(is_success, "{said}");
    assert!(said.contains("bank (ready)\n"), "{said}");
    assert!(said.contains("  yes  get_balances\n"), "{said}");
    assert!(
        said.contains("  no   send_money  role lacks tool: "),
        "{said}"
    );
    let (is_success, said) = explain(&ann).await;
    assert!(!is_success && said.contains("scope `admin`"), "{said}");
}
