//! MOUNT: the encodings of another implementation, limits, and round trips.

use proptest::prelude::*;
use rpc::xdr::{Chained, Malformed, Opaque, Reader, Writer};

use super::*;

fn text<const MAX: usize>(text: &str) -> Opaque<'_, MAX> {
    Opaque::new(text.as_bytes()).unwrap()
}

fn written(write: impl FnOnce(&mut Writer<'_>)) -> Vec<u8> {
    let mut out = Vec::new();
    write(&mut Writer::new(&mut out));
    out
}

fn same_arguments(value: &Arguments<'_>, wire: &[u8]) {
    assert_eq!(written(|to| value.write(to)), wire);
    let mut from = Reader::new(wire);
    assert_eq!(Arguments::read(value.procedure(), &mut from), Ok(value.clone()));
    assert_eq!(from.end(), Ok(()));
}

fn same_results(value: &Results<'_>, wire: &[u8]) {
    assert_eq!(written(|to| value.write(to)), wire);
    let mut from = Reader::new(wire);
    assert_eq!(Results::read(value.procedure(), &mut from), Ok(value.clone()));
    assert_eq!(from.end(), Ok(()));
}

#[test]
fn every_procedure_is_encoded_as_nfs3_types_does() {
    let mounts = Chained::of([
        Mount { host: text("host"), directory: text("/export/a") },
        Mount { host: text("other"), directory: text("/") },
    ]);
    let groups = Chained::of([Group { name: text("@lab") }, Group { name: text("host") }]);
    let exports = Chained::of([
        Export { directory: text("/export/a"), groups: groups.chain() },
        Export { directory: text("/"), groups: Chain::EMPTY },
    ]);
    let mounted = Mounted { handle: text("handle-one"), flavors: [1, 390_003].into_iter().collect() };
    let mut seen = 0;
    for line in include_str!("nfs3_types.txt").lines().filter(|line| !line.starts_with('#')) {
        let (name, hex) = line.rsplit_once(' ').unwrap();
        let wire = crate::from_hex(hex);
        match name {
            "Mnt args" => same_arguments(&Arguments::Mnt(text("/export/a")), &wire),
            "Mnt ok" => same_results(&Results::Mnt(Outcome::Ok(mounted.clone())), &wire),
            "Mnt err" => same_results(&Results::Mnt(Outcome::Err(Status::Acces, ())), &wire),
            "Dump ok" => same_results(&Results::Dump(mounts.chain()), &wire),
            "Umnt args" => same_arguments(&Arguments::Umnt(text("/export/a")), &wire),
            "Export ok" => same_results(&Results::Export(exports.chain()), &wire),
            other => panic!("{other}"),
        }
        seen += 1;
    }
    assert_eq!(seen, 6);
    for void in [Arguments::Null(()), Arguments::Dump(()), Arguments::UmntAll(()), Arguments::Export(())] {
        same_arguments(&void, &[]);
    }
    for void in [Results::Null(()), Results::Umnt(()), Results::UmntAll(())] {
        same_results(&void, &[]);
    }
}

#[test]
fn lengths_beyond_their_limits_are_refused() {
    let mut from = Reader::new(&[0, 0, 4, 1]);
    let long = Err(Malformed::TooLong { length: 1025, limit: MAX_PATH });
    assert_eq!(Arguments::read(Procedure::Mnt, &mut from), long);
    // OK, an empty handle, and 33 flavors.
    let mut from = Reader::new(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 33]);
    let long = Err(Malformed::TooLong { length: 33, limit: MAX_FLAVORS });
    assert_eq!(Results::read(Procedure::Mnt, &mut from), long);
}

proptest! {
    #[test]
    fn any_bytes_are_a_value_or_an_error(
        words in prop::collection::vec(0u32..3, 0..60), rest in prop::collection::vec(any::<u8>(), 0..100),
    ) {
        let mut wire: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
        wire.extend(rest);
        for procedure in Procedure::ALL {
            let mut from = Reader::new(&wire);
            if let Ok(value) = Results::read(*procedure, &mut from) {
                let again = written(|to| value.write(to));
                prop_assert_eq!(again.len(), from.position());
                prop_assert_eq!(Results::read(*procedure, &mut Reader::new(&again)), Ok(value.clone()));
            }
            let _ = Arguments::read(*procedure, &mut Reader::new(&wire));
        }
    }
}
