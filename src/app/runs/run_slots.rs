//! The slots for runs in one process. A user and a tenant may take only a share of the slots, so that slots for others
//! are left at any time. All guests of a tenant share like one user.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use domain::{config::Config, ids::TenantId, principal::FairShareKey};
use store::runs::FullShares;

/// The most users whose last turn is remembered.
const REMEMBERED: usize = 10_000;

/// The slots of this process.
pub struct RunSlots {
    free: Arc<Semaphore>,
    all: usize,
    per_user: usize,
    per_tenant: usize,
    taken: Arc<Mutex<Taken>>,
    /// Set when a run was refused a slot since waiting runs were last claimed.
    refused: AtomicBool,
}

#[derive(Default)]
struct Taken {
    users: HashMap<FairShareKey, usize>,
    tenants: HashMap<TenantId, usize>,
    /// How many slots were taken since the start of the process.
    count: u64,
    /// The value of `count` when the user or the tenant last took a slot.
    last_of_users: HashMap<FairShareKey, u64>,
    last_of_tenants: HashMap<TenantId, u64>,
}

/// A taken slot. It becomes free when it is dropped.
pub struct RunSlot {
    _permit: OwnedSemaphorePermit,
    share: FairShareKey,
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

    /// Takes a slot, if one is free and the share is not used up.
    pub fn take(&self, share: &FairShareKey) -> Option<RunSlot> {
        let mut taken = lock(&self.taken);
        let of_user = taken.users.get(share).copied().unwrap_or_default();
        let of_tenant = taken
            .tenants
            .get(&share.tenant)
            .copied()
            .unwrap_or_default();
        let permit = (of_user < self.per_user && of_tenant < self.per_tenant)
            .then(|| self.free.clone().try_acquire_owned().ok())
            .flatten();
        let Some(permit) = permit else {
            self.note_refused();
            return None;
        };
        taken.users.insert(share.clone(), of_user + 1);
        taken.tenants.insert(share.tenant, of_tenant + 1);
        taken.note_turn(share);
        Some(RunSlot {
            _permit: permit,
            share: share.clone(),
            taken: self.taken.clone(),
        })
    }

    /// When the tenant and the user last took a slot, as a key to order by: the lowest is next.
    pub fn last_turn(&self, share: &FairShareKey) -> (u64, u64) {
        let taken = lock(&self.taken);
        let of_tenant = taken.last_of_tenants.get(&share.tenant);
        let of_user = taken.last_of_users.get(share);
        (
            of_tenant.copied().unwrap_or_default(),
            of_user.copied().unwrap_or_default(),
        )
    }

    /// The users and the tenants whose shares are used up.
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
            users: users.map(|(share, _)| share.clone()).collect(),
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

    /// Notes that a run waits for a slot.
    pub fn note_refused(&self) {
        self.refused.store(true, Ordering::Relaxed);
    }

    /// Whether a run was refused a slot since the last call.
    pub fn take_refused(&self) -> bool {
        self.refused.swap(false, Ordering::Relaxed)
    }
}

impl Taken {
    fn note_turn(&mut self, share: &FairShareKey) {
        if self.last_of_users.len() >= REMEMBERED {
            self.last_of_users.clear();
            self.last_of_tenants.clear();
        }
        self.count += 1;
        self.last_of_users.insert(share.clone(), self.count);
        self.last_of_tenants.insert(share.tenant, self.count);
    }
}

impl Drop for RunSlot {
    fn drop(&mut self) {
        let mut taken = lock(&self.taken);
        let Taken { users, tenants, .. } = &mut *taken;
        give_back(users, &self.share);
        give_back(tenants, &self.share.tenant);
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
