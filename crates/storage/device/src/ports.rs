//! The target port groups of one target, shared by all its units and sessions: the nexuses, the
//! access states of their ports, and changes of state. `scsi::alua` decides which changes are
//! allowed; this file applies them to nexuses.
//!
//! It costs a command nothing: an inactive port is a bit of its nexus's verdict.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use scsi::alua::{self, ChangeError, Groups, Plan};
use scsi::data::target_port_groups::{AccessState, SetTargetPortGroup, TargetPortGroup};
use scsi::{AdditionalSense, Sense, SenseKey, UnitAttention};

use crate::{ItlNexus, Persist};

/// A target's port groups, behind a mutex. Slow path only; the mutex is never held across an await.
pub struct PortGroups {
    state: Mutex<State>,
}

struct State {
    groups: Groups,
    transition: Duration,
    /// Storage for explicit states across restarts.
    keep: Option<Arc<dyn Persist>>,
    nexuses: Vec<Weak<ItlNexus>>,
}

/// [`PortGroups::change`] waits this much longer than another change's transition: a slow disk may
/// have to store it.
const LATE: Duration = Duration::from_secs(5);

/// Interval between checks for the end of the other change.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// Why an implicit change of state failed.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// The change is not allowed.
    #[error(transparent)]
    Change(#[from] ChangeError),
    /// The change could not be stored and was reverted; every nexus got a unit attention.
    #[error("the change could not be stored: {0}")]
    Keep(#[from] std::io::Error),
}

impl PortGroups {
    /// `groups` with the states stored in `keep`. A change takes `transition`. Blocks to read a
    /// small file if `keep` is given.
    ///
    /// # Errors
    /// The stored states cannot be read, or are not valid.
    pub fn new(
        mut groups: Groups,
        transition: Duration,
        keep: Option<Arc<dyn Persist>>,
    ) -> std::io::Result<Arc<Self>> {
        if let Some(bytes) = keep.as_ref().map(|keep| keep.load(Groups::MAX_SAVED_LEN)).transpose()?.flatten()
        {
            if !groups.restore(&bytes) {
                let what = "the kept states of target port groups are damaged";
                return Err(std::io::Error::new(std::io::ErrorKind::InvalidData, what));
            }
        }
        Ok(Self::of(groups, transition, keep))
    }

    fn of(groups: Groups, transition: Duration, keep: Option<Arc<dyn Persist>>) -> Arc<Self> {
        Arc::new(Self { state: Mutex::new(State { groups, transition, keep, nexuses: Vec::new() }) })
    }

    /// One group of `ports`, always active/optimized: for a target without asymmetric access.
    pub fn symmetric(ports: &[u16]) -> Arc<Self> {
        Self::of(Groups::symmetric(1, ports), Duration::ZERO, None)
    }

    /// Takes the groups of `next`, but keeps its nexuses, and states set explicitly or implicitly.
    /// Nexuses get a unit attention for a difference.
    pub fn become_like(&self, next: &Self) {
        if std::ptr::eq(self, next) {
            return;
        }
        let (mut groups, transition, keep) = {
            let next = next.state();
            (next.groups.clone(), next.transition, next.keep.clone())
        };
        let mut state = self.state();
        groups.inherit(&state.groups);
        (state.transition, state.keep) = (transition, keep);
        if groups != state.groups {
            state.groups = groups;
            state.tell(UnitAttention::AsymmetricAccessStateChanged, None);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Attaches a nexus of a unit: it gets the state of its port, now and after each change.
    pub fn attach(&self, nexus: &Arc<ItlNexus>) {
        let mut state = self.state();
        state.nexuses.retain(|known| known.strong_count() > 0);
        nexus.set_access(state.groups.state(nexus.nexus.target_port));
        state.nexuses.push(Arc::downgrade(nexus));
    }

    pub fn detach(&self, nexus: &Arc<ItlNexus>) {
        self.state().nexuses.retain(|known| !std::ptr::eq(known.as_ptr(), Arc::as_ptr(nexus)));
    }

    /// The groups in their current states.
    pub fn groups(&self) -> Vec<TargetPortGroup> {
        self.state().groups.all().to_vec()
    }

    /// IMPLICIT TRANSITION TIME in seconds; 0 means not reported.
    pub fn transition_s(&self) -> u8 {
        self.state().groups.transition_s()
    }

    /// TPGS of standard INQUIRY data.
    pub fn tpgs(&self) -> u8 {
        self.state().groups.tpgs()
    }

    /// Whether the target supports SET TARGET PORT GROUPS.
    pub fn explicit(&self) -> bool {
        self.state().groups.explicit()
    }

    /// The identifier of a port's group.
    pub fn group_of(&self, port: u16) -> Option<u16> {
        self.state().groups.of_port(port).map(|group| group.id)
    }

    /// The state of access through a port.
    pub fn access(&self, port: u16) -> AccessState {
        self.state().groups.state(port)
    }

    /// SET TARGET PORT GROUPS through `by`. Every other nexus gets a unit attention (SPC-4
    /// §5.15.2.9).
    ///
    /// # Errors
    /// The sense data for the response.
    pub async fn set(&self, requests: &[SetTargetPortGroup], by: &ItlNexus) -> Result<(), Sense> {
        let plan = {
            let mut state = self.state();
            let plan = state.groups.plan_explicit(requests)?;
            state.begin(&plan);
            plan
        };
        let failed =
            |_| Sense::new(SenseKey::HardwareError, AdditionalSense::SET_TARGET_PORT_GROUPS_COMMAND_FAILED);
        self.carry_out(plan, Some(by)).await.map_err(failed)
    }

    /// Changes a group's state implicitly. Every nexus gets a unit attention. Resolves when the
    /// state has changed.
    ///
    /// Waits for a change already in progress, up to its expected duration: initiators that fail
    /// over change states just when an administrator does.
    ///
    /// # Errors
    /// An [`AccessError`]; the state is then unchanged.
    pub async fn change(&self, group: u16, to: AccessState) -> Result<(), AccessError> {
        let mut waited = Duration::ZERO;
        let plan = loop {
            let transition = {
                let mut state = self.state();
                match state.groups.plan_implicit(group, to) {
                    Err(ChangeError::InTransition) => state.transition,
                    plan => {
                        let plan = plan?;
                        state.begin(&plan);
                        break plan;
                    }
                }
            };
            if !runtime::is_running() || waited > transition + LATE {
                return Err(ChangeError::InTransition.into());
            }
            runtime::sleep(LOOK_AGAIN).await;
            waited += LOOK_AGAIN;
        };
        Ok(self.carry_out(plan, None).await?)
    }

    /// Whether [`Self::change`] would change the group's state now.
    ///
    /// # Errors
    /// A [`ChangeError`]: it would be refused.
    pub fn would_change(&self, group: u16, to: AccessState) -> Result<bool, ChangeError> {
        self.state().groups.plan_implicit(group, to).map(|plan| !plan.is_empty())
    }

    async fn carry_out(&self, plan: Plan, by: Option<&ItlNexus>) -> std::io::Result<()> {
        if plan.is_empty() {
            return Ok(());
        }
        let transition = self.state().transition;
        if !transition.is_zero() && runtime::is_running() {
            runtime::sleep(transition).await;
        }
        let saving = {
            let state = self.state();
            state.keep.as_ref().map(|keep| keep.save(state.groups.saved(&plan)))
        };
        let kept = match saving {
            Some(saving) => saving.await,
            None => Ok(()),
        };
        let mut state = self.state();
        match kept {
            Ok(()) => {
                state.groups.finish(&plan);
                state.tell(UnitAttention::AsymmetricAccessStateChanged, by);
            }
            Err(_) => {
                state.groups.fail(&plan);
                if by.is_none() {
                    state.tell(UnitAttention::ImplicitTransitionFailed, None);
                } else {
                    state.apply();
                }
            }
        }
        kept
    }
}

impl State {
    fn begin(&mut self, plan: &Plan) {
        self.groups.begin(plan);
        if !plan.is_empty() {
            self.apply();
        }
    }

    /// Sets the state of its port in every nexus.
    fn apply(&self) {
        for nexus in self.nexuses.iter().filter_map(Weak::upgrade) {
            nexus.set_access(self.groups.state(nexus.nexus.target_port));
        }
    }

    /// [`Self::apply`], and a unit attention for each nexus except those of the I_T nexus `by`.
    fn tell(&self, attention: UnitAttention, by: Option<&ItlNexus>) {
        for nexus in self.nexuses.iter().filter_map(Weak::upgrade) {
            if by.is_none_or(|by| by.nexus.id != nexus.nexus.id) {
                nexus.establish(attention);
            }
            nexus.set_access(self.groups.state(nexus.nexus.target_port));
        }
    }
}

impl std::fmt::Debug for PortGroups {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("PortGroups").field(&self.groups()).finish()
    }
}

/// Rejects a command that the port's state does not allow.
///
/// # Errors
/// NOT READY with the state's own additional sense code.
pub(crate) fn check(access: AccessState, cdb: &[u8]) -> Result<(), Sense> {
    if alua::runs_in(access, cdb) { Ok(()) } else { Err(alua::refusal(access)) }
}
