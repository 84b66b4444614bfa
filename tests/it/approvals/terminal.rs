use std::sync::Arc;

use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::watch,
};

use super::*;
use crate::support::terminal::Terminal;

/// A person's terminal that listens.
async fn piped(world: &World, person: &Client) -> Terminal {
    let mut terminal = Terminal::piped(&world.url, person);
    terminal.enters("/approvals");
    terminal.shows("Nothing waits for you.\n").await;
    terminal
}

/// The code of the only request that waits for this approver.
async fn code(approver: &Client) -> String {
    let waiting = approver
        .get("/v1/approvals?decidable=true")
        .await
        .expect(200);
    waiting["items"][0]["code"].as_str().unwrap().to_owned()
}

fn count(shown: &str, text: &str) -> usize {
    shown.matches(text).count()
}

#[tokio::test]
async fn a_request_its_decision_and_its_outcome_appear_by_themselves() {
    let world = shared_world().await;
    let staff = Staff::of(&world).await;
    let [mut ann, mut bob, mut carl] = [
        piped(&world, &staff.ann).await,
        piped(&world, &staff.bob).await,
        piped(&world, &staff.carl).await,
    ];
    ann.enters("pay 10.00");
    ann.shows("It waits.\n").await;
    for approver in [&mut bob, &mut carl] {
        approver.shows("ann asks for bank send_money").await;
        approver.shows(" shows it.\n").await;
    }
    let line = format!("/approve {}", code(&staff.bob).await);
    bob.enters(&line);
    bob.shows("Nothing is decided yet").await;
    bob.shows("again.\n").await;
    see().await;
    bob.enters(&line);
    bob.shows("was approved by bob").await;
    carl.shows("was approved by bob").await;
    bob.shows("was approved by bob and carried out.\n").await;
    ann.shows("was approved by bob and carried out.\n").await;
    ann.shows("‹ So it ended.\n").await;
    assert_eq!(world.bank.executions("send_money"), 1);
    let (ann, bob, carl) = (ann.ends().await, bob.ends().await, carl.ends().await);
    for (shown, text) in [
        (&ann, "So it ended."),
        (&bob, "The agent is bank. /approvals "),
        (&carl, "asks for"),
        (&carl, "approved by"),
    ] {
        assert_eq!(count(shown, text), 1, "{text:?}: {shown}");
    }
    // His own decision is no news, and how the call ended is.
    assert!(count(&bob, "approved by") <= 2, "{bob}");
    assert_eq!(count(&ann, "asks for"), 0, "{ann}");
}

#[tokio::test]
async fn what_waited_before_the_start_is_one_line() {
    let world = shared_world().await;
    let staff = Staff::of(&world).await;
    asked(&staff.ann, "10.00").await;
    asked(&staff.ann, "11.00").await;
    let mut bob = Terminal::piped(&world.url, &staff.bob);
    bob.shows("2 requests wait for your decision. /approvals shows them.\n")
        .await;
    bob.enters("/approvals");
    bob.shows("/approve").await;
    asked(&staff.ann, "12.00").await;
    bob.shows(" shows it.\n").await;
    let shown = bob.ends().await;
    assert_eq!(count(&shown, " shows it."), 1, "{shown}");
}

#[tokio::test]
async fn at_a_terminal_a_notice_leaves_the_line_that_is_typed_as_it_is() {
    let world = shared_world().await;
    let staff = Staff::of(&world).await;
    let mut bob = Terminal::real(&world.url, &staff.bob);
    bob.shows("you › ").await;
    bob.types("/approve ");
    bob.shows("/approve ").await;
    let (_, request) = asked(&staff.ann, "10.00").await;
    bob.shows("asks for bank send_money").await;
    bob.shows("(1) › /approve ").await;
    bob.enters(request["code"].as_str().unwrap());
    bob.shows("Nothing is decided yet").await;
    bob.shows("(1) › ").await;
    see().await;
    bob.enters(&format!("/approve {}", request["code"].as_str().unwrap()));
    bob.shows("was approved by bob").await;
    bob.shows("you › ").await;
    becomes(&staff.ann, &request, "succeeded").await;
    bob.ends().await;
}

#[tokio::test]
async fn what_happened_while_the_line_was_down_is_shown_once() {
    let world = shared_world().await;
    let staff = Staff::of(&world).await;
    let line = Line::to(&world.url).await;
    let mut ann = Terminal::piped(&line.url, &staff.ann);
    ann.enters("pay 10.00");
    ann.shows("It waits.\n").await;
    line.up.send_replace(false);
    let request = staff
        .ann
        .get("/v1/approvals?role=requester")
        .await
        .expect(200)["items"][0]
        .clone();
    approve(&staff.bob, &request).await.expect(200);
    becomes(&staff.ann, &request, "succeeded").await;
    eventually(async || told(&world).await.contains("From the program")).await;
    line.up.send_replace(true);
    ann.shows("was approved by bob and carried out.\n").await;
    ann.shows("‹ So it ended.\n").await;
    let shown = ann.ends().await;
    assert_eq!(
        (count(&shown, "So it ended."), count(&shown, "It waits.")),
        (1, 1),
        "{shown}"
    );
    assert_eq!(count(&shown, "!"), 0, "quietly: {shown}");
}

#[tokio::test]
async fn signing_out_ends_the_client_with_a_sentence() {
    let world = shared_world().await;
    let staff = Staff::of(&world).await;
    let mut ann = piped(&world, &staff.ann).await;
    ann.enters("/logout");
    ann.shows("The server takes your token no more").await;
    assert!(ann.left().await.ends_with("Start again with a new one.\n"));
    let mut bob = Terminal::real(&world.url, &staff.bob);
    bob.shows("you › ").await;
    bob.enters("/logout");
    bob.shows("The server takes your token no more").await;
    bob.left().await;
}

#[tokio::test]
async fn a_guest_hears_of_no_refusal() {
    let world = shared_world().await;
    let mut guest = Terminal::piped(&world.url, &world.guest().await);
    guest.enters("/help");
    guest.shows("/logout").await;
    let shown = guest.ends().await;
    assert!(!shown.contains("! "), "{shown}");
}

/// A line to a server that can be cut.
struct Line {
    url: String,
    up: Arc<watch::Sender<bool>>,
}

impl Line {
    async fn to(url: &str) -> Self {
        let server = url.strip_prefix("http://").unwrap().to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let up = Arc::new(watch::Sender::new(true));
        let line = up.clone();
        tokio::spawn(async move {
            while let Ok((mut near, _)) = listener.accept().await {
                let (mut state, server) = (line.subscribe(), server.clone());
                tokio::spawn(async move {
                    if *state.borrow() {
                        let mut far = TcpStream::connect(server).await.unwrap();
                        tokio::select! {
                            _ = copy_bidirectional(&mut near, &mut far) => {}
                            _ = state.wait_for(|up| !up) => {}
                        }
                    }
                });
            }
        });
        Self { url, up }
    }
}
