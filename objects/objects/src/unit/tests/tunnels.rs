//! PERFORM SCSI COMMAND and PERFORM TASK MANAGEMENT FUNCTION.

use std::pin::Pin;
use std::sync::Mutex;

use device::{AbortTasks, Tasks};
use osd::attributes::numbers::root_information;
use scsi::UnitAttention;

use super::*;

fn tunnel(cdb: &[u8]) -> Osd {
    let mut whole = [0; 16];
    whole[..cdb.len()].copy_from_slice(cdb);
    Osd::PerformScsiCommand { cdb: whole }
}

#[test]
fn a_command_of_spc_runs_inside_an_osd_command() {
    for it in Client::each_form() {
        let ran = it.ask(tunnel(&[0x12, 0, 0, 0, 255, 0])).send().good();
        assert_eq!(ran.data[0], 0x11);
        assert_eq!(it.ask(tunnel(&[0x12, 0, 0, 0, 9, 0])).send().good().data.len(), 9);
        it.ask(tunnel(&[0; 6])).send().good();
        // Its failure is the tunnel's.
        refused(
            &it.ask(tunnel(&[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0])).send(),
            AdditionalSense::INVALID_COMMAND_OPERATION_CODE,
        );
        it.ask(tunnel(&[0x12, 1, 0x77, 0, 255, 0])).send().bad_field(2);
        // No tunnel leads into another.
        for opcode in [0x7F, 0x7E, 0xC0] {
            it.ask(tunnel(&[opcode])).send().bad_field(32);
        }
        let name = root_information::OSD_NAME;
        let ran = it.ask(tunnel(&[0; 6])).set(name, b"through").get(&[name]).send().good();
        assert_eq!(ran.value(), b"through");
    }
}

#[test]
fn data_out_of_a_tunnelled_command_stands_where_a_commands_data_does() {
    let it = Client::ready();
    // PERSISTENT RESERVE OUT, REGISTER: a key of 8 bytes at 8.
    let mut list = vec![0; 24];
    list[8..16].copy_from_slice(b"ourkey!!");
    let cdb = [0x5F, 0, 0, 0, 0, 0, 0, 0, 24, 0];
    it.ask(tunnel(&cdb)).data(&list).set(root_information::OSD_NAME, b"kept").send().good();
    let keys = it.ask(tunnel(&[0x5E, 0, 0, 0, 0, 0, 0, 0, 64, 0])).send().good().data;
    assert_eq!(&keys[8..16], b"ourkey!!");
    assert_eq!(it.get(Id::ROOT, root_information::OSD_NAME).good().value(), b"kept");
    // With another key it is no holder: a status without sense data.
    let cdb = [0x5F, 1, 1, 0, 0, 0, 0, 0, 24, 0];
    let ran = it.ask(tunnel(&cdb)).data(&[0; 24]).send();
    assert_eq!((ran.outcome.status, ran.outcome.sense), (Status::ReservationConflict, None));
}

/// Remembers its requests; each nexus has one task, with the tag 7.
#[derive(Default)]
struct Aborter(Mutex<Vec<(u64, Tasks)>>);

fn there(which: Tasks) -> Pin<Box<dyn Future<Output = usize>>> {
    Box::pin(std::future::ready(usize::from(matches!(which, Tasks::All | Tasks::Tagged(7)))))
}

impl AbortTasks for Aborter {
    fn abort(
        &self,
        nexus: Arc<ItlNexus>,
        which: Tasks,
        _: Option<&Command>,
    ) -> Pin<Box<dyn Future<Output = usize>>> {
        self.0.lock().unwrap().push((nexus.nexus.id.0, which));
        there(which)
    }

    fn count(
        &self,
        _: Arc<ItlNexus>,
        which: Tasks,
        _: Option<&Command>,
    ) -> Pin<Box<dyn Future<Output = usize>>> {
        there(which)
    }
}

#[test]
fn functions_on_tasks_are_done_by_the_server_and_answered_in_8_bytes() {
    let it = Client::ready();
    let other = Client::to(&it.unit, 2, it.clock.clone());
    let tagged = |function, tag| it.ask(Osd::PerformTmf { allocation: 8, function, tag }).send().good().data;
    let ask = |function| tagged(function, 5);
    let (done, found, rejected) =
        ([0, 6, 0, 0, 0, 0, 0, 0], [0, 6, 0, 0, 5, 0, 0, 0], [0, 6, 0, 0, 8, 0, 0, 0]);
    for function in [0x01, 0x02, 0x80, 0x81] {
        assert_eq!(ask(function), rejected, "nobody is there who could");
    }
    let aborter = Arc::new(Aborter::default());
    it.unit.nexuses().set_aborter(aborter.clone());
    let aborted = || std::mem::take(&mut *aborter.0.lock().unwrap());
    let all = |nexuses: &[u64]| nexuses.iter().map(|id| (*id, Tasks::All)).collect::<Vec<_>>();
    assert_eq!((ask(0x02), aborted()), (done.to_vec(), all(&[1])));
    assert_eq!(other.nexus.take_attention(), None);
    // A nexus whose tasks another nexus has cleared gets a unit attention.
    assert_eq!((ask(0x04), aborted()), (done.to_vec(), all(&[1, 2])));
    assert_eq!(other.nexus.take_attention(), Some(UnitAttention::CommandsClearedByAnotherInitiator));
    assert_eq!(it.nexus.take_attention(), None);
    assert_eq!((ask(0x08), aborted()), (done.to_vec(), all(&[1, 2])));
    assert_eq!(other.nexus.pending_attention().map(|(_, more)| more), Some(false), "a reset is told");
    assert_eq!(other.nexus.take_attention(), Some(UnitAttention::BusDeviceResetFunctionOccurred));
    assert!(it.nexus.take_attention().is_some());
    // One task. If none has this tag, or none any more, the request is fulfilled.
    for tag in [5, 7] {
        assert_eq!((tagged(0x01, tag), aborted()), (done.to_vec(), vec![(1, Tasks::Tagged(tag))]));
    }
    assert_eq!((tagged(0x80, 5), tagged(0x80, 7)), (done.to_vec(), found.to_vec()));
    assert_eq!(ask(0x81), found);
    // The command's own is 0.
    assert_eq!((tagged(0x01, 0), tagged(0x80, 0)), (rejected.to_vec(), found.to_vec()));
    assert_eq!(ask(0x40), rejected, "there is no auto contingent allegiance");
    assert!(aborted().is_empty());
    it.ask(Osd::PerformTmf { allocation: 8, function: 0x77, tag: 0 }).send().bad_field(39);
    let short = it.ask(Osd::PerformTmf { allocation: 3, function: 1, tag: 0 }).send().good();
    assert_eq!(short.data, [0, 6, 0]);
}

#[test]
fn a_nexus_that_is_reset_loses_its_tasks_and_its_reserve_and_is_told() {
    let it = Client::ready();
    let other = Client::to(&it.unit, 2, it.clock.clone());
    let aborter = Arc::new(Aborter::default());
    it.unit.nexuses().set_aborter(aborter.clone());
    it.ask(tunnel(&[0x16, 0, 0, 0, 0, 0])).send().good();
    let read = |it: &Client| it.ask(Osd::Read(ID, range(0, 0))).send().outcome.status;
    assert_eq!(read(&other), Status::ReservationConflict);
    let reset = it.ask(Osd::PerformTmf { allocation: 8, function: 0x10, tag: 0 }).send().good();
    assert_eq!(reset.data, [0, 6, 0, 0, 0, 0, 0, 0]);
    assert_eq!(*aborter.0.lock().unwrap(), [(1, Tasks::All)]);
    assert_eq!(read(&other), Status::Good);
    assert_eq!(it.nexus.take_attention(), Some(UnitAttention::NexusLossOccurred));
    assert_eq!(read(&it), Status::Good);
}

#[test]
fn a_pending_unit_attention_is_told_without_being_taken() {
    let it = Client::ready();
    let query = |it: &Client| {
        let (cdb, out, _) = it.ask(Osd::PerformTmf { allocation: 8, function: 0x82, tag: 0 }).build();
        let meanwhile = || {
            it.nexus.establish(UnitAttention::MediumMayHaveChanged);
            it.nexus.establish(UnitAttention::ReservationsPreempted);
        };
        let Execution::Running(future) = it.start(&cdb, &out, 8, 0) else { panic!("it has begun") };
        meanwhile();
        block_on(future).0.data_in
    };
    let none = it.ask(Osd::PerformTmf { allocation: 8, function: 0x82, tag: 0 }).send().good();
    assert_eq!(none.data, [0, 6, 0, 0, 0, 0, 0, 0]);
    assert_eq!(query(&it), [0, 6, 0, 0, 5, 0x26, 0x28, 0x00]);
    assert_eq!(it.nexus.take_attention(), Some(UnitAttention::MediumMayHaveChanged));
    assert_eq!(it.nexus.pending_attention(), Some((UnitAttention::ReservationsPreempted, false)));
    assert!(it.nexus.take_attention().is_some());
}
