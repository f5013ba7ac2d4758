//! The `[iser]` table, and what a portal lets in.

use super::model::{Crc, Iser, Transports};
use super::problem::Problems;
use super::reader::{At, Table};

/// What people write for each.
const TRANSPORTS: [(&str, Transports); 4] = [
    ("any", Transports::All),
    ("tcp", Transports::Tcp),
    ("iser", Transports::Iser),
    ("verbs", Transports::Verbs),
];
const CRCS: [(&str, Crc); 3] = [("never", Crc::Never), ("prefer", Crc::Prefer), ("require", Crc::Require)];

/// Reads `[iser]`.
pub fn iser(mut given: Table<'_>, problems: &mut Problems) -> Iser {
    let iser = Iser {
        crc: given.string("crc", problems).and_then(|word| choice("crc", &word, &CRCS, problems)),
        // From what headers and a little data need to what a length of 16 bits says (RFC 5044 §4.1).
        fpdu: given.size("fpdu", 256..65_545, problems).map(|at| at.value as u32),
        markers: given.bool("markers", problems),
        // 14 bits in the connection request (RFC 6581 §4.1).
        reads: given.int("reads", 1..16_384, problems).map(|at| at.value as u16),
        unsolicited_data: given.bool("unsolicited-data", problems),
    };
    given.end(problems);
    iser
}

/// Takes a portal's `transport`.
pub fn transport(given: &mut Table<'_>, problems: &mut Problems) -> Transports {
    let word = given.string("transport", problems);
    word.and_then(|word| choice("transport", &word, &TRANSPORTS, problems)).unwrap_or_default()
}

/// What a portal lets in, in words.
pub fn describe(transports: Transports) -> &'static str {
    match transports {
        Transports::All => "iSCSI and iSER",
        Transports::Tcp => "iSCSI",
        Transports::Iser => "iSER",
        Transports::Verbs => "iSER through RDMA devices",
    }
}

/// The command line's `--iser-crc`.
///
/// # Errors
/// What may be written.
pub fn crc(word: &str) -> Result<Crc, String> {
    let found = CRCS.iter().find(|(name, _)| *name == word);
    found.map(|(_, crc)| *crc).ok_or_else(|| format!("write {}", names(&CRCS)))
}

fn choice<T: Copy>(key: &str, word: &At<String>, of: &[(&str, T)], problems: &mut Problems) -> Option<T> {
    let found = of.iter().find(|(name, _)| *name == word.value).map(|(_, value)| *value);
    if found.is_none() {
        let what = format!("{key} = \"{}\" is none of its values", word.value);
        problems.error(&word.span, what, format!("write {}", names(of)));
    }
    found
}

fn names<T>(of: &[(&str, T)]) -> String {
    let quoted: Vec<String> = of.iter().map(|(name, _)| format!("\"{name}\"")).collect();
    quoted.join(" or ")
}
