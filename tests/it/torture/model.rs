//! The model of the bank's agent. It calls what it is told to call, and one of eight of its answers is an error, cut off,
//! nonsense or missing.

use std::sync::{Arc, Mutex};

use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde_json::Value;

use super::answers::marks;
use crate::support::model::{Reply, ScriptedModel, calls, error, last_user, raw, said, text};

/// How a clerk begins a message that the model makes a call of.
pub const PLEASE: &str = "please call ";

pub struct Model {
    pub scripted: ScriptedModel,
    mixed: Arc<Mutex<Vec<String>>>,
}

impl Model {
    /// Requests in which it was told texts of several companies.
    pub fn complaints(&self) -> Vec<String> {
        self.mixed.lock().unwrap().clone()
    }
}

pub async fn start(seed: u64) -> Model {
    let scripted = ScriptedModel::start().await;
    let mixed = Arc::<Mutex<Vec<String>>>::default();
    let seen = mixed.clone();
    let random = Mutex::new(StdRng::seed_from_u64(seed ^ 3));
    scripted.on(move |request| {
        let companies = marks(&request.to_string());
        if companies.len() > 1 {
            let complaint = format!("the model was told texts of the companies {companies:?}");
            seen.lock().unwrap().push(complaint);
        }
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
    Model { scripted, mixed }
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
