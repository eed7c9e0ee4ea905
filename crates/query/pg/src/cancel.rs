//! Which statement a cancel request ends.
//!
//! A client cancels on a connection of its own, and names the statement's connection by the number
//! and the secret that it got when it connected. pgwire ends a statement only while the statement
//! is planned, so rows that already flow are ended here.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use async_trait::async_trait;
use pgwire::api::cancel::CancelHandler;
use pgwire::api::{ClientInfo, PidSecretKeyGenerator as _, RandomPidSecretKeyGenerator};
use pgwire::messages::cancel::CancelRequest;
use pgwire::messages::startup::SecretKey;
use tokio::sync::watch;

/// The running statements of all connections of a listener.
#[derive(Debug, Default)]
pub(crate) struct CancelRegistry {
    connections: Mutex<HashMap<i32, Registered>>,
    /// Numbers connections, each by a number of its own.
    generator: RandomPidSecretKeyGenerator,
}

#[derive(Debug)]
struct Registered {
    secret: SecretKey,
    /// How often the connection was cancelled. A statement compares it with the count at its start.
    /// It ends with the connection.
    cancels: Weak<watch::Sender<u64>>,
}

impl CancelRegistry {
    /// Numbers a connection, and gives the number and the secret by which its client cancels.
    pub(crate) fn register(
        &self,
        client: &dyn ClientInfo,
        cancels: &Arc<watch::Sender<u64>>,
    ) -> (i32, SecretKey) {
        let (pid, secret) = self.generator.generate(client);
        let registered = Registered { secret: secret.clone(), cancels: Arc::downgrade(cancels) };
        let mut connections = self.connections.lock().expect("no panic holds the lock");
        connections.retain(|_, registered| registered.cancels.strong_count() > 0);
        connections.insert(pid, registered);
        (pid, secret)
    }
}

#[async_trait]
impl CancelHandler for CancelRegistry {
    async fn on_cancel_request(&self, request: CancelRequest) {
        let connections = self.connections.lock().expect("no panic holds the lock");
        // A wrong secret is answered by silence, as PostgreSQL does.
        if let Some(registered) = connections.get(&request.pid)
            && registered.secret.eq_value(&request.secret_key)
            && let Some(cancels) = registered.cancels.upgrade()
        {
            cancels.send_modify(|count| *count += 1);
        }
    }
}
