//! Asymmetric access through several ports, and the commands allowed in each state.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use device::{AccessError, ItlNexus, LogicalUnit, Nexus, NexusId, Persist, PortGroups};
use runtime::Pooled;
use scsi::alua::{ChangeError, Groups};
use scsi::data::target_port_groups::{AccessState, SetTargetPortGroup, TargetPortGroup, parse, supported};
use scsi::reservation::TransportId;
use scsi::{AdditionalSense, SenseKey};

use super::{DiskUnit, Initiator, block_on, disk, options};

fn group(id: u16, state: AccessState, port: u16) -> TargetPortGroup {
    let supported = supported::ALL & !supported::LOGICAL_BLOCK_DEPENDENT;
    TargetPortGroup { id, preferred: id == 7, state, supported, status: 0, ports: vec![port] }
}

fn groups(explicit: bool) -> Groups {
    let list = vec![group(7, AccessState::ActiveOptimized, 1), group(8, AccessState::ActiveNonOptimized, 2)];
    Groups::new(list, explicit, true, 9).unwrap()
}

fn ports(explicit: bool) -> Arc<PortGroups> {
    PortGroups::new(groups(explicit), Duration::ZERO, None).unwrap()
}

fn through(unit: &Arc<DiskUnit>, id: u64, port: u16, ports: &Arc<PortGroups>) -> Initiator {
    let initiator = format!("iqn.2000-01.com.example:host{id}");
    let nexus = Nexus {
        id: NexusId(id),
        principal: None,
        transport_id: TransportId::iscsi_port(&initiator, id).unwrap().bytes().to_vec(),
        initiator,
        target_port: port,
        target: "iqn.2000-01.com.example:target".into(),
        ports: Some(ports.clone()),
    };
    let nexus = Arc::new(ItlNexus::new(Arc::new(nexus), false));
    unit.attach(&nexus);
    nexus.take_attention();
    Initiator { unit: unit.clone(), nexus }
}

const REPORT: [u8; 12] = [0xa3, 0x0a, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0];

fn set(of: &Initiator, descriptors: &[[u8; 4]]) -> super::Ran {
    let list = [&[0; 4][..], &descriptors.concat()].concat();
    let cdb = [0xa4, 0x0a, 0, 0, 0, 0, 0, 0, 0, list.len() as u8, 0, 0];
    of.run_out(&cdb, &list)
}

#[test]
fn each_port_says_which_port_and_which_group_it_is() {
    let (unit, ports) = (disk(options()), ports(true));
    for (port, group) in [(1, 7), (2, 8)] {
        let page = through(&unit, u64::from(port), port, &ports).run(&[0x12, 1, 0x83, 0, 255, 0]).good();
        let has = |part: &[u8]| page.windows(part.len()).any(|bytes| bytes == part);
        assert!(has(&[0x51, 0x94, 0, 4, 0, 0, 0, port as u8]));
        assert!(has(&[0x51, 0x95, 0, 4, 0, 0, 0, group]));
    }
    let standard = |ports: &Arc<PortGroups>| through(&unit, 9, 1, ports).run(&[0x12, 0, 0, 0, 96, 0]).good();
    assert_eq!(standard(&ports)[5] >> 4 & 3, 3);
    assert_eq!(standard(&self::ports(false))[5] >> 4 & 3, 1);
}

#[test]
fn the_report_lists_all_groups_and_the_extended_one_the_transition_time() {
    let (unit, ports) = (disk(options()), ports(false));
    let one = through(&unit, 1, 2, &ports);
    let told = parse(&one.run(&REPORT).good()).unwrap();
    assert_eq!(told, ports.groups());
    let mut extended = REPORT;
    extended[1] |= 0x20;
    assert_eq!(one.run(&extended).good()[4..8], [0x10, 9, 0, 0]);
}

#[test]
fn set_target_port_groups_changes_states_and_tells_other_nexuses() {
    let (unit, ports) = (disk(options()), ports(true));
    let (one, two) = (through(&unit, 1, 1, &ports), through(&unit, 2, 2, &ports));
    set(&two, &[[0, 0, 0, 8], [2, 0, 0, 7]]).good();
    let states: Vec<_> = ports.groups().iter().map(|group| (group.state, group.status)).collect();
    assert_eq!(states, [(AccessState::Standby, 1), (AccessState::ActiveOptimized, 1)]);
    two.write(0, &[1; 512]).good();
    one.read(0, 1).fails(SenseKey::UnitAttention, AdditionalSense::ASYMMETRIC_ACCESS_STATE_CHANGED);
    one.read(0, 1).fails(SenseKey::NotReady, AdditionalSense::TARGET_PORT_IN_STANDBY_STATE);
    // Its current state changes nothing, so there is no unit attention.
    set(&two, &[[0, 0, 0, 8]]).good();
    assert!(!one.nexus.verdict().attention());
    // Also through the standby port.
    set(&one, &[[0, 0, 0, 7]]).good();
    one.read(0, 1).good();
}

#[test]
fn wrong_lists_and_a_target_that_is_not_explicit_refuse() {
    let (unit, explicit) = (disk(options()), ports(true));
    let one = through(&unit, 1, 1, &explicit);
    set(&one, &[[0, 0, 0, 9]]).refused(AdditionalSense::INVALID_FIELD_IN_PARAMETER_LIST);
    set(&one, &[[5, 0, 0, 7]]).refused(AdditionalSense::INVALID_FIELD_IN_PARAMETER_LIST);
    one.run_out(&[0xa4, 0x0a, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0], &[0; 7])
        .refused(AdditionalSense::PARAMETER_LIST_LENGTH_ERROR);
    one.run(&[0xa4, 0x0a, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]).good();
    let implicit = through(&unit, 2, 1, &ports(false));
    set(&implicit, &[[0, 0, 0, 7]]).refused(AdditionalSense::INVALID_FIELD_IN_CDB);
    let lists = |of: &Initiator| of.run(&[0xa3, 0x0c, 2, 0xa4, 0, 0x0a, 0, 0, 1, 0, 0, 0]).good()[1] & 7 == 3;
    assert_eq!((lists(&one), lists(&implicit)), (true, false));
}

#[test]
fn a_state_says_itself_in_its_sense_and_leaves_what_it_must() {
    let (unit, ports) = (disk(options()), ports(false));
    let one = through(&unit, 1, 1, &ports);
    for (state, additional) in [
        (AccessState::Standby, AdditionalSense::TARGET_PORT_IN_STANDBY_STATE),
        (AccessState::Unavailable, AdditionalSense::TARGET_PORT_IN_UNAVAILABLE_STATE),
        (AccessState::Offline, AdditionalSense::NOT_READY_OFFLINE),
    ] {
        block_on(ports.change(7, state)).unwrap();
        one.run(&[0; 6]).fails(SenseKey::UnitAttention, AdditionalSense::ASYMMETRIC_ACCESS_STATE_CHANGED);
        one.run(&[0; 6]).fails(SenseKey::NotReady, additional);
        one.write(0, &[1; 512]).fails(SenseKey::NotReady, additional);
        one.run(&[0x12, 0, 0, 0, 96, 0]).good();
        one.run(&[0x03, 0, 0, 0, 18, 0]).good();
        one.run(&REPORT).good();
    }
    block_on(ports.change(7, AccessState::ActiveOptimized)).unwrap();
    one.nexus.take_attention();
    one.write(0, &[1; 512]).good();
    let none = block_on(ports.change(3, AccessState::Standby));
    assert!(matches!(none, Err(AccessError::Change(ChangeError::NoGroup(3)))));
}

#[test]
fn a_change_by_the_target_waits_for_the_one_under_way() {
    let ports = PortGroups::new(groups(true), Duration::from_millis(30), None).unwrap();
    let unit = disk(options());
    let two = through(&unit, 2, 2, &ports);
    let request = SetTargetPortGroup { state: Some(AccessState::ActiveOptimized), group_or_port: 8 };
    runtime::Runtime::new(runtime::Config::default()).unwrap().block_on(async {
        let by_initiator = runtime::spawn({
            let ports = ports.clone();
            async move { ports.set(&[request], &two.nexus).await }
        });
        while ports.groups()[1].state != AccessState::Transitioning {
            runtime::yield_now().await;
        }
        ports.change(7, AccessState::Standby).await.unwrap();
        assert!(by_initiator.await.unwrap().is_ok());
    });
    let states: Vec<_> = ports.groups().iter().map(|group| group.state).collect();
    assert_eq!(states, [AccessState::Standby, AccessState::ActiveOptimized]);
}

#[test]
fn a_later_nexus_gets_the_state_and_a_detached_one_is_removed() {
    let (unit, ports) = (disk(options()), ports(false));
    let one = through(&unit, 1, 1, &ports);
    block_on(ports.change(7, AccessState::Standby)).unwrap();
    let late = through(&unit, 3, 1, &ports);
    late.read(0, 1).fails(SenseKey::NotReady, AdditionalSense::TARGET_PORT_IN_STANDBY_STATE);
    one.nexus.take_attention();
    unit.detach(NexusId(1));
    block_on(ports.change(7, AccessState::ActiveOptimized)).unwrap();
    assert!(late.nexus.verdict().attention() && !one.nexus.verdict().attention());
}

/// Stores bytes in memory, or fails to.
#[derive(Default)]
struct Kept {
    bytes: Mutex<Option<Vec<u8>>>,
    fails: AtomicBool,
}

impl Persist for Kept {
    fn save(&self, bytes: Vec<u8>) -> Pooled<io::Result<()>> {
        let fails = self.fails.load(Ordering::Relaxed);
        if !fails {
            *self.bytes.lock().unwrap() = Some(bytes);
        }
        Pooled::new(async move { if fails { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) } })
    }
    fn load(&self, _max: usize) -> io::Result<Option<Vec<u8>>> {
        Ok(self.bytes.lock().unwrap().clone())
    }
}

#[test]
fn explicit_states_survive_a_restart_or_the_change_fails() {
    let kept = Arc::new(Kept::default());
    let start = || PortGroups::new(groups(true), Duration::ZERO, Some(kept.clone())).unwrap();
    let (unit, ports) = (disk(options()), start());
    let one = through(&unit, 1, 1, &ports);
    set(&one, &[[3, 0, 0, 8]]).good();
    assert_eq!(start().access(2), AccessState::Unavailable);
    kept.fails.store(true, Ordering::Relaxed);
    set(&one, &[[0, 0, 0, 8]])
        .fails(SenseKey::HardwareError, AdditionalSense::SET_TARGET_PORT_GROUPS_COMMAND_FAILED);
    assert_eq!(ports.access(2), AccessState::Unavailable);
    assert!(matches!(block_on(ports.change(7, AccessState::Standby)), Err(AccessError::Keep(_))));
    one.read(0, 1)
        .fails(SenseKey::UnitAttention, AdditionalSense::IMPLICIT_ASYMMETRIC_ACCESS_STATE_TRANSITION_FAILED);
    one.read(0, 1).good();
    *kept.bytes.lock().unwrap() = Some(vec![1, 2, 3]);
    assert!(PortGroups::new(groups(true), Duration::ZERO, Some(kept)).is_err());
}

#[test]
fn groups_that_are_configured_anew_reach_the_nexuses_that_are_there() {
    let (unit, before) = (disk(options()), ports(true));
    let one = through(&unit, 1, 1, &before);
    before.become_like(&ports(true));
    assert!(!one.nexus.verdict().attention(), "nothing has changed");
    let list = vec![group(7, AccessState::Standby, 1), group(9, AccessState::ActiveOptimized, 2)];
    let next = Groups::new(list, false, true, 0).unwrap();
    before.become_like(&PortGroups::new(next, Duration::ZERO, None).unwrap());
    one.run(&[0; 6]).fails(SenseKey::UnitAttention, AdditionalSense::ASYMMETRIC_ACCESS_STATE_CHANGED);
    one.run(&[0; 6]).fails(SenseKey::NotReady, AdditionalSense::TARGET_PORT_IN_STANDBY_STATE);
    assert_eq!(before.group_of(2), Some(9));
}
