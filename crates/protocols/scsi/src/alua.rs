//! Asymmetric logical unit access (SPC-4 §5.15): the target port groups of one target, their
//! states, the allowed changes of state, and which commands run in which state.
//!
//! Owns only the states. The caller reports a change to initiators, times it and stores the states.

use crate::data::target_port_groups::{AccessState, SetTargetPortGroup, TargetPortGroup, supported};
use crate::{AdditionalSense, Sense, SenseKey};

/// STATUS CODE of a group (SPC-4 table 319): no change of its state yet.
pub const STATUS_NONE: u8 = 0;
/// STATUS CODE: the state was set by SET TARGET PORT GROUPS.
pub const STATUS_EXPLICIT: u8 = 1;
/// STATUS CODE: the state was set by the target itself.
pub const STATUS_IMPLICIT: u8 = 2;

/// The target port groups of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Groups {
    groups: Vec<TargetPortGroup>,
    explicit: bool,
    implicit: bool,
    transition_s: u8,
}

/// Why a list of groups is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GroupsError {
    /// The list is empty or longer than [`Groups::MAX`].
    #[error("a target has 1 to {} target port groups", Groups::MAX)]
    Count,
    /// Two groups have the same identifier.
    #[error("two target port groups have the identifier {0}")]
    Twice(u16),
    /// A port is in two groups.
    #[error("port {0} is in two target port groups")]
    Port(u16),
    /// A group has more than 255 ports.
    #[error("target port group {0} has more than 255 ports")]
    Ports(u16),
    /// A group begins in an unsupported state, or supports none.
    #[error("target port group {0} does not support its initial state")]
    State(u16),
}

/// Why a group cannot change to a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChangeError {
    /// There is no such group.
    #[error("there is no target port group {0}")]
    NoGroup(u16),
    /// The group does not support that state, or the state cannot be set.
    #[error("target port group {0} does not support that state")]
    Unsupported(u16),
    /// Another change is in progress.
    #[error("target port groups are in transition")]
    InTransition,
    /// Only SET TARGET PORT GROUPS changes states: implicit changes are off.
    #[error("this target changes states only by SET TARGET PORT GROUPS")]
    NotImplicit,
}

/// An allowed change of states: the old and the new state of each group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    moves: Vec<Move>,
    status: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Move {
    /// TARGET PORT GROUP.
    group: u16,
    from: AccessState,
    from_status: u8,
    to: AccessState,
}

impl Plan {
    /// Whether the plan changes no state.
    pub fn is_empty(&self) -> bool {
        self.moves.is_empty()
    }
}

impl Groups {
    /// Maximum number of groups of one target.
    pub const MAX: usize = 64;
    /// Maximum length of [`Self::saved`], in bytes.
    pub const MAX_SAVED_LEN: usize = SAVED_HEAD.len() + 4 * Self::MAX;

    /// The groups in their initial states. `explicit` and `implicit` select who may change states:
    /// initiators, the target. `transition_s` is IMPLICIT TRANSITION TIME in seconds; 0 means not
    /// reported.
    ///
    /// # Errors
    /// A [`GroupsError`].
    pub fn new(
        groups: Vec<TargetPortGroup>,
        explicit: bool,
        implicit: bool,
        transition_s: u8,
    ) -> Result<Self, GroupsError> {
        if groups.is_empty() || groups.len() > Self::MAX {
            return Err(GroupsError::Count);
        }
        let mut ports = Vec::new();
        for (n, group) in groups.iter().enumerate() {
            if groups[..n].iter().any(|other| other.id == group.id) {
                return Err(GroupsError::Twice(group.id));
            }
            if group.ports.len() > 255 {
                return Err(GroupsError::Ports(group.id));
            }
            if group.state.support() & group.supported == 0 {
                return Err(GroupsError::State(group.id));
            }
            for port in &group.ports {
                if ports.contains(port) {
                    return Err(GroupsError::Port(*port));
                }
                ports.push(*port);
            }
        }
        Ok(Self { groups, explicit, implicit, transition_s })
    }

    /// One group of all `ports` that is always active/optimized.
    pub fn symmetric(id: u16, ports: &[u16]) -> Self {
        let ports = ports.iter().copied().take(255).collect();
        let groups = vec![TargetPortGroup::optimized(id, ports)];
        Self { groups, explicit: false, implicit: true, transition_s: 0 }
    }

    /// TPGS of standard INQUIRY data: bit 0 implicit, bit 1 explicit (SPC-4 table 140).
    pub fn tpgs(&self) -> u8 {
        u8::from(self.explicit) << 1 | u8::from(self.implicit)
    }

    /// Whether the target supports SET TARGET PORT GROUPS.
    pub fn explicit(&self) -> bool {
        self.explicit
    }

    /// IMPLICIT TRANSITION TIME in seconds.
    pub fn transition_s(&self) -> u8 {
        self.transition_s
    }

    /// The groups for REPORT TARGET PORT GROUPS.
    pub fn all(&self) -> &[TargetPortGroup] {
        &self.groups
    }

    /// The group of a port.
    pub fn of_port(&self, port: u16) -> Option<&TargetPortGroup> {
        self.groups.iter().find(|group| group.ports.contains(&port))
    }

    /// Access through a port; a port without a group is active/optimized.
    pub fn state(&self, port: u16) -> AccessState {
        self.of_port(port).map_or(AccessState::ActiveOptimized, |group| group.state)
    }

    /// Plans SET TARGET PORT GROUPS (SPC-4 §6.45): all requests or none. Primary states name a
    /// group. Offline names a port, which must be the only one of its group.
    ///
    /// # Errors
    /// Sense data for the response: INVALID FIELD IN PARAMETER LIST for a group or state that does
    /// not exist or is not supported. While groups are in transition, the same sense data as for
    /// other commands.
    pub fn plan_explicit(&self, requests: &[SetTargetPortGroup]) -> Result<Plan, Sense> {
        if self.in_transition() {
            return Err(refusal(AccessState::Transitioning));
        }
        let mut moves: Vec<Move> = Vec::new();
        for (n, request) in requests.iter().enumerate() {
            let at = 4 + 4 * n as u16;
            let wrong_group = || Sense::invalid_field_in_parameter_list(at + 2, None);
            let wrong_state = || Sense::invalid_field_in_parameter_list(at, Some(3));
            let state = request.state.filter(|state| settable(*state)).ok_or_else(wrong_state)?;
            let group = self.groups.iter().position(|group| match state {
                AccessState::Offline => group.ports == [request.group_or_port],
                _ => group.id == request.group_or_port,
            });
            let group = &self.groups[group.ok_or_else(wrong_group)?];
            if moves.iter().any(|other| other.group == group.id) {
                return Err(wrong_group());
            }
            moves.push(step(group, state).ok_or_else(wrong_state)?);
        }
        Ok(self.plan(moves, STATUS_EXPLICIT))
    }

    /// Plans an implicit change of one group.
    pub fn plan_implicit(&self, id: u16, state: AccessState) -> Result<Plan, ChangeError> {
        if !self.implicit {
            return Err(ChangeError::NotImplicit);
        }
        if self.in_transition() {
            return Err(ChangeError::InTransition);
        }
        let group = self.groups.iter().find(|group| group.id == id).ok_or(ChangeError::NoGroup(id))?;
        let step = settable(state).then(|| step(group, state)).flatten();
        Ok(self.plan(vec![step.ok_or(ChangeError::Unsupported(id))?], STATUS_IMPLICIT))
    }

    /// Leaves out groups that are already in the new state, which is no error.
    fn plan(&self, mut moves: Vec<Move>, status: u8) -> Plan {
        moves.retain(|step| step.from != step.to);
        Plan { moves, status }
    }

    fn in_transition(&self) -> bool {
        self.groups.iter().any(|group| group.state == AccessState::Transitioning)
    }

    /// The groups that `plan` changes, each with its change. Skips groups that no longer exist.
    fn moved<'a>(&'a mut self, plan: &'a Plan) -> impl Iterator<Item = (&'a mut TargetPortGroup, &'a Move)> {
        self.groups.iter_mut().filter_map(|group| {
            plan.moves.iter().find(|step| step.group == group.id).map(|step| (group, step))
        })
    }

    /// Begins the change: its groups become transitioning.
    pub fn begin(&mut self, plan: &Plan) {
        self.moved(plan).for_each(|(group, _)| group.state = AccessState::Transitioning);
    }

    /// Completes the change.
    pub fn finish(&mut self, plan: &Plan) {
        for (group, step) in self.moved(plan) {
            (group.state, group.status) = (step.to, plan.status);
        }
    }

    /// Reverts the change: its groups get their old states back.
    pub fn fail(&mut self, plan: &Plan) {
        for (group, step) in self.moved(plan) {
            (group.state, group.status) = (step.from, step.from_status);
        }
    }

    /// Copies states from `before`, whose place these groups take. A state set explicitly or
    /// implicitly stays, if the group with that identifier still supports it.
    pub fn inherit(&mut self, before: &Self) {
        for group in &mut self.groups {
            let Some(old) = before.groups.iter().find(|old| old.id == group.id) else { continue };
            let set = old.status != STATUS_NONE || old.state == AccessState::Transitioning;
            if set && group.supported & old.state.support() != 0 {
                (group.state, group.status) = (old.state, old.status);
            }
        }
    }

    /// The states after `plan` that SET TARGET PORT GROUPS has set, in the format to store across
    /// restarts.
    pub fn saved(&self, plan: &Plan) -> Vec<u8> {
        let mut after = self.clone();
        after.finish(plan);
        let mut out = SAVED_HEAD.to_vec();
        for group in after.groups.iter().filter(|group| group.status == STATUS_EXPLICIT) {
            out.extend(group.id.to_be_bytes());
            out.extend([group.state.code(), 0]);
        }
        out
    }

    /// Restores stored states. Skips groups that no longer exist and states that are no longer
    /// supported. Returns false, without any change, if [`Self::saved`] cannot have written
    /// `bytes`.
    pub fn restore(&mut self, bytes: &[u8]) -> bool {
        let Some(entries) = bytes.strip_prefix(SAVED_HEAD).filter(|entries| entries.len() % 4 == 0) else {
            return false;
        };
        for entry in entries.chunks_exact(4) {
            let id = u16::from_be_bytes([entry[0], entry[1]]);
            let Some(group) = self.groups.iter_mut().find(|group| group.id == id) else { continue };
            let state = AccessState::from_code(entry[2]);
            if let Some(state) = state.filter(|s| settable(*s) && group.supported & s.support() != 0) {
                (group.state, group.status) = (state, STATUS_EXPLICIT);
            }
        }
        true
    }
}

/// The change of `group` to a state; `None` if the group does not support it.
fn step(group: &TargetPortGroup, to: AccessState) -> Option<Move> {
    let step = Move { group: group.id, from: group.state, from_status: group.status, to };
    (group.supported & to.support() != 0).then_some(step)
}

/// The header of stored states.
const SAVED_HEAD: &[u8] = b"stag alua 1\n\0\0\0\0";

/// Whether a state can be set: only the target itself enters the others.
const fn settable(state: AccessState) -> bool {
    state.support() & supported::SETTABLE != 0
}

/// Whether `cdb` runs through a port in `state` (SPC-4 §5.15.2.4 to §5.15.2.8).
pub fn runs_in(state: AccessState, cdb: &[u8]) -> bool {
    let byte = |at: usize| cdb.get(at).copied().unwrap_or(0);
    let action = byte(1) & 0x1F;
    // In every state: INQUIRY, REPORT LUNS, REQUEST SENSE, REPORT TARGET PORT GROUPS.
    let always = matches!((byte(0), action), (0x12 | 0xA0 | 0x03, _) | (0xA3, 0x0A));
    // SET TARGET PORT GROUPS.
    let sets = (byte(0), action) == (0xA4, 0x0A);
    match state {
        AccessState::ActiveOptimized
        | AccessState::ActiveNonOptimized
        | AccessState::LogicalBlockDependent => true,
        AccessState::Standby => {
            let more = match byte(0) {
                // MODE SELECT, MODE SENSE, LOG SELECT, LOG SENSE, PERSISTENT RESERVE IN, PERSISTENT
                // RESERVE OUT, RECEIVE DIAGNOSTIC RESULTS, SEND DIAGNOSTIC, READ BUFFER, WRITE
                // BUFFER.
                0x15 | 0x55 | 0x1A | 0x5A | 0x4C | 0x4D | 0x5E | 0x5F | 0x1C | 0x1D | 0x3C | 0x3B => true,
                // READ CAPACITY (10), READ CAPACITY (16): a host that discovers the unit through
                // this port needs its size.
                0x25 => true,
                0x9E => action == 0x10,
                // REPORT SUPPORTED OPERATION CODES, ... TASK MANAGEMENT FUNCTIONS.
                0xA3 => matches!(action, 0x0C | 0x0D),
                _ => false,
            };
            always || sets || more
        }
        AccessState::Unavailable => always || sets,
        // A change is in progress: a second one must wait for it.
        AccessState::Transitioning | AccessState::Offline => always,
    }
}

/// The sense data for a command that `state` does not allow.
pub const fn refusal(state: AccessState) -> Sense {
    let additional = match state {
        AccessState::Standby => AdditionalSense::TARGET_PORT_IN_STANDBY_STATE,
        AccessState::Offline => AdditionalSense::NOT_READY_OFFLINE,
        AccessState::Transitioning => AdditionalSense::ASYMMETRIC_ACCESS_STATE_TRANSITION,
        _ => AdditionalSense::TARGET_PORT_IN_UNAVAILABLE_STATE,
    };
    Sense::new(SenseKey::NotReady, additional)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn groups() -> Groups {
        let group = |id, state, ports: &[u16]| TargetPortGroup {
            id,
            preferred: id == 1,
            state,
            supported: supported::ALL & !supported::LOGICAL_BLOCK_DEPENDENT,
            status: STATUS_NONE,
            ports: ports.to_vec(),
        };
        let groups = vec![
            group(1, AccessState::ActiveOptimized, &[1, 3]),
            group(2, AccessState::ActiveNonOptimized, &[2]),
        ];
        Groups::new(groups, true, true, 5).unwrap()
    }

    fn request(code: u8, group_or_port: u16) -> SetTargetPortGroup {
        SetTargetPortGroup { state: AccessState::from_code(code), group_or_port }
    }

    #[test]
    fn groups_that_share_a_port_or_a_name_or_begin_unsupported_are_refused() {
        let one = || TargetPortGroup::optimized(1, vec![1]);
        let new = |groups| Groups::new(groups, false, true, 0).unwrap_err();
        assert_eq!(new(vec![]), GroupsError::Count);
        assert_eq!(new(vec![one(), one()]), GroupsError::Twice(1));
        assert_eq!(new(vec![one(), TargetPortGroup::optimized(2, vec![1])]), GroupsError::Port(1));
        assert_eq!(new(vec![TargetPortGroup::optimized(1, (0..256).collect())]), GroupsError::Ports(1));
        let standby = TargetPortGroup { state: AccessState::Standby, ..one() };
        assert_eq!(new(vec![standby]), GroupsError::State(1));
    }

    #[test]
    fn a_change_goes_through_transition_and_says_who_made_it() {
        let mut groups = groups();
        let plan = groups.plan_explicit(&[request(2, 1), request(0, 2)]).unwrap();
        groups.begin(&plan);
        assert_eq!(groups.state(1), AccessState::Transitioning);
        assert_eq!(groups.plan_implicit(1, AccessState::Standby), Err(ChangeError::InTransition));
        assert_eq!(groups.plan_explicit(&[]), Err(refusal(AccessState::Transitioning)));
        groups.finish(&plan);
        assert_eq!((groups.state(1), groups.state(2)), (AccessState::Standby, AccessState::ActiveOptimized));
        assert!(groups.all().iter().all(|group| group.status == STATUS_EXPLICIT));
        let plan = groups.plan_implicit(1, AccessState::Unavailable).unwrap();
        groups.begin(&plan);
        groups.fail(&plan);
        assert_eq!((groups.state(3), groups.all()[0].status), (AccessState::Standby, STATUS_EXPLICIT));
    }

    #[test]
    fn explicit_requests_are_taken_whole_or_not_at_all() {
        let groups = groups();
        let wrong = |requests: &[SetTargetPortGroup]| groups.plan_explicit(requests).unwrap_err();
        assert_eq!(wrong(&[request(0, 2), request(0, 9)]), Sense::invalid_field_in_parameter_list(10, None));
        assert_eq!(wrong(&[request(0xF, 1)]), Sense::invalid_field_in_parameter_list(4, Some(3)));
        assert_eq!(wrong(&[request(4, 1)]), Sense::invalid_field_in_parameter_list(4, Some(3)));
        assert_eq!(wrong(&[request(7, 1)]), Sense::invalid_field_in_parameter_list(4, Some(3)));
        assert_eq!(wrong(&[request(0, 1), request(2, 1)]), Sense::invalid_field_in_parameter_list(10, None));
        // Offline names a port, and port 1 shares its group.
        assert_eq!(wrong(&[request(0xE, 1)]), Sense::invalid_field_in_parameter_list(6, None));
        assert!(!groups.plan_explicit(&[request(0xE, 2)]).unwrap().is_empty());
        assert!(groups.plan_explicit(&[request(0, 1), request(1, 2)]).unwrap().is_empty());
    }

    #[test]
    fn a_target_without_implicit_access_changes_nothing_by_itself() {
        let groups = Groups::new(groups().all().to_vec(), true, false, 0).unwrap();
        assert_eq!(groups.plan_implicit(1, AccessState::Standby), Err(ChangeError::NotImplicit));
        assert_eq!(groups.tpgs(), 2);
    }

    #[test]
    fn groups_that_take_others_places_keep_what_was_set() {
        let mut before = groups();
        let set = before.plan_explicit(&[request(2, 2)]).unwrap();
        before.finish(&set);
        let mut after = groups();
        after.inherit(&before);
        assert_eq!(after, before);
        // Group 1 has no state set: its configured state stays.
        let mut list = groups().all().to_vec();
        list[0].state = AccessState::Offline;
        list[1].supported = supported::ACTIVE_NON_OPTIMIZED;
        let mut other = Groups::new(list, true, true, 0).unwrap();
        other.inherit(&before);
        assert_eq!((other.state(1), other.state(2)), (AccessState::Offline, AccessState::ActiveNonOptimized));
    }

    #[test]
    fn only_explicit_states_are_kept_and_only_what_is_supported_comes_back() {
        let mut one = groups();
        let explicit = one.plan_explicit(&[request(2, 2)]).unwrap();
        let saved = one.saved(&explicit);
        one.finish(&explicit);
        let implicit = one.plan_implicit(1, AccessState::Standby).unwrap();
        assert_eq!(one.saved(&implicit), saved);
        let mut two = groups();
        assert!(two.restore(&saved));
        assert_eq!((two.state(2), two.state(1)), (AccessState::Standby, AccessState::ActiveOptimized));
        let mut symmetric = Groups::symmetric(2, &[1]);
        assert!(symmetric.restore(&saved));
        assert_eq!(symmetric.state(1), AccessState::ActiveOptimized);
        for cut in 0..saved.len() {
            assert!(!groups().restore(&saved[..cut]) || cut == SAVED_HEAD.len());
        }
        assert!(saved.len() <= Groups::MAX_SAVED_LEN);
    }

    #[test]
    fn each_state_runs_what_the_standard_allows_in_it() {
        use AccessState as S;
        let everywhere: [&[u8]; 4] = [&[0x12, 0], &[0xA0], &[0x03], &[0xA3, 0x2A]];
        for state in [S::Standby, S::Unavailable, S::Offline, S::Transitioning] {
            assert!(everywhere.iter().all(|cdb| runs_in(state, cdb)));
            for cdb in [&[0x28u8, 0][..], &[0x2A], &[0x00], &[0x83, 0], &[0xA3, 0x0F], &[]] {
                assert!(!runs_in(state, cdb), "{state:?} {cdb:x?}");
            }
        }
        assert!(runs_in(S::Standby, &[0x5F]) && !runs_in(S::Unavailable, &[0x5F]));
        assert!(runs_in(S::Unavailable, &[0xA4, 0x0A]) && !runs_in(S::Transitioning, &[0xA4, 0x0A]));
        assert!(runs_in(S::ActiveNonOptimized, &[0x2A]));
    }
}
