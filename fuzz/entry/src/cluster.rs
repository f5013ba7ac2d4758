//! The record of a group of gateways, which other gateways have written.

use cluster::codec::{DecodeError, checksum, decode, encode};
use cluster::record::{Member, Record, Standing};
use cluster::{Epoch, GatewayId, InstanceId, UnitId};

use crate::input::Seed;

/// The bytes as they are, and with the checksum made right.
pub fn record(data: &[u8]) {
    read(data);
    if let Some(body) = data.len().checked_sub(4) {
        let body = &data[..body];
        read(&[body, &checksum(body).to_be_bytes()].concat());
    }
}

fn read(bytes: &[u8]) {
    match decode(bytes) {
        Ok(record) => {
            assert_eq!(encode(&record), bytes, "a record has one form");
            changes(record);
        }
        Err(error) => {
            assert!(!error.to_string().is_empty());
            if let DecodeError::Damaged { at, .. } = error {
                assert!(at <= bytes.len());
            }
        }
    }
}

/// What gateways do with any record leaves one that can be written and read.
fn changes(mut record: Record) {
    let gateways: Vec<GatewayId> = record.members.keys().copied().collect();
    let units: Vec<UnitId> = record.places.keys().copied().take(64).collect();
    let _ = record.add(UnitId(7));
    for (gateway, unit) in gateways.iter().zip(&units) {
        let _ = record.begin_move(*unit, *gateway);
    }
    if let Some(gateway) = gateways.first() {
        let instance = record.members[gateway].instance;
        record.begin_fence(*gateway, GatewayId(9));
        record.end_fence(instance, Epoch(1));
        let _ = record.join(*gateway, member(11));
    }
    record.spread();
    gateways.iter().for_each(|gateway| {
        record.leave(*gateway);
    });
    for unit in units {
        record.end_move(unit);
    }
    assert_eq!(decode(&encode(&record)), Ok(record));
}

fn member(instance: u64) -> Member {
    Member {
        instance: InstanceId(instance),
        addresses: vec!["192.0.2.1:0/77".into(), "[2001:db8::1]:0/78".into()],
        protocol: 1..=2,
        secret: 3,
        standing: Standing::Serving,
    }
}

/// Groups in several states.
pub fn record_seeds() -> Vec<(&'static str, Seed)> {
    let seed = |record: &Record| Seed::new().bytes(encode(record));
    let mut record = Record::default();
    let mut seeds = vec![("empty", seed(&record))];
    for id in 1..=3 {
        let _ = record.join(GatewayId(id), member(u64::from(id)));
        let _ = record.add(UnitId(id.into()));
    }
    seeds.push(("three-gateways", seed(&record)));
    let _ = record.begin_move(UnitId(1), GatewayId(3));
    record.begin_fence(GatewayId(2), GatewayId(1));
    seeds.push(("a-move-and-a-fence", seed(&record)));
    record.end_fence(InstanceId(2), Epoch(40));
    record.leave(GatewayId(3));
    let _ = record.remove(UnitId(2));
    seeds.push(("fenced-and-leaving", seed(&record)));
    record.kept.insert(6, b"of a newer release".to_vec());
    seeds.push(("newer-sections", seed(&record)));
    seeds
}
