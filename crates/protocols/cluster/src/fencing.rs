//! Taking an instance out: who asks for its blocklist entry, and when.
//!
//! The record says first that an instance is being fenced. So if the gateway that began the fence
//! dies half way, all others end it. A blocklist entry that is made twice does no harm.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::id::{Epoch, InstanceId, Time};

/// The instances that are being fenced.
#[derive(Debug, Default)]
pub struct Fencing {
    steps: BTreeMap<InstanceId, Step>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Another gateway's turn until then, or the monitors refused.
    Waiting { until: Time },
    /// The monitors were asked.
    Asked,
    /// OSDs refuse it from this epoch on.
    Done(Epoch),
}

impl Fencing {
    /// The record has `instance` fenced. Whether this gateway has to ask for its entry now; it
    /// waits for `patience` first.
    pub fn asks(&mut self, instance: InstanceId, now: Time, patience: Duration) -> bool {
        let step = self.steps.entry(instance).or_insert(Step::Waiting { until: now + patience });
        let asks = matches!(step, Step::Waiting { until } if *until <= now);
        if asks {
            *step = Step::Asked;
        }
        asks
    }

    /// The monitors have answered; a refusal is asked again at `again`.
    pub fn answered(&mut self, instance: InstanceId, epoch: Option<Epoch>, again: Time) {
        if let Some(step) = self.steps.get_mut(&instance) {
            *step = epoch.map_or(Step::Waiting { until: again }, Step::Done);
        }
    }

    /// Forgets instances that are no members any more.
    pub fn keep(&mut self, member: impl Fn(InstanceId) -> bool) {
        self.steps.retain(|instance, _| member(*instance));
    }

    /// The instances that are blocklisted, with the epochs.
    pub fn done(&self) -> impl Iterator<Item = (InstanceId, Epoch)> + '_ {
        self.steps.iter().filter_map(|(instance, step)| match step {
            Step::Done(epoch) => Some((*instance, *epoch)),
            _ => None,
        })
    }

    /// When one has to be asked for next.
    #[must_use]
    pub fn due(&self) -> Option<Time> {
        self.steps
            .values()
            .filter_map(|step| match step {
                Step::Waiting { until } => Some(*until),
                _ => None,
            })
            .min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gateway_waits_its_turn_and_asks_once() {
        let (one, second) = (InstanceId(1), Duration::from_secs(1));
        let mut fencing = Fencing::default();
        assert!(!fencing.asks(one, Duration::ZERO, second));
        assert_eq!(fencing.due(), Some(second));
        assert!(fencing.asks(one, second, second));
        assert!(!fencing.asks(one, second * 2, second));
        fencing.answered(one, None, second * 3);
        assert!(fencing.asks(one, second * 3, second));
        fencing.answered(one, Some(Epoch(4)), second);
        assert_eq!(fencing.done().collect::<Vec<_>>(), [(one, Epoch(4))]);
    }
}
