//! PERFORM SCSI COMMAND and PERFORM TASK MANAGEMENT FUNCTION.

use std::pin::Pin;
use std::sync::Mutex;

use device::AbortTasks;
use osd::attributes::numbers::root_information;

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

#[derive(Default)]
struct Aborter(Mutex<Vec<u64>>);

impl AbortTasks for Aborter {
    fn abort(&self, nexus: Arc<ItlNexus>, _: &Command) -> Pin<Box<dyn Future<Output = ()>>> {
        self.0.lock().unwrap().push(nexus.nexus.id.0);
        Box::pin(std::future::ready(()))
    }
}

#[test]
fn functions_on_tasks_are_done_by_the_server_and_answered_in_8_bytes() {
    let it = Client::ready();
    let other = Client::to(&it.unit, 2, it.clock.clone());
    let ask = |function| it.ask(Osd::PerformTmf { allocation: 8, function, tag: 5 }).send().good().data;
    let (done, rejected) = ([0, 6, 0, 0, 0, 0, 0, 0], [0, 6, 0, 0, 8, 0, 0, 0]);
    assert_eq!(ask(0x02), rejected, "nobody is there who could");
    let aborter = Arc::new(Aborter::default());
    it.unit.nexuses().set_aborter(aborter.clone());
    let aborted = || std::mem::take(&mut *aborter.0.lock().unwrap());
    assert_eq!((ask(0x02), aborted()), (done.to_vec(), vec![1]));
    assert_eq!((ask(0x04), aborted()), (done.to_vec(), vec![1, 2]));
    assert_eq!((ask(0x08), aborted()), (done.to_vec(), vec![1, 2]));
    assert!(other.nexus.take_attention().is_some(), "a reset is told");
    assert!(it.nexus.take_attention().is_some());
    for function in [0x01, 0x10, 0x40, 0x80, 0x81, 0x82] {
        assert_eq!(ask(function), rejected);
    }
    assert!(aborted().is_empty());
    it.ask(Osd::PerformTmf { allocation: 8, function: 0x77, tag: 0 }).send().bad_field(39);
    let short = it.ask(Osd::PerformTmf { allocation: 3, function: 1, tag: 0 }).send().good();
    assert_eq!(short.data, [0, 6, 0]);
}
