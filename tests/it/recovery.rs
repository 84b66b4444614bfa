//! Stopping a run between any two of its steps, in order or by a kill: the conversation is whole, the run goes on
//! elsewhere or after the start, and nothing is called twice.

mod kill; // a replica that is gone from one moment to the next
mod random; // whatever comes to the mind of a random generator
mod stop; // a stop in order, and the start after it

use std::time::Duration;

use super::support::world::{Setup, World};

/// A world whose runs are taken over after a second, with its bank known.
async fn world_with(change: impl FnOnce(&mut Setup)) -> World {
    let world = World::with(|setup| {
        setup.config.run_lease = Duration::from_secs(1);
        change(setup);
    })
    .await;
    world.tools_ready().await;
    world
}
