//! The `[isns]` table.

use super::model::Isns;
use super::problem::Problems;
use super::reader::Table;

/// Reads `[isns]`.
pub fn isns(mut given: Table<'_>, problems: &mut Problems) -> Option<Isns> {
    let server = given.string("server", problems);
    if server.is_none() {
        given.missing("server", "server = \"192.0.2.30:3205\"", problems);
    }
    let entity = given.string("entity", problems);
    // RFC 4171 §6.2.1: 4 to 256 bytes with the NUL and padding.
    if let Some(entity) = entity.as_ref().filter(|entity| !(1..=255).contains(&entity.value.len())) {
        problems.error(
            &entity.span,
            "an entity's identifier has 1 to 255 bytes",
            "leave it out for the host's name",
        );
    }
    let period_s = given.int("period", 20..86401, problems).map(|at| at.value as u32);
    let esi_interval_s = given.int("esi", 0..86401, problems).map(|at| at.value as u32);
    given.end(problems);
    let server = server?;
    let Some(place) = crate::naming::server(&server.value) else {
        problems.error(
            &server.span,
            format!("\"{}\" is no iSNS server", server.value),
            "write \"192.0.2.30\", or with a port \"192.0.2.30:3205\"",
        );
        return None;
    };
    Some(Isns { server: place, entity: entity.map(|at| at.value), period_s, esi_interval_s })
}
