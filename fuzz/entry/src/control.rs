//! Input from other processes of the machine: lines of the control socket, and the state that a
//! replaced daemon sends to its successor.

use crate::input::Seed;
use device::Nexuses;
use scsi::reservation::{Environment, ItPort, OutAction, Reservations, TransportId};

/// Lines as a client of the control socket sends them.
pub fn requests(data: &[u8]) {
    let (read, refused) = stag::read_control_requests(data);
    let lines = data.iter().filter(|byte| **byte == b'\n').count();
    assert!(read + refused <= lines, "an answer for each line");
}

/// Requests of each verb, of another version, and lines that are none.
pub fn requests_seeds() -> Vec<(&'static str, Seed)> {
    let seed = |text: &str| Seed::new().bytes(text);
    vec![
        ("status", seed("{\"v\":1,\"do\":\"status\"}\n")),
        (
            "typed",
            seed(
                "{\"do\":\"drains\"}\n{\"do\":\"alua\",\"target\":\"iqn.x\",\"group\":1,\"state\":\"standby\"}\n",
            ),
        ),
        (
            "apply",
            seed(
                "{\"v\":1,\"do\":\"apply\",\"text\":\"[[target]]\\n\",\"name\":\"stag.toml\",\"directory\":\"/\",\
                 \"open_to_others\":false,\"dry_run\":true,\"force\":false,\"wait_s\":null}\n",
            ),
        ),
        ("drain", seed("{\"v\":1,\"do\":\"drain\",\"target\":\"iqn.x\",\"timeout_s\":10}\n")),
        (
            "hand-over",
            seed(
                "{\"v\":1,\"do\":\"hand-over\",\"lose_memory_units\":true}\n{\"do\":\"commit\"}\n{\"do\":\"done\"}\n",
            ),
        ),
        ("version", seed("{\"v\":2,\"do\":\"status\"}\n")),
        ("no-request", seed("{\"v\":1}\n[]\nnull\n\"do\"\n\n{\"do\":7}\n")),
        ("no-end", seed("{\"v\":1,\"do\":\"status\"}")),
        ("not-text", Seed::new().bytes(b"{\"do\":\"\xff\xfe\"}\n")),
        ("deep", seed(&format!("{{\"do\":{}\n", "[".repeat(500)))),
        ("twice", seed("{\"do\":\"a\",\"do\":\"b\",\"v\":1,\"v\":1}\n")),
    ]
}

/// Lines as the replaced daemon sends them: its offer, and its state. The reservations in it are
/// put into force.
pub fn takeover(data: &[u8]) {
    let Ok(kept) = stag::read_takeover(data) else { return };
    for kept in kept {
        let nexuses = Nexuses::new(None).expect("nothing is kept");
        if nexuses.take_over(&kept).is_err() {
            assert_eq!(nexuses.hand_over(), None, "what is torn changes nothing");
            continue;
        }
        let Some(given) = nexuses.hand_over() else { continue };
        let next = Nexuses::new(None).expect("nothing is kept");
        next.take_over(&given).expect("what is handed over is taken");
        assert_eq!(next.hand_over(), Some(given), "the next daemon knows the same");
    }
}

/// The state of a daemon with an export in memory, `/m`: a root with a file of 5 bytes in one page.
/// No more than `most` bytes of the tree.
fn tree(seed: Seed, most: usize) -> Seed {
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_be_bytes()).collect::<Vec<u8>>();
    let node = |slot: u32, rest: &[u32]| {
        let times = [0; 12];
        let common = [slot, 0, slot + 1, 0o755, 0, 0, 1, 0, 1];
        let described = words(&[&common[..], &times, &[0, 0], rest].concat());
        [(described.len() as u64).to_be_bytes().to_vec(), described].concat()
    };
    let name = u32::from_be_bytes(*b"name");
    let root = node(0, &[5, 0, 0, 1, 0, 4, 1, 0, 3, 4, name, 1, 0, 2, 0]);
    let file = [node(1, &[4, 0, 5, 1, 0, 0, 1]), b"bytes".to_vec(), vec![0; 4091]].concat();
    let mut all =
        [words(&[2]), b"/m".to_vec(), words(&[1, 0, 7, 0, 3]), root, file, vec![0; 8], words(&[0])].concat();
    all.truncate(most);
    let line = "{\"v\":1,\"ok\":{\"reservations\":{},\"access\":{},\"nfs\":0,\"memory\":true}}\n";
    seed.bytes(line).bytes(all)
}

/// A takeover with reservations and access states, and inputs that are none.
pub fn takeover_seeds() -> Vec<(&'static str, Seed)> {
    let mut reservations = Reservations::new();
    let initiator = TransportId::iscsi_port("iqn.a", 1).expect("a short name");
    let port = ItPort { initiator: initiator.clone(), target_port: 1 };
    let environment = || Environment {
        target_ports: &[1],
        initiators: std::slice::from_ref(&initiator),
        can_persist: true,
    };
    let mut list = [0u8; 24];
    list[15] = 7;
    reservations
        .persistent_out(&port, 1, OutAction::Register, 0, &list, environment())
        .expect("a registration");
    list[7] = 7;
    reservations
        .persistent_out(&port, 1, OutAction::Reserve, 3, &list, environment())
        .expect("a reservation");
    let (saved, aptpl, generation) = reservations.hand_over();
    let note = |_: &ItPort| Some([&[7; 32][..], b"alice"].concat());
    let owned = reservations.whole().to_bytes_with(note);
    let unowned = reservations.whole().to_bytes_with(|_| Some(b"no owner".to_vec()));
    let offer = "{\"v\":1,\"ok\":{\"asked\":[\"127.0.0.1:3260\",\"[::1]:3260\"]}}\n";
    let state_with = |saved: &[u8], owned: &[u8]| {
        format!(
            "{{\"v\":1,\"ok\":{{\"reservations\":{{\"600000000000000000000000000000ab\":{{\"saved\":{saved:?},\
             \"owned\":{owned:?},\"aptpl\":{aptpl},\"generation\":{generation}}}}},\"access\":{{\"iqn.x\":[[1,\"standby\"]]}}}}}}\n"
        )
    };
    let state = |saved: &[u8]| state_with(saved, &[]);
    let seed = |text: String| Seed::new().bytes(text);
    vec![
        ("owners", seed(format!("{offer}{}", state_with(&saved, &owned)))),
        ("owners-that-are-none", seed(format!("{offer}{}", state_with(&saved, &unowned)))),
        ("reservations", seed(format!("{offer}{}", state(&saved)))),
        ("torn-reservations", seed(format!("{offer}{}", state(&saved[..saved.len() / 2])))),
        (
            "nothing-known",
            seed(format!("{offer}{{\"v\":1,\"ok\":{{\"reservations\":{{}},\"access\":{{}}}}}}\n")),
        ),
        ("trees", tree(Seed::new().bytes(offer), 1 << 16)),
        ("trees-that-are-torn", tree(Seed::new().bytes(offer), 100)),
        ("refused", seed("{\"v\":1,\"error\":{\"kind\":\"refused\",\"message\":\"no\"}}\n".into())),
        ("gone-after-the-offer", seed(offer.into())),
        ("progress", seed(format!("{{\"v\":1,\"progress\":1}}\n{offer}"))),
        ("version", seed("{\"v\":9,\"ok\":null}\n".into())),
        ("no-offer", seed("{\"v\":1,\"ok\":{\"asked\":[\"nowhere\"]}}\n".into())),
    ]
}
