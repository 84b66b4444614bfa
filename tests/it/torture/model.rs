//! The model of the bank's agent. It calls what it is told to call, and one of eight of its answers is an error, cut off,
//! nonsense or missing.

use std::sync::Mutex;

use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde_json::Value;

use crate::support::model::{Reply, ScriptedModel, calls, error, last_user, raw, said, text};

/// How a clerk begins a message that the model makes a call of.
pub const PLEASE: &str = "please call ";

pub async fn start(seed: u64) -> ScriptedModel {
    let model = ScriptedModel::start().await;
    let random = Mutex::new(StdRng::seed_from_u64(seed ^ 3));
    model.on(move |request| {
        let good = answer(request);
        let mut random = random.lock().unwrap();
        Some(match random.random_range(0..40) {
            0 => error(500, "out of order"),
            1 => error(429, "slow down").retry_after("1"),
            2 => good.cut(1),
            3 => raw(["data: {\"choices\": [{\"del\n\n"]),
            4 => raw(["<html>bad gateway</html>"]).status(502),
            _ => good,
        })
    });
    model
}

fn answer(request: &Value) -> Reply {
    if !said(request, PLEASE) {
        return text("That is how it stands.");
    }
    let asked = last_user(request);
    let (_, call) = asked.split_once(PLEASE).expect("it was just found");
    let mut words = call.splitn(3, ' ');
    let (server, tool) = words
        .next()
        .zip(words.next())
        .expect("a server and its tool");
    let arguments = words.next().expect("the tool's arguments");
    // A request for a title has the whole conversation in one message.
    let Ok(arguments) = serde_json::from_str(arguments) else {
        return text("A payment");
    };
    let name = format!("{server}__{tool}");
    calls([(name.as_str(), arguments)])
}
