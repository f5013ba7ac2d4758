//! Limits of service of data that a unit moves by itself, such as that of a copy: the server cannot
//! tell its length from the command.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::{DataMover, GetData, ItlNexus, Lost, Nexuses};

/// Interval at which a wait checks whether it is over before its time.
const LOOK: Duration = Duration::from_millis(100);

/// Charges bytes to the limits of service of a nexus, of its unit and of its initiator. `None`:
/// there are no limits now.
pub type Charge = Box<dyn Fn(u64) -> Option<Charged>>;

/// Bytes that were charged.
pub struct Charged {
    /// When they may move.
    pub due: Instant,
    /// Whether the limits have changed since: `due` does not count any more.
    pub is_void: Box<dyn Fn() -> bool>,
}

/// The limits of service of one side of a copy.
pub struct Pace(Option<Charge>);

impl Pace {
    /// Those of `nexus`, which `nexuses` has, for reads or writes.
    pub fn new(nexuses: &Nexuses, nexus: &Arc<ItlNexus>, writes: bool) -> Self {
        Self(nexuses.aborter().and_then(|server| server.limits(nexus, writes)))
    }

    /// Charges `bytes`, and waits until they may move. Ends early if `goes_on` returns false; the
    /// caller asks that again.
    ///
    /// # Errors
    /// The command of `mover` has ended.
    pub async fn admit(
        &self,
        bytes: u64,
        mut mover: Option<&mut (dyn DataMover + '_)>,
        goes_on: &mut dyn FnMut() -> bool,
    ) -> Result<(), Lost> {
        let Some(charged) = self.0.as_ref().and_then(|charge| charge(bytes)) else { return Ok(()) };
        loop {
            let left = charged.due.saturating_duration_since(runtime::now());
            if left.is_zero() || (charged.is_void)() || !goes_on() {
                return Ok(());
            }
            let sleep = runtime::sleep(left.min(LOOK));
            match &mut mover {
                Some(mover) => (**mover).unless_lost(sleep).await?,
                None => sleep.await,
            }
        }
    }
}
