//! Asymmetric logical unit access (SPC-4 §5.15): the target port groups of one target, their states, which changes of state
//! are allowed, and which commands run in which state.
//!
//! Owns the states and nothing else: who is told of a change, how long it takes and where it is kept is the caller's.

use crate::data::target_port_groups::{AccessState, SetTargetPortGroup, TargetPortGroup, supported};
use crate::{AdditionalSense, Sense, SenseKey};

/// STATUS CODE of a group (SPC-4 table 319): nobody has changed its state.
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

/// Why groups make no sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GroupsError {
    /// There are none, or more than [`Groups::MAX`].
    #[error("a target has 1 to {} target port groups", Groups::MAX)]
    Count,
    /// Two have the same identifier.
    #[error("there are two target port groups {0}")]
    Twice(u16),
    /// A port is in two groups.
    #[error("port {0} is in two target port groups")]
    Port(u16),
    /// A group has more than 255 ports.
    #[error("target port group {0} has more than 255 ports")]
    Ports(u16),
    /// A group begins in a state that it does not support, or supports none.
    #[error("target port group {0} does not support the state that it is in")]
    State(u16),
}

/// Why a group does not take a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    /// There is no such group.
    #[error("there is no target port group {0}")]
    NoGroup(u16),
    /// The group does not support that state, or nobody may ask for it.
    #[error("target port group {0} does not support that state")]
    Unsupported(u16),
    /// A change is under way.
    #[error("target port groups are in transition")]
    InTransition,
    /// Only initiators change states here.
    #[error("the target does not change states by itself")]
    NotImplicit,
}

/// A change of states that is allowed: what each group was, and what it becomes.
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
    /// Whether it changes nothing.
    pub fn is_empty(&self) -> bool {
        self.moves.is_empty()
    }
}

impl Groups {
    /// Groups that one target can have.
    pub const MAX: usize = 64;
    /// The most that [`Self::saved`] gives, in bytes.
    pub const MAX_SAVED_LEN: usize = SAVED_HEAD.len() + 4 * Self::MAX;

    /// The groups as they begin. `explicit` and `implicit` say who may change states; `transition_s` is IMPLICIT TRANSITION TIME,
    /// how long an implicit transition may take, in seconds (0 says nothing).
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

    /// Whether SET TARGET PORT GROUPS is a command here.
    pub fn explicit(&self) -> bool {
        self.explicit
    }

    /// IMPLICIT TRANSITION TIME in seconds.
    pub fn transition_s(&self) -> u8 {
        self.transition_s
    }

    /// What REPORT TARGET PORT GROUPS tells.
    pub fn all(&self) -> &[TargetPortGroup] {
        &self.groups
    }

    /// The group of a port.
    pub fn of_port(&self, port: u16) -> Option<&TargetPortGroup> {
        self.groups.iter().find(|group| group.ports.contains(&port))
    }

    /// Access through a port; one that is in no group is active/optimized.
    pub fn state(&self, port: u16) -> AccessState {
        self.of_port(port).map_or(AccessState::ActiveOptimized, |group| group.state)
    }

    /// What SET TARGET PORT GROUPS asks for (SPC-4 §6.45), all of it or nothing. Primary states name a group; offline names a
    /// port, and is taken where that port is all of its group.
    ///
    /// # Errors
    /// The sense data to answer with: INVALID FIELD IN PARAMETER LIST for what does not exist or is not supported; while groups are
    /// in transition, what they answer to everything else.
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

    /// One group's change by the target itself.
    ///
    /// # Errors
    /// A [`ChangeError`].
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

    /// A group that is in the state already does not change, which is no error.
    fn plan(&self, mut moves: Vec<Move>, status: u8) -> Plan {
        moves.retain(|step| step.from != step.to);
        Plan { moves, status }
    }

    fn in_transition(&self) -> bool {
        self.groups.iter().any(|group| group.state == AccessState::Transitioning)
    }

    /// The groups that `plan` moves, with what it does to each. One that is gone meanwhile is passed over.
    fn moved<'a>(&'a mut self, plan: &'a Plan) -> impl Iterator<Item = (&'a mut TargetPortGroup, &'a Move)> {
        self.groups.iter_mut().filter_map(|group| {
            plan.moves.iter().find(|step| step.group == group.id).map(|step| (group, step))
        })
    }

    /// The change begins: its groups are in transition.
    pub fn begin(&mut self, plan: &Plan) {
        self.moved(plan).for_each(|(group, _)| group.state = AccessState::Transitioning);
    }

    /// The change is done.
    pub fn finish(&mut self, plan: &Plan) {
        for (group, step) in self.moved(plan) {
            (group.state, group.status) = (step.to, plan.status);
        }
    }

    /// The change could not be done: everything is as it was.
    pub fn fail(&mut self, plan: &Plan) {
        for (group, step) in self.moved(plan) {
            (group.state, group.status) = (step.from, step.from_status);
        }
    }

    /// These groups take the place of `before`: what somebody has set of a group with the same identifier holds, as far as the
    /// group still supports it.
    pub fn inherit(&mut self, before: &Self) {
        for group in &mut self.groups {
            let Some(old) = before.groups.iter().find(|old| old.id == group.id) else { continue };
            let set = old.status != STATUS_NONE || old.state == AccessState::Transitioning;
            if set && group.supported & old.state.support() != 0 {
                (group.state, group.status) = (old.state, old.status);
            }
        }
    }

    /// The states that SET TARGET PORT GROUPS has set, as they will be after `plan`: to be kept over a restart.
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

    /// Takes kept states back. Groups that are gone, and states that are not supported any more, are passed over. Returns whether
    /// `bytes` is what [`Self::saved`] gives; nothing is taken if it is not.
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

/// A change of `group` that it supports.
fn step(group: &TargetPortGroup, to: AccessState) -> Option<Move> {
    let step = Move { group: group.id, from: group.state, from_status: group.status, to };
    (group.supported & to.support() != 0).then_some(step)
}

/// The first bytes of kept states.
const SAVED_HEAD: &[u8] = b"stag alua 1\n\0\0\0\0";

/// States that can be asked for: not those that the target alone is in.
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
                // MODE SELECT, MODE SENSE, LOG SELECT, LOG SENSE, PERSISTENT RESERVE IN, PERSISTENT RESERVE OUT, RECEIVE
                // DIAGNOSTIC RESULTS, SEND DIAGNOSTIC, READ BUFFER, WRITE BUFFER.
                0x15 | 0x55 | 0x1A | 0x5A | 0x4C | 0x4D | 0x5E | 0x5F | 0x1C | 0x1D | 0x3C | 0x3B => true,
                // READ CAPACITY (10), READ CAPACITY (16): a host that finds the unit by this port learns its size.
                0x25 => true,
                0x9E => action == 0x10,
                // REPORT SUPPORTED OPERATION CODES, ... TASK MANAGEMENT FUNCTIONS.
                0xA3 => matches!(action, 0x0C | 0x0D),
                _ => false,
            };
            always || sets || more
        }
        AccessState::Unavailable => always || sets,
        // A change is under way: another has to wait for it.
        AccessState::Transitioning | AccessState::Offline => always,
    }
}

/// What a command is answered that does not run in `state`.
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
        // Offline names a port, and port 1 is not alone in its group.
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
        // Nobody has set anything of group 1: what is configured holds.
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
