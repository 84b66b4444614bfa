//! How many calls may be under way at one server, and how many of them for one user.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, Weak},
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::interceptor::locked;
use domain::ids::UserId;

/// One user gets at most this part (a quarter) of the calls that a server may have at once.
const USER_SHARE_DIVISOR: usize = 4;

pub(super) struct CallSlots {
    all: Arc<Semaphore>,
    share: usize,
    /// Of the users that have calls under way or waiting.
    users: Mutex<HashMap<UserId, Weak<Semaphore>>>,
}

/// The right to one call, given back when dropped.
pub(super) struct CallSlot {
    _all: OwnedSemaphorePermit,
    _own: Option<OwnedSemaphorePermit>,
}

impl CallSlots {
    pub(super) fn new(calls: usize) -> Self {
        Self {
            all: Arc::new(Semaphore::new(calls.max(1))),
            share: (calls / USER_SHARE_DIVISOR).max(1),
            users: Mutex::default(),
        }
    }

    /// Waits until one more call may be made. A user who has their share waits for one of their own calls first.
    pub(super) async fn acquire(&self, user: Option<&UserId>) -> CallSlot {
        const NEVER_CLOSED: &str = "nobody closes the semaphore";
        let own = match user {
            Some(user) => Some(self.own(user).acquire_owned().await.expect(NEVER_CLOSED)),
            None => None,
        };
        let all = self.all.clone().acquire_owned().await.expect(NEVER_CLOSED);
        CallSlot {
            _all: all,
            _own: own,
        }
    }

    fn own(&self, user: &UserId) -> Arc<Semaphore> {
        let mut users = locked(&self.users);
        if let Some(known) = users.get(user).and_then(Weak::upgrade) {
            return known;
        }
        users.retain(|_, places| places.strong_count() > 0);
        let own = Arc::new(Semaphore::new(self.share));
        users.insert(user.clone(), Arc::downgrade(&own));
        own
    }
}
