//! [`Pace`]: the limits of service of a connection's client. A READ, WRITE or COPY beyond them
//! waits for its time; other calls never wait.

use std::cell::RefCell;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use server_core::qos::{Accounts, Cost, Limiter, QosLimits};

use crate::handle::ExportId;
use crate::shared::Shared;

/// Interval at which a waiting call checks for a new configuration or the server's end.
const LOOK: Duration = Duration::from_millis(100);

/// The accounts of a server: one of each export and address that is limited.
pub(crate) type Paces = Accounts<(ExportId, IpAddr)>;

/// The accounts that a connection uses. An account is there for as long as a connection uses it.
#[derive(Default)]
pub(crate) struct Pace(RefCell<Vec<(ExportId, Arc<Limiter>)>>);

impl Pace {
    /// Waits until the client may read or write the bytes of `cost` on an export with these limits,
    /// and returns for how long. A change of the configuration ends all waits, and so does the
    /// server's end.
    pub(crate) async fn admit(
        &self,
        shared: &Shared,
        (export, host): (ExportId, IpAddr),
        limits: QosLimits,
        cost: Cost,
    ) -> Duration {
        let limiter = self.limiter(shared, (export, host), limits);
        let generation = shared.served.generation();
        let began = runtime::now();
        let due = limiter.charge(cost, began);
        loop {
            let left = due.saturating_duration_since(runtime::now());
            if left.is_zero() || shared.served.generation() != generation || shared.hub.is_closed() {
                return runtime::now().saturating_duration_since(began);
            }
            runtime::sleep(left.min(LOOK)).await;
        }
    }

    fn limiter(
        &self,
        shared: &Shared,
        (export, host): (ExportId, IpAddr),
        limits: QosLimits,
    ) -> Arc<Limiter> {
        let mut own = self.0.borrow_mut();
        let known = own.iter().find(|(id, _)| *id == export).map(|(_, limiter)| limiter.clone());
        let limiter = known.unwrap_or_else(|| {
            let limiter = shared.paces.limiter((export, host), limits);
            own.push((export, limiter.clone()));
            limiter
        });
        // The configuration has changed.
        if limiter.limits() != limits {
            limiter.set(limits);
        }
        limiter
    }
}
