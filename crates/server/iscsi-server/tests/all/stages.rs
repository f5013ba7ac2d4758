//! Stages of single units: counted where the configuration asks for it, from one change of the
//! configuration to the next.

use std::time::Duration;

use iscsi_server::config::ServerConfig;
use iscsi_server::{Handle, Stages};

use crate::support::{Client, PATIENCE, address, read10, server};

/// The stages of LUN 0 and LUN 3, as far as they are counted.
fn counted(handle: &Handle) -> [Option<Box<Stages>>; 2] {
    let units = handle.activity(PATIENCE).units;
    let of = |lun| units.iter().find(|flow| flow.lun == lun).expect("it is served").stages.clone();
    [of(0), of(3)]
}

/// How many commands of this operation have passed the medium.
fn passed(stages: Option<&Stages>, operation: &str) -> u64 {
    let all = stages.expect("they are counted");
    let mut medium = all.iter().filter(|(op, stage, _)| (*op, *stage) == (operation, "medium"));
    medium.next().expect("there is one").2.commands()
}

#[test]
fn the_stages_of_a_unit_are_counted_from_one_change_to_the_next() {
    let mut given = None;
    let server = server(|config| given = Some(config.clone()));
    let mut config: ServerConfig = given.expect("it was shown");
    let handle = server.handle();
    let mut client = Client::login(address(&server), Client::config(1));
    client.settle(0);
    client.settle(3);
    // One of each eight is counted.
    let mut read = |lun| (0..32).for_each(|_| assert_eq!(client.read(lun, &read10(0, 1), 512).0, 0));
    read(0);
    assert_eq!(counted(&handle), [None, None]);

    config.targets[0].units[1].stages = true;
    assert_eq!(handle.apply(config.clone()).unwrap().changed, 0, "no initiator notices");
    read(0);
    read(3);
    let [none, stages] = counted(&handle);
    assert_eq!((none, passed(stages.as_deref(), "read")), (None, 4));
    assert_eq!(passed(stages.as_deref(), "write"), 0);
    let [.., again] = counted(&handle);
    assert_eq!(passed(again.as_deref(), "read"), 4, "looking changes nothing");

    config.targets[0].units[1].stages = false;
    handle.apply(config.clone()).unwrap();
    read(3);
    assert_eq!(counted(&handle), [None, None]);

    config.targets[0].units[1].stages = true;
    handle.apply(config).unwrap();
    read(3);
    let [.., stages] = counted(&handle);
    assert_eq!(passed(stages.as_deref(), "read"), 4, "it began again at zero");
    server.stop(Duration::from_millis(100)).expect("everything is flushed");
}
