//! The id of the request that is being answered. A run keeps the id of the request that made it, so that the log of the
//! replica that works on the run leads back to the request.

use std::{future::Future, sync::Arc};

tokio::task_local! {
    static ID: Arc<str>;
}

/// Does `work` for the request with this id.
pub async fn scope<T>(id: Arc<str>, work: impl Future<Output = T>) -> T {
    ID.scope(id, work).await
}

/// The id of the request for which the present task works.
pub fn current() -> Option<Arc<str>> {
    ID.try_with(Arc::clone).ok()
}

/// `work` for another task, on behalf of the present request.
pub fn carry<T>(work: impl Future<Output = T>) -> impl Future<Output = T> {
    let id = current();
    async move {
        match id {
            Some(id) => scope(id, work).await,
            None => work.await,
        }
    }
}
