//! A message answered: the model, its tools, the gate, and everything that may go wrong on the way.

mod audit; // who called what
mod calls; // the tools of a step
mod endings; // how a run ends when it does not end well
mod first_turn; // servers that are slow to connect
mod hostile; // what Postgres, models and listeners must not trip over
mod listening; // events, slow listeners, other replicas
mod models; // models of other providers, and other models
mod plans; // what a turn reads of large tables
mod prompt; // what the model is told
mod queue; // several messages and runs
mod reload; // packs that change
mod servers; // servers that come, go and change

use super::support::world::{Setup, World};

/// A world whose bank is known already.
async fn world() -> World {
    world_with(|_| {}).await
}

/// The same in a process that other tests share.
async fn shared_world() -> World {
    let world = World::shared().await;
    world.tools_ready().await;
    world
}

async fn world_with(change: impl FnOnce(&mut Setup)) -> World {
    let world = World::with(change).await;
    world.tools_ready().await;
    world
}
