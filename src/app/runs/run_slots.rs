//! The places for runs in one process. A user and a tenant may take only a share of them, so that there is a place for
//! others at any time. The guests of a tenant share like one user.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::{
    domain::{config::Config, ids::TenantId},
    store::runs::FullShares,
};

/// Users whose last turn is remembered.
const REMEMBERED: usize = 10_000;

/// Who shares places like one user.
pub type Sharer = (TenantId, String);

/// The places of this process.
pub struct RunSlots {
    free: Arc<Semaphore>,
    all: usize,
    per_user: usize,
    per_tenant: usize,
    taken: Arc<Mutex<Taken>>,
    /// A run was refused a place since the last look for waiting runs.
    refused: AtomicBool,
}

#[derive(Default)]
struct Taken {
    users: HashMap<Sharer, usize>,
    tenants: HashMap<TenantId, usize>,
    /// `RunSlots` that were taken so far.
    count: u64,
    /// Who took which of them last.
    last_of_users: HashMap<Sharer, u64>,
    last_of_tenants: HashMap<TenantId, u64>,
}

/// A place. Dropping it frees it.
pub struct RunSlot {
    _permit: OwnedSemaphorePermit,
    sharer: Sharer,
    taken: Arc<Mutex<Taken>>,
}

impl RunSlots {
    pub fn new(config: &Config) -> Self {
        Self {
            free: Arc::new(Semaphore::new(config.runs_at_once)),
            all: config.runs_at_once,
            per_user: config.runs_per_user_at_once,
            per_tenant: config.runs_per_tenant_at_once,
            taken: Arc::default(),
            refused: AtomicBool::default(),
        }
    }

    /// Takes a place, if there is one and the sharer's share is not used up.
    pub fn take(&self, sharer: &Sharer) -> Option<RunSlot> {
        let mut taken = lock(&self.taken);
        let of_user = taken.users.get(sharer).copied().unwrap_or_default();
        let of_tenant = taken.tenants.get(&sharer.0).copied().unwrap_or_default();
        let permit = (of_user < self.per_user && of_tenant < self.per_tenant)
            .then(|| self.free.clone().try_acquire_owned().ok())
            .flatten();
        let Some(permit) = permit else {
            self.note_refused();
            return None;
        };
        taken.users.insert(sharer.clone(), of_user + 1);
        taken.tenants.insert(sharer.0, of_tenant + 1);
        taken.note_turn(sharer);
        Some(RunSlot {
            _permit: permit,
            sharer: sharer.clone(),
            taken: self.taken.clone(),
        })
    }

    /// When a sharer's tenant and the sharer had a turn: the lowest is next.
    pub fn last_turn(&self, sharer: &Sharer) -> (u64, u64) {
        let taken = lock(&self.taken);
        let of_tenant = taken.last_of_tenants.get(&sharer.0);
        let of_user = taken.last_of_users.get(sharer);
        (
            of_tenant.copied().unwrap_or_default(),
            of_user.copied().unwrap_or_default(),
        )
    }

    /// Whose shares are used up.
    pub fn full_shares(&self) -> FullShares {
        let taken = lock(&self.taken);
        let users = taken
            .users
            .iter()
            .filter(|(_, count)| **count >= self.per_user);
        let tenants = taken
            .tenants
            .iter()
            .filter(|(_, count)| **count >= self.per_tenant);
        FullShares {
            users: users.map(|(sharer, _)| sharer.clone()).collect(),
            tenants: tenants.map(|(tenant, _)| *tenant).collect(),
        }
    }

    pub fn is_full(&self) -> bool {
        self.free.available_permits() == 0
    }

    /// Whether no run is at work.
    pub fn is_idle(&self) -> bool {
        self.free.available_permits() == self.all
    }

    /// Notes that a run waits for a place.
    pub fn note_refused(&self) {
        self.refused.store(true, Ordering::Relaxed);
    }

    /// Whether a run was refused a place since this was asked last.
    pub fn take_refused(&self) -> bool {
        self.refused.swap(false, Ordering::Relaxed)
    }
}

impl Taken {
    fn note_turn(&mut self, sharer: &Sharer) {
        if self.last_of_users.len() >= REMEMBERED {
            self.last_of_users.clear();
            self.last_of_tenants.clear();
        }
        self.count += 1;
        self.last_of_users.insert(sharer.clone(), self.count);
        self.last_of_tenants.insert(sharer.0, self.count);
    }
}

impl Drop for RunSlot {
    fn drop(&mut self) {
        let mut taken = lock(&self.taken);
        let Taken { users, tenants, .. } = &mut *taken;
        give_back(users, &self.sharer);
        give_back(tenants, &self.sharer.0);
    }
}

fn give_back<K: Eq + std::hash::Hash>(counts: &mut HashMap<K, usize>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}

fn lock(taken: &Mutex<Taken>) -> MutexGuard<'_, Taken> {
    taken.lock().unwrap_or_else(PoisonError::into_inner)
}
